/* The watch over ranks before there is a communicator, in all stages: until then nobody
 * else can tell who keeps others waiting in the store.
 *
 * Once a second, while a process waits for a key of the store for a second and more, it
 * looks at the processes of the other ranks on this host. One that has used no CPU for
 * LOOKS_IDLE looks and does not wait in the store itself is told, and ends the stage
 * after hang_ns. Who computes, as an interpreter that loads libraries, is only slow.
 */
#include "config.h"

#include "runtime/clock.h"
#include "runtime/coord_state.h"
#include "runtime/env.h"
#include "runtime/process.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_NS    1000000000U
#define LOOKS_IDLE 2
#define BUSY_TICKS 5U /* of 100 a second: what service threads use is less */
#define KEY_SHOWN  120
#define WAITERS    64 /* more need not be known: one is named */

/* A process that waits in the store. */
struct waiter {
    uint32_t pid;
    char key[KEY_SHOWN];
};

struct waiters {
    struct waiter all[WAITERS];
    uint32_t count;
    uint64_t now_ns;
    int is_late; /* the first one waits long enough */
};

void crystal_coord_early_end(struct crystal_coord *coord)
{
    crystal_timer_stop(&coord->early_timer);
    free(coord->early);
    coord->early = NULL;
    coord->has_id = 0;
}

static void add_waiter(void *context, uint32_t pid, const void *key, size_t key_bytes,
                       uint64_t since_ns)
{
    struct waiters *w = context;
    struct waiter *waiter = &w->all[w->count];
    const char *from = key;
    size_t length = key_bytes < KEY_SHOWN - 1 ? key_bytes : KEY_SHOWN - 1;

    if (!pid || w->count == WAITERS)
        return;
    waiter->pid = pid;
    for (size_t i = 0; i < length; i++)
        waiter->key[i] = from[i] >= ' ' && from[i] <= '~' ? from[i] : '?';
    waiter->key[length] = 0;
    w->is_late |= w->now_ns - since_ns >= LOOK_NS;
    w->count++;
}

/* The process of this rank that waits; NULL: none. */
static const struct waiter *waits(const struct waiters *w, uint32_t lrank)
{
    for (uint32_t i = 0; i < w->count; i++)
        if (crystal_process_is_rank(w->all[i].pid, lrank))
            return &w->all[i];
    return NULL;
}

/* "rank 0 waits in the store for the key 'x'", of any real rank but lrank. */
static int describe(const struct crystal_coord *coord, const struct waiters *w,
                    uint32_t lrank, char *text, size_t text_bytes)
{
    for (uint32_t r = 0; r < coord->config.layout->lrank_count; r++) {
        const struct waiter *waiter =
            coord->is_real[r] && r != lrank ? waits(w, r) : NULL;

        if (!waiter)
            continue;
        (void)snprintf(text, text_bytes,
                       "rank %" PRIu32 " waits in the store for the key '%s'", r,
                       waiter->key);
        return 1;
    }
    return 0;
}

static void judge(struct crystal_coord *coord, const struct waiters *w, uint32_t lrank,
                  uint32_t pid, int is_stopped)
{
    struct crystal_early *early = &coord->early[lrank];
    char text[CRYSTAL_ERROR_TEXT_BYTES], other[KEY_SHOWN + 80];

    if (early->idle_looks < LOOKS_IDLE ||
        !describe(coord, w, lrank, other, sizeof other))
        return;
    if ((uint64_t)early->idle_looks * LOOK_NS >= coord->config.hang_ns) {
        (void)snprintf(text, sizeof text,
                       "coordinator: a rank hangs: rank %" PRIu32 " (pid %" PRIu32
                       ") %s for %" PRIu32 " s; %s",
                       lrank, pid, is_stopped ? "is stopped" : "has used no CPU",
                       early->idle_looks, other);
        crystal_coord_fail(coord, text);
    } else if (!early->is_told) {
        early->is_told = 1;
        (void)snprintf(text, sizeof text, "rank %" PRIu32 " (pid %" PRIu32 ") %s; %s",
                       lrank, pid, crystal_process_idle_text(is_stopped), other);
        crystal_coord_warn(coord, text);
    }
}

static void look_at(struct crystal_coord *coord, const struct waiters *w,
                    const char *setting, uint32_t lrank)
{
    struct crystal_early *early = &coord->early[lrank];
    struct crystal_process_look process;
    uint32_t pid = 0;

    crystal_process_find(setting, lrank, &pid, &process);
    if (!process.state || waits(w, lrank)) {
        *early = (struct crystal_early){0};
        return;
    }
    early->idle_looks =
        early->is_seen && process.cpu_ticks - early->cpu_ticks < BUSY_TICKS
            ? early->idle_looks + 1
            : 0; /* less than before: one of its processes has ended */
    early->cpu_ticks = process.cpu_ticks;
    early->is_seen = 1;
    if (!early->idle_looks)
        early->is_told = 0;
    judge(coord, w, lrank, pid, crystal_process_is_stopped(&process));
}

static void on_early(void *context)
{
    struct crystal_coord *coord = context;
    const uint32_t lrank_count = coord->config.layout->lrank_count;
    struct waiters w = {.now_ns = crystal_now_ns()};
    char setting[PATH_MAX + 40];

    if (coord->failed || coord->finishing || coord->has_id)
        return;
    crystal_timer_start(&coord->early_timer, coord->loop, LOOK_NS, on_early, coord);
    crystal_store_each_waiting(coord->store, add_waiter, &w);
    if (!w.is_late)
        return;
    if (!coord->early)
        coord->early = calloc((size_t)lrank_count + 1, sizeof *coord->early);
    (void)snprintf(setting, sizeof setting, CRYSTAL_ENV_JOB_DIR "=%s",
                   crystal_jobdir_path(coord->config.dir));
    for (uint32_t r = 0; coord->early && r < lrank_count && !coord->failed; r++)
        if (coord->is_real[r])
            look_at(coord, &w, setting, r);
}

void crystal_coord_early(struct crystal_coord *coord)
{
    crystal_timer_start(&coord->early_timer, coord->loop, LOOK_NS, on_early, coord);
}
