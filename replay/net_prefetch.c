/* Reading ahead. See net_prefetch.h. The operations of the recording are numbered once;
 * `used` is the first record that has not been used, `walked` the first that has not
 * been read. Both only grow, but for a communicator that appears: then the thread
 * starts again at `used`.
 */
#include "config.h"

#include "replay/net_prefetch.h"

#include "runtime/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_NS 5000000L /* between looks, when there is nothing to read */
#define SEARCH   4096 /* records behind `used` in which an operation is looked for */

struct crystal_prefetch {
    const struct crystal_graph *graph;
    uint32_t lrank;
    uint64_t budget_bytes;
    uint64_t count;
    const struct crystal_op *ops;
    uint32_t *seq; /* by record: number of a collective or receive; owned */
    _Atomic uint64_t used, walked;
    pthread_mutex_t lock; /* the rest */
    pthread_cond_t ended;
    uint8_t **is_real; /* by communicator; NULL: none of ours (yet); owned */
    uint64_t ahead_bytes;
    uint64_t dropped; /* records whose contributions were given back */
    int has_thread, is_ending, restarts;
    pthread_t thread;
};

/* --- numbers --- */

static int numbers_make(struct crystal_prefetch *p)
{
    uint32_t local_count = crystal_graph_local_count(p->graph, p->lrank);
    uint32_t *colls = calloc(local_count + 1, sizeof *colls);
    uint32_t **receives = calloc(local_count + 1, sizeof *receives);
    int code = colls && receives ? 0 : -ENOMEM;

    for (uint64_t i = 0; !code && i < p->count; i++) {
        const struct crystal_op *op = &p->ops[i];
        struct crystal_graph_comm comm;

        if (op->kind == CRYSTAL_OP_COLL)
            p->seq[i] = colls[op->comm]++;
        if (op->kind != CRYSTAL_OP_RECV)
            continue;
        crystal_graph_comm(p->graph,
                           crystal_graph_comm_of(p->graph, p->lrank, op->comm), &comm);
        if (!receives[op->comm])
            receives[op->comm] = calloc(comm.nranks, sizeof **receives);
        if (receives[op->comm])
            p->seq[i] = receives[op->comm][op->peer]++;
        else
            code = -ENOMEM;
    }
    for (uint32_t i = 0; receives && i < local_count; i++)
        free(receives[i]);
    free(receives);
    free(colls);
    return code;
}

struct crystal_prefetch *crystal_prefetch_create(const struct crystal_graph *g,
                                                 uint32_t lrank, uint64_t budget_bytes,
                                                 struct crystal_error *err)
{
    struct crystal_prefetch *p = calloc(1, sizeof *p);

    if (!p)
        goto err_memory;
    p->graph = g;
    p->lrank = lrank;
    p->budget_bytes = budget_bytes;
    p->ops = crystal_graph_ops(g, crystal_graph_rep_of(g, lrank), &p->count);
    (void)pthread_mutex_init(&p->lock, NULL); /* these two cannot fail on Linux */
    (void)pthread_cond_init(&p->ended, NULL);
    p->seq = calloc(p->count + 1, sizeof *p->seq);
    p->is_real = calloc((size_t)crystal_graph_comm_count(g) + 1, sizeof *p->is_real);
    if (!p->seq || !p->is_real || numbers_make(p))
        goto err_memory;
    return p;
err_memory:
    crystal_prefetch_destroy(p);
    (void)crystal_error_set(err, ENOMEM, "out of memory for reading payload ahead");
    return NULL;
}

void crystal_prefetch_destroy(struct crystal_prefetch *p)
{
    if (!p)
        return;
    if (p->has_thread) {
        (void)pthread_mutex_lock(&p->lock);
        p->is_ending = 1;
        (void)pthread_cond_signal(&p->ended);
        (void)pthread_mutex_unlock(&p->lock);
        (void)pthread_join(p->thread, NULL);
    }
    for (uint32_t i = 0; p->is_real && i < crystal_graph_comm_count(p->graph); i++)
        free(p->is_real[i]);
    free((void *)p->is_real);
    free(p->seq);
    (void)pthread_cond_destroy(&p->ended);
    (void)pthread_mutex_destroy(&p->lock);
    free(p);
}

/* --- the thread --- */

static volatile unsigned char sink; /* so that reading is not optimised away */

static uint64_t page_bytes(void)
{
    long bytes = sysconf(_SC_PAGESIZE);

    return bytes > 0 ? (uint64_t)bytes : 4096;
}

/* Reads a byte of each page; or gives back the pages that lie wholly within. */
static void touch(const void *data, uint64_t bytes, int gives_back)
{
    const uint64_t page = page_bytes();
    const unsigned char *at = data;
    uintptr_t first = ((uintptr_t)data + page - 1) & ~(uintptr_t)(page - 1);
    uintptr_t end = ((uintptr_t)data + bytes) & ~(uintptr_t)(page - 1);

    if (!gives_back) {
        for (uint64_t i = 0; i < bytes; i += page)
            sink = at[i];
    } else if (first < end) {
        (void)madvise((void *)first, end - first, MADV_DONTNEED); /* only advice */
    }
}

