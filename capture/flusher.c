/* See flusher.h. */
#include "config.h"

#include "capture/flusher.h"

#include "runtime/clock.h"
#include "runtime/thread.h"

#include <pthread.h>
#include <stdint.h>
#include <time.h>

#define TURN_NS 200000000U

static struct {
    void (*turn)(void); /* constant */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* waits by CLOCK_MONOTONIC */
    int is_due;             /* under the lock */
} flusher = {.lock = PTHREAD_MUTEX_INITIALIZER};

void flusher_hurry(void)
{
    (void)pthread_mutex_lock(&flusher.lock); /* a plain mutex */
    if (!flusher.is_due)
        (void)pthread_cond_signal(&flusher.changed);
    flusher.is_due = 1;
    (void)pthread_mutex_unlock(&flusher.lock);
}

static void wait_until_due(void)
{
    uint64_t until_ns = crystal_now_ns() + TURN_NS;
    const struct timespec until = {(time_t)(until_ns / 1000000000),
                                   (long)(until_ns % 1000000000)};

    (void)pthread_mutex_lock(&flusher.lock);
    while (!flusher.is_due &&
           !pthread_cond_timedwait(&flusher.changed, &flusher.lock, &until))
        ;
    flusher.is_due = 0;
    (void)pthread_mutex_unlock(&flusher.lock);
}

static void *flusher_main(void *unused)
{
    for (;;) {
        wait_until_due();
        flusher.turn();
    }
    return unused;
}

void flusher_start(void (*turn)(void))
{
    pthread_condattr_t monotonic;

    flusher.turn = turn;
    (void)pthread_condattr_init(&monotonic); /* these four cannot fail */
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&flusher.changed, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    (void)crystal_thread_start(NULL, flusher_main, NULL);
}
