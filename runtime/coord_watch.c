/* Capture's watch: live ranks that wait for what never comes.
 *
 * Every WATCH_NS it looks at each live rank. It waits where it says so (WAITING, a
 * communicator that is not complete), or where its process waits for a key of the store
 * and its main thread sleeps. Processes that wait in the store before they have joined
 * count for ranks that have not.
 *   - All of them wait, and no rank has sent anything for STUCK_NS: nothing will ever
 *     happen; the stage ends.
 *   - Some wait, and the others send nothing for SILENT_NS: that is told; these may
 *     compute, so next time it takes twice as long to be told. When they have used no
 * CPU for IDLE_NS more that is a warning, and the stage ends after hang_ns of it. What
 * each rank does then goes to DIR/diagnosis.txt, also after a mismatch.
 */
#include "config.h"

#include "runtime/clock.h"
#include "runtime/coord_state.h"

#include "runtime/log.h"
#include "runtime/process.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WATCH_NS        250000000U
#define STUCK_NS        1000000000U
#define SILENT_NS       UINT64_C(2000000000)
#define IDLE_NS         UINT64_C(3000000000)
#define TOLD_MAX        6 /* then every two minutes at most */
#define HANG_NS_DEFAULT UINT64_C(600000000000)
#define KEY_SHOWN       160

/* What a look has found of one live rank. */
struct look {
    uint32_t lrank, pid;
    enum crystal_exchange_state state; /* WAITS also for the store */
    int waits_in_store;
    char key[KEY_SHOWN];
};

struct watch_look {
    const struct crystal_coord *coord;
    struct look *ranks; /* by index in layout->live */
    uint32_t count;
    uint32_t strangers;      /* processes in the store that are no rank that is known */
    uint32_t absent_waiting; /* ranks that wait there before their first call */
};

void crystal_coord_watch_end(struct crystal_coord *coord)
{
    crystal_timer_stop(&coord->watch_timer);
    for (uint32_t i = 0; coord->watch.maps && i < coord->config.layout->lrank_count;
         i++)
        free(coord->watch.maps[i]);
    free(coord->watch.maps);
    coord->watch = (struct crystal_watch_state){0};
}

/* --- looking --- */

static void key_text(const void *key, size_t key_bytes, char *text)
{
    const char *from = key;
    size_t length = key_bytes < KEY_SHOWN - 1 ? key_bytes : KEY_SHOWN - 1;

    for (size_t i = 0; i < length; i++)
        text[i] = from[i] >= ' ' && from[i] <= '~' ? from[i] : '?';
    text[length] = 0;
}

/* The rank that this process is, as it has said or, before its first call, as its
 * environment says where it runs here; NULL: not known. */
static struct look *rank_of(struct watch_look *w, uint32_t pid)
{
    for (uint32_t i = 0; i < w->count; i++)
        if (w->ranks[i].pid == pid)
            return &w->ranks[i];
    for (uint32_t i = 0; i < w->count; i++)
        if (w->ranks[i].state == CRYSTAL_EXCHANGE_ABSENT && !w->ranks[i].pid &&
            crystal_process_is_rank(pid, w->ranks[i].lrank)) {
            w->ranks[i].pid = pid;
            return &w->ranks[i];
        }
    return NULL;
}

static void store_waits(void *context, uint32_t pid, const void *key, size_t key_bytes,
                        uint64_t since_ns)
{
    struct watch_look *w = context;
    struct crystal_process_look process;
    struct look *r;

    (void)since_ns;
    r = pid ? rank_of(w, pid) : NULL;
    if (!r) {
        w->strangers += pid != 0; /* a process has one connection in its main thread */
        return;
    }
    /* another thread may wait while the main one works */
    if ((r->state != CRYSTAL_EXCHANGE_RUNS && r->state != CRYSTAL_EXCHANGE_ABSENT) ||
        r->waits_in_store ||
        (crystal_process_is_rank(pid, r->lrank) &&
         (crystal_process_look(pid, &process) || process.state != 'S')))
        return;
    if (r->state == CRYSTAL_EXCHANGE_RUNS)
        r->state = CRYSTAL_EXCHANGE_WAITS;
    else
        w->absent_waiting++;
    r->waits_in_store = 1;
    key_text(key, key_bytes, r->key);
}

static int look(const struct crystal_coord *coord, struct watch_look *w)
{
    const struct crystal_layout *layout = &coord->exchange_layout;

    *w = (struct watch_look){.coord = coord, .count = layout->live_count};
    w->ranks = calloc(w->count ? w->count : 1, sizeof *w->ranks);
    if (!w->ranks)
        return -ENOMEM;
    for (uint32_t i = 0; i < w->count; i++) {
        const struct client *c = crystal_coord_rank(coord, layout->live[i]);

        w->ranks[i].lrank = layout->live[i];
        w->ranks[i].pid = c ? c->pid : 0;
        w->ranks[i].state = crystal_exchange_state(coord->exchange, layout->live[i]);
    }
    crystal_store_each_waiting(coord->store, store_waits, w);
    return 0;
}

static uint32_t count_of(const struct watch_look *w, enum crystal_exchange_state state)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < w->count; i++)
        count += w->ranks[i].state == state;
    return count;
}