/* What virtual ranks put into record i, all of it. Returns the bytes. Lock held. */
static uint64_t contributions(struct crystal_prefetch *p, uint64_t i, int gives_back)
{
    const struct crystal_op *op = &p->ops[i];
    uint32_t comm, crank;
    const uint8_t *is_real;
    struct crystal_graph_comm c;
    const void *data;
    uint64_t bytes, all = 0;

    if (op->kind != CRYSTAL_OP_COLL && op->kind != CRYSTAL_OP_RECV)
        return 0;
    comm = crystal_graph_comm_of(p->graph, p->lrank, op->comm);
    is_real = p->is_real[comm];
    if (!is_real)
        return 0;
    if (op->kind == CRYSTAL_OP_RECV) {
        crank = crystal_graph_peer_of(p->graph, p->lrank, op->comm, op->peer);
        if (is_real[crank] ||
            crystal_graph_p2p_payload(p->graph, comm, crank,
                                      crystal_graph_crank_of(p->graph, comm, p->lrank),
                                      p->seq[i], &data, &bytes) != 1)
            return 0;
        touch(data, bytes, gives_back);
        return bytes;
    }
    crystal_graph_comm(p->graph, comm, &c);
    for (crank = 0; crank < c.nranks; crank++)
        if (!is_real[crank] && crystal_graph_payload(p->graph, comm, p->seq[i], crank,
                                                     &data, &bytes) == 1) {
            touch(data, bytes, gives_back);
            all += bytes;
        }
    return all;
}

/* Lock held. 1 where something was done. */
static int step(struct crystal_prefetch *p)
{
    uint64_t used = atomic_load(&p->used), walked = atomic_load(&p->walked), bytes;

    if (p->restarts || walked < used) {
        p->restarts = 0;
        p->ahead_bytes = 0;
        p->dropped = used;
        walked = used;
        atomic_store(&p->walked, walked);
    }
    if (p->dropped < used && p->dropped < walked) {
        bytes = contributions(p, p->dropped++, 1);
        p->ahead_bytes -= bytes < p->ahead_bytes ? bytes : p->ahead_bytes;
        return 1;
    }
    if (walked >= p->count || p->ahead_bytes >= p->budget_bytes)
        return 0;
    p->ahead_bytes += contributions(p, walked, 0);
    atomic_store(&p->walked, walked + 1);
    return 1;
}

static void *thread_main(void *context)
{
    struct crystal_prefetch *p = context;

    (void)pthread_mutex_lock(&p->lock);
    while (!p->is_ending) {
        struct timespec until;

        if (step(p)) {
            (void)pthread_mutex_unlock(&p->lock); /* whoever adds gets in between */
            (void)pthread_mutex_lock(&p->lock);
            continue;
        }
        (void)clock_gettime(CLOCK_REALTIME, &until); /* the clock of conditions */
        until.tv_nsec += PAUSE_NS;
        if (until.tv_nsec >= 1000000000L) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000L;
        }
        (void)pthread_cond_timedwait(&p->ended, &p->lock, &until);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Lock held. */
static int thread_start(struct crystal_prefetch *p)
{
    int code;

    if (p->has_thread)
        return 0;
    code = crystal_thread_start(&p->thread, thread_main, p);
    p->has_thread = code == 0;
    return code;
}

int crystal_prefetch_add(struct crystal_prefetch *p, uint32_t graph_comm,
                         const uint8_t *is_real, uint32_t nranks,
                         struct crystal_error *err)
{
    uint8_t *copy = malloc(nranks);
    int code;

    if (!copy)
        return crystal_error_set(err, ENOMEM,
                                 "out of memory for reading payload ahead");
    memcpy(copy, is_real, nranks);
    (void)pthread_mutex_lock(&p->lock);
    free(p->is_real[graph_comm]);
    p->is_real[graph_comm] = copy;
    p->restarts = 1;
    code = thread_start(p);
    (void)pthread_mutex_unlock(&p->lock);
    return code ? crystal_error_set(err, code, "cannot start a thread: %s",
                                    strerror(code))
                : 0;
}

/* --- use --- */

static int is_operation(const struct crystal_prefetch *p, uint64_t i,
                        uint32_t graph_comm, uint32_t from, uint64_t seq)
{
    const struct crystal_op *op = &p->ops[i];

    if (op->kind != (from == UINT32_MAX ? CRYSTAL_OP_COLL : CRYSTAL_OP_RECV) ||
        p->seq[i] != seq ||
        crystal_graph_comm_of(p->graph, p->lrank, op->comm) != graph_comm)
        return 0;
    return from == UINT32_MAX ||
           crystal_graph_peer_of(p->graph, p->lrank, op->comm, op->peer) == from;
}

int crystal_prefetch_use(struct crystal_prefetch *p, uint32_t graph_comm, uint32_t from,
                         uint64_t seq)
{
    uint64_t used = atomic_load(&p->used), end = used + SEARCH, i = used;

    end = end < p->count ? end : p->count;
    while (i < end && !is_operation(p, i, graph_comm, from, seq))
        i++;
    if (i >= end)
        return 0; /* used already (its other channels), or not in the recording */
    while (used < i && !atomic_compare_exchange_weak(&p->used, &used, i))
        ;
    return i >= atomic_load(&p->walked);
}

uint64_t crystal_prefetch_walked(struct crystal_prefetch *p, uint64_t *ret_bytes)
{
    uint64_t walked;

    (void)pthread_mutex_lock(&p->lock);
    walked = p->restarts ? 0 : atomic_load(&p->walked);
    *ret_bytes = p->ahead_bytes;
    (void)pthread_mutex_unlock(&p->lock);
    return walked;
}
