/* See parallel.h. */
#include "config.h"

#include "runtime/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define THREADS_MAX 64U

struct parallel {
    uint32_t count, piece;
    crystal_parallel_fn fn;
    void *context;
    _Atomic uint64_t next;
    _Atomic int code;
};

static void *run(void *argument)
{
    struct parallel *p = argument;

    while (!p->code) {
        uint64_t first = atomic_fetch_add(&p->next, p->piece);
        int code, none = 0;

        if (first >= p->count)
            break;
        code =
            p->fn(p->context, (uint32_t)first,
                  p->count - first < p->piece ? p->count : (uint32_t)first + p->piece);
        if (code)
            (void)atomic_compare_exchange_strong(&p->code, &none, code);
    }
    return NULL;
}

int crystal_parallel(uint32_t threads, uint32_t count, uint32_t piece,
                     crystal_parallel_fn fn, void *context)
{
    struct parallel p = {
        .count = count, .piece = piece ? piece : 1, .fn = fn, .context = context};
    pthread_t others[THREADS_MAX];
    uint32_t started = 0;

    while (started + 1 < threads && started < THREADS_MAX &&
           (uint64_t)(started + 1) * p.piece < count &&
           pthread_create(&others[started], NULL, run, &p) == 0)
        started++;
    (void)run(&p);
    while (started)
        (void)pthread_join(others[--started], NULL); /* it is ours */
    return p.code;
}

uint32_t crystal_parallel_processors(void)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0
               ? (uint32_t)CPU_COUNT(&set)
               : 1;
}