/* --- telling --- */

static void describe(const struct watch_look *w, const struct look *r, char *text,
                     size_t text_bytes)
{
    struct crystal_process_look process;
    size_t used;

    if (r->waits_in_store)
        (void)snprintf(text, text_bytes, "waits in the store for the key '%s'", r->key);
    else if (r->state == CRYSTAL_EXCHANGE_ABSENT)
        (void)snprintf(text, text_bytes, "has made no NCCL call yet");
    else if (r->state == CRYSTAL_EXCHANGE_LEFT)
        (void)snprintf(text, text_bytes, "has ended");
    else
        crystal_exchange_describe(w->coord->exchange, r->lrank, text, text_bytes);
    if (r->state != CRYSTAL_EXCHANGE_RUNS ||
        !crystal_process_is_rank(r->pid, r->lrank) ||
        crystal_process_look(r->pid, &process))
        return;
    used = strlen(text);
    (void)snprintf(text + used, text_bytes - used, "%s",
                   crystal_process_is_stopped(&process)
                       ? ", stopped by a signal or debugger"
                   : process.state == 'R' ? ", running"
                                          : ", asleep");
}

static void unreceived_print(void *context, const char *text)
{
    fprintf(context, "%s\n", text);
}

/* The page; its path where it was written, "" else. */
static void page_write(struct crystal_coord *coord, const struct watch_look *w,
                       const char *sentence, char *path, size_t path_bytes)
{
    char text[CRYSTAL_ERROR_TEXT_BYTES];
    FILE *out;
    int failed;

    if (crystal_jobdir_file(coord->config.dir, path, path_bytes, NULL,
                            "diagnosis.txt") < 0 ||
        !(out = fopen(path, "we"))) {
        path[0] = 0;
        return;
    }
    fprintf(out, "%s\n\n", sentence);
    for (uint32_t i = 0; i < w->count; i++) {
        describe(w, &w->ranks[i], text, sizeof text);
        fprintf(out, "rank %" PRIu32, w->ranks[i].lrank);
        if (w->ranks[i].pid)
            fprintf(out, " (pid %" PRIu32 ")", w->ranks[i].pid);
        fprintf(out, " %s\n", text);
    }
    fprintf(out, "\n");
    crystal_exchange_each_unreceived(coord->exchange, unreceived_print, out);
    failed = ferror(out);
    if (fclose(out) != 0 || failed)
        path[0] = 0;
}

void crystal_coord_diagnose(struct crystal_coord *coord,
                            const struct crystal_error *err)
{
    char sentence[CRYSTAL_ERROR_TEXT_BYTES], path[PATH_MAX] = "";
    struct watch_look w;

    if (!coord->failed && look(coord, &w) == 0) {
        page_write(coord, &w, crystal_error_text(err), path, sizeof path);
        free(w.ranks);
    }
    (void)snprintf(sentence, sizeof sentence, "%.400s%s%s", crystal_error_text(err),
                   path[0] ? "; every rank: " : "", path);
    crystal_coord_fail(coord, sentence);
}

/* Two ranks in that state and what they do, those that wait for a key of the store
 * first, then how many more there are. */
static void summary(const struct watch_look *w, enum crystal_exchange_state state,
                    char *text, size_t text_bytes)
{
    char one[220];
    uint32_t shown = 0, more = 0;

    text[0] = 0;
    for (uint32_t k = 0; k < 2 * w->count; k++) {
        const struct look *r = &w->ranks[k % w->count];
        size_t used = strlen(text);

        if (r->state != state || r->waits_in_store != (k < w->count))
            continue;
        if (shown == 2) {
            more++;
            continue;
        }
        describe(w, r, one, sizeof one);
        (void)snprintf(text + used, text_bytes - used, "%srank %" PRIu32 " %s",
                       shown++ ? "; " : "", r->lrank, one);
    }
    if (more)
        (void)snprintf(text + strlen(text), text_bytes - strlen(text),
                       "; and %" PRIu32 " more rank%s", more, more == 1 ? "" : "s");
}

static void stuck(struct crystal_coord *coord, const struct watch_look *w)
{
    const char *range = coord->config.layout->iteration_range;
    struct crystal_error err = {0};
    char all[CRYSTAL_ERROR_TEXT_BYTES];
    int is_ended;

    summary(w,
            count_of(w, CRYSTAL_EXCHANGE_WAITS) ? CRYSTAL_EXCHANGE_WAITS
                                                : CRYSTAL_EXCHANGE_ABSENT,
            all, sizeof all);
    is_ended = range && strstr(all, "which has ended");
    (void)crystal_error_set(
        &err, EDEADLK, "coordinator: the live ranks wait for ever: %s%s%.64s%s", all,
        is_ended ? "; all ranks have to begin the NVTX range '" : "",
        is_ended ? range : "", is_ended ? "' (capture.iteration_range) as often" : "");
    crystal_coord_diagnose(coord, &err);
}

/* --- hanging --- */

