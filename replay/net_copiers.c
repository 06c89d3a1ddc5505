/* Copying threads. See net_copiers.h. A copy is cut into pieces, which the threads take
 * one after the other from the oldest copy that has some left, without a lock. */
#include "config.h"

#include "replay/net_copiers.h"

#include "runtime/clock.h"
#include "runtime/thread.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define JOBS        256U
#define PIECE_BYTES 16384U
#define LOOK_NS     200000U /* for work before a thread sleeps */
#define LOOKS       64U     /* between two looks at the clock */

struct job {
    unsigned char *to;
    const unsigned char *from;
    uint64_t bytes;
    /* number of the job (32 bits) and pieces that nobody has taken (32): whoever takes
     * one off knows that the job's place is its until the piece is there */
    _Atomic uint64_t pieces;
    _Atomic uint64_t left; /* bytes that are not there yet */
};

struct crystal_copiers {
    unsigned threads;     /* lock */
    pthread_mutex_t lock; /* of those who give work, and of sleep */
    pthread_cond_t news;
    int is_started;
    unsigned sleepers;
    _Atomic uint64_t head;  /* of jobs, modulo their number; written under the lock */
    _Atomic uint64_t taken; /* all pieces of the jobs before it are */
    struct job jobs[JOBS];
};

struct crystal_copiers *crystal_copiers_create(unsigned threads)
{
    struct crystal_copiers *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->threads = threads < CRYSTAL_COPIERS_MOST ? threads : CRYSTAL_COPIERS_MOST;
    (void)pthread_mutex_init(&c->lock, NULL); /* cannot fail on Linux */
    (void)pthread_cond_init(&c->news, NULL);
    return c;
}

unsigned crystal_copiers_count(void)
{
    cpu_set_t cpus;
    unsigned count;

    CPU_ZERO(&cpus);
    if (sched_getaffinity(0, sizeof cpus, &cpus) < 0)
        return 0; /* more CPUs than the set has places for: do without */
    count = (unsigned)CPU_COUNT(&cpus) / 4;
    return count < 4 ? count : 4;
}

/* A piece of the oldest job that has some; NULL: none has. */
static struct job *piece_take(struct crystal_copiers *c, uint64_t *ret_piece)
{
    for (;;) {
        uint64_t taken = atomic_load(&c->taken), pieces;
        struct job *job = &c->jobs[taken % JOBS];

        if (taken == atomic_load(&c->head))
            return NULL;
        pieces = atomic_load(&job->pieces);
        if (pieces >> 32 != (uint32_t)taken)
            continue; /* it was the last one's */
        if (!(uint32_t)pieces) {
            (void)atomic_compare_exchange_strong(&c->taken, &taken, taken + 1);
            continue;
        }
        if (!atomic_compare_exchange_weak(&job->pieces, &pieces, pieces - 1))
            continue;
        *ret_piece = (uint32_t)pieces - 1;
        return job;
    }
}

static void piece_copy(struct job *job, uint64_t piece)
{
    const uint64_t at = piece * PIECE_BYTES, rest = job->bytes - at;
    const uint64_t bytes = rest < PIECE_BYTES ? rest : PIECE_BYTES;

    memcpy(job->to + at, job->from + at, bytes);
    (void)atomic_fetch_sub_explicit(&job->left, bytes, memory_order_release);
}

/* Work as long as there is some, and for a while after. */
static void work(struct crystal_copiers *c)
{
    uint64_t until_ns = crystal_now_ns() + LOOK_NS, piece;
    struct job *job;

    do {
        for (unsigned i = 0; i < LOOKS; i++) {
            job = piece_take(c, &piece);
            if (!job)
                continue;
            piece_copy(job, piece);
            until_ns = 0;
        }
        if (!until_ns)
            until_ns = crystal_now_ns() + LOOK_NS;
    } while (crystal_now_ns() < until_ns);
}

static void *copier_main(void *argument)
{
    struct crystal_copiers *c = argument;

    for (;;) {
        work(c);
        (void)pthread_mutex_lock(&c->lock);
        c->sleepers++;
        while (atomic_load(&c->taken) == atomic_load(&c->head))
            (void)pthread_cond_wait(&c->news, &c->lock);
        c->sleepers--;
        (void)pthread_mutex_unlock(&c->lock);
    }
    return NULL;
}

/* Under the lock. */
static void start(struct crystal_copiers *c)
{
    c->is_started = 1;
    for (unsigned i = 0; i < c->threads; i++)
        if (crystal_thread_start(NULL, copier_main, c))
            c->threads = i; /* as many as there are; without any: at once */
}

uint64_t crystal_copiers_copy(struct crystal_copiers *c, void *to, const void *from,
                              uint64_t bytes)
{
    uint64_t head;
    struct job *job;

    (void)pthread_mutex_lock(&c->lock);
    if (!c->is_started)
        start(c);
    head = atomic_load_explicit(&c->head, memory_order_relaxed);
    job = &c->jobs[head % JOBS];
    if (!c->threads || !bytes ||
        atomic_load_explicit(&job->left, memory_order_acquire) ||
        bytes / PIECE_BYTES >= UINT32_MAX) {
        (void)pthread_mutex_unlock(&c->lock);
        memcpy(to, from, bytes);
        return 0;
    }
    job->to = to;
    job->from = from;
    job->bytes = bytes;
    atomic_store(&job->left, bytes);
    atomic_store(&job->pieces, head << 32 | ((bytes + PIECE_BYTES - 1) / PIECE_BYTES));
    atomic_store(&c->head, head + 1);
    if (c->sleepers)
        (void)pthread_cond_broadcast(&c->news);
    (void)pthread_mutex_unlock(&c->lock);
    return head + 1;
}

int crystal_copiers_is_done(struct crystal_copiers *c, uint64_t ticket)
{
    const struct job *job = &c->jobs[(ticket - 1) % JOBS];

    /* the place was given to a later job only when this one was done */
    return !ticket ||
           atomic_load_explicit(&c->head, memory_order_acquire) >= ticket + JOBS ||
           !atomic_load_explicit(&job->left, memory_order_acquire);
}