/* CPU time of all ranks that do not wait; UINT64_MAX where one of them is not here. */
static uint64_t cpu_ticks(const struct watch_look *w)
{
    struct crystal_process_look process;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < w->count; i++) {
        const struct look *r = &w->ranks[i];

        if (r->state != CRYSTAL_EXCHANGE_RUNS)
            continue;
        if (!crystal_process_is_rank(r->pid, r->lrank) ||
            crystal_process_look(r->pid, &process))
            return UINT64_MAX;
        sum += process.cpu_ticks;
    }
    return sum;
}

/* The first rank that the others wait for, in the words of plan and emulate. None of
 * those has used any CPU for IDLE_NS. */
static void warn(struct crystal_coord *coord, const struct watch_look *w,
                 const char *waiting)
{
    struct crystal_process_look process;
    char text[CRYSTAL_ERROR_TEXT_BYTES];
    uint32_t i = 0;

    while (i < w->count && w->ranks[i].state != CRYSTAL_EXCHANGE_RUNS)
        i++;
    if (i == w->count || crystal_process_look(w->ranks[i].pid, &process))
        return;
    (void)snprintf(text, sizeof text, "rank %" PRIu32 " (pid %" PRIu32 ") %s; %.400s",
                   w->ranks[i].lrank, w->ranks[i].pid,
                   crystal_process_idle_text(crystal_process_is_stopped(&process)),
                   waiting);
    crystal_coord_warn(coord, text);
}

static void silent(struct crystal_coord *coord, const struct watch_look *w,
                   uint64_t silent_ns)
{
    struct crystal_watch_state *state = &coord->watch;
    enum crystal_exchange_state missing = count_of(w, CRYSTAL_EXCHANGE_RUNS)
                                              ? CRYSTAL_EXCHANGE_RUNS
                                              : CRYSTAL_EXCHANGE_ABSENT;
    struct crystal_error err = {0};
    char late[CRYSTAL_ERROR_TEXT_BYTES], waiting[CRYSTAL_ERROR_TEXT_BYTES];
    char text[2 * CRYSTAL_ERROR_TEXT_BYTES + 64];
    uint64_t ticks = cpu_ticks(w);

    summary(w, missing, late, sizeof late);
    summary(w, CRYSTAL_EXCHANGE_WAITS, waiting, sizeof waiting);
    if (!state->is_told) {
        state->is_told = 1;
        state->told_count += state->told_count < TOLD_MAX;
        state->cpu_ticks = ticks;
        state->cpu_since_ns = crystal_now_ns();
        (void)snprintf(
            text, sizeof text,
            "nothing has come for %u s (no error while a rank computes); %s; meanwhile "
            "%s",
            (unsigned)(silent_ns / 1000000000U), late, waiting);
        crystal_coord_notice(coord, text);
    }
    if (ticks == UINT64_MAX || ticks > state->cpu_ticks + 1) { /* it computes */
        state->cpu_ticks = ticks;
        state->cpu_since_ns = crystal_now_ns();
    }
    if (!state->is_warned && crystal_now_ns() - state->cpu_since_ns >= IDLE_NS) {
        state->is_warned = 1;
        warn(coord, w, waiting);
    }
    if (crystal_now_ns() - state->cpu_since_ns < coord->config.hang_ns)
        return;
    (void)crystal_error_set(&err, ETIMEDOUT,
                            "coordinator: a rank hangs: %.200s; meanwhile %.200s", late,
                            waiting);
    crystal_coord_diagnose(coord, &err);
}

static void on_watch(void *context)
{
    struct crystal_coord *coord = context;
    uint64_t idle_ns = crystal_now_ns() - coord->watch.active_ns;
    struct watch_look w;
    uint32_t waiting;

    if (coord->failed || !coord->exchange)
        return;
    crystal_timer_start(&coord->watch_timer, coord->loop, WATCH_NS, on_watch, coord);
    if (idle_ns < STUCK_NS || look(coord, &w))
        return;
    waiting = count_of(&w, CRYSTAL_EXCHANGE_WAITS);
    if (waiting || w.absent_waiting) {
        if (!count_of(&w, CRYSTAL_EXCHANGE_RUNS) &&
            count_of(&w, CRYSTAL_EXCHANGE_ABSENT) <= w.strangers + w.absent_waiting)
            stuck(coord, &w);
        else if (!waiting)
            ; /* they may still be starting */
        else if (coord->watch.is_told || idle_ns >= SILENT_NS
                                                        << coord->watch.told_count)
            silent(coord, &w, idle_ns);
    }
    free(w.ranks);
}

void crystal_coord_watch(struct crystal_coord *coord)
{
    coord->watch.active_ns = crystal_now_ns();
    coord->watch.is_told = coord->watch.is_warned = 0;
    if (coord->exchange && !coord->watch_timer.loop)
        crystal_timer_start(&coord->watch_timer, coord->loop, WATCH_NS, on_watch,
                            coord);
}

uint64_t crystal_coord_hang_ns(const char *seconds)
{
    char *end;
    unsigned long long value = seconds ? strtoull(seconds, &end, 10) : 0;

    return seconds && *seconds && !*end && value > 0 && value < UINT32_MAX
               ? value * 1000000000U
               : HANG_NS_DEFAULT;
}
