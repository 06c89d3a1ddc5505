/* The driver's thread: looks at the board whenever a plugin rings, lets the timeline go
 * on, and publishes what comes out. See driver.h.
 *
 * Virtual ranks run at most LOOKAHEAD_NS into the future, so their arrivals stand on
 * the board long before they are due. The thread sleeps on the board's bell; it wakes
 * by itself only to let virtual ranks go on and to notice that nothing can happen any
 * more.
 */
#include "config.h"

#include "replay/driver_internal.h"

#include "runtime/clock.h"
#include "runtime/log.h"
#include "runtime/thread.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LOOKAHEAD_NS 1000000000U
#define NAP_NS       50000000U    /* between looks when nobody rings */
#define EARLY_NS     100000U      /* a held end is given so long before it comes */
#define QUIET_NS     10000000000U /* nothing can happen any more, at the least */

void dr_fail(struct crystal_driver *d, const struct crystal_error *err)
{
    if (!d->is_failed)
        crystal_board_abort(d->board, "%s", crystal_error_text(err));
    d->is_failed = true;
}

void dr_set_free(struct crystal_driver *d, enum crystal_board_timeline why)
{
    struct crystal_error err = {0};

    if (d->is_free)
        return;
    d->is_free = true;
    atomic_store(&d->head->timeline, why);
    if (d->links) {
        uint32_t word = why;

        crystal_links_tell(d->links, CRYSTAL_LINK_FREE, &word, sizeof word);
    }
    if (why != CRYSTAL_BOARD_STUCK)
        return;
    (void)crystal_timeline_explain(d->timeline, &err);
    crystal_log(CRYSTAL_LOG_WARNING, "timeline",
                "sandbox ranks wait for virtual ranks that never come (%s), letting "
                "them arrive at once from here",
                crystal_error_text(&err));
}

/* Collectives that share NICs end when no arrival can change that any more; all else
 * goes on LOOKAHEAD_NS into the future. */
static int timeline_go_on(struct crystal_driver *d, uint64_t now_ns,
                          struct crystal_error *err)
{
    const uint64_t job_ns = dr_job_ns(d, now_ns);

    crystal_timeline_settle(d->timeline, job_ns + EARLY_NS);
    return crystal_timeline_advance(d->timeline, job_ns + LOOKAHEAD_NS, err);
}

void dr_start_at(struct crystal_driver *d, uint64_t job_ns)
{
    struct crystal_error err = {0};

    if (d->is_started || d->is_failed)
        return;
    d->is_started = true;
    atomic_store(&d->head->timeline, CRYSTAL_BOARD_FOLLOWS);
    if (crystal_timeline_start(d->timeline, job_ns, &err) ||
        timeline_go_on(d, crystal_now_ns(), &err))
        dr_fail(d, &err);
}

void dr_start(struct crystal_driver *d, uint64_t now_ns)
{
    struct crystal_far_start start = {
        dr_job_ns(d, d->setup_end_ns ? d->setup_end_ns : now_ns)};

    if (d->is_started || d->is_failed || d->has_asked)
        return;
    if (crystal_links_node(d->links) > 0) { /* node 0 says when, for all */
        d->has_asked = true;
        crystal_links_send(d->links, 0, CRYSTAL_LINK_START, &start, sizeof start);
        return;
    }
    if (d->links)
        crystal_links_tell(d->links, CRYSTAL_LINK_START, &start, sizeof start);
    dr_start_at(d, start.time_ns);
}

/* All there is to do now. */
static void go_on(struct crystal_driver *d)
{
    struct crystal_error err = {0};
    uint64_t now_ns = crystal_now_ns();
    bool is_new = false, is_newer;

    do {
        is_newer = dr_far_look(d);
        is_newer |= dr_board_look(d, now_ns);
        is_new |= is_newer;
        if (d->is_started && !d->is_free && !d->is_failed &&
            timeline_go_on(d, now_ns, &err))
            dr_fail(d, &err);
    } while (is_newer && !d->is_failed);
    if (is_new || !d->stuck_count)
        d->news_ns = now_ns;
    else if (now_ns - d->news_ns > d->quiet_ns)
        dr_set_free(d, CRYSTAL_BOARD_STUCK);
}

/* Until the next look, where nobody rings. */
static uint64_t nap_ns(struct crystal_driver *d)
{
    uint64_t held_ns = d->is_started && !d->is_free
                           ? crystal_timeline_held_ns(d->timeline)
                           : UINT64_MAX;
    uint64_t settled_ns = dr_job_ns(d, crystal_now_ns()) + EARLY_NS;

    if (held_ns <= settled_ns)
        return 1;
    return held_ns - settled_ns < NAP_NS ? held_ns - settled_ns : NAP_NS;
}

static void *run(void *context)
{
    struct crystal_driver *d = context;
    uint32_t bell = 0;

    d->news_ns = crystal_now_ns();
    while (!atomic_load(&d->stop) && !d->is_failed &&
           !atomic_load_explicit(&d->head->abort_flag, memory_order_acquire)) {
        go_on(d);
        crystal_board_sleep(d->board, &bell, nap_ns(d));
    }
    return NULL;
}

/* --- making --- */

static int open_files(struct crystal_driver *d,
                      const struct crystal_driver_config *config,
                      struct crystal_error *err)
{
    const char *graph_path = config->graph_path, *profile_path = config->profile_path;

    d->graph = crystal_graph_open(graph_path, err);
    if (!d->graph)
        return -EINVAL;
    if (crystal_graph_lrank_count(d->graph) != d->layout->lrank_count ||
        crystal_graph_fingerprint(d->graph) != d->layout->fingerprint)
        return crystal_error_set(
            err, ESTALE,
            "%s: made for another program or layout; run 'scrystal "
            "capture' and 'scrystal graph' again",
            graph_path);
    d->profile = crystal_profile_open(profile_path, err);
    if (!d->profile)
        return -EINVAL;
    d->rep_count = crystal_graph_rep_count(d->graph);
    d->programs = calloc(d->rep_count, sizeof(*d->programs));
    if (!d->programs)
        return crystal_error_set(err, ENOMEM, "out of memory");
    for (uint32_t i = 0; i < d->rep_count; i++) {
        d->programs[i] = crystal_program_create(d->graph, i, err);
        if (!d->programs[i])
            return -EINVAL;
    }
    if (crystal_profile_check(d->profile, d->graph, d->programs, err))
        return -EINVAL;
    crystal_profile_tell(d->profile, d->programs);
    return 0;
}

static int make_timeline(struct crystal_driver *d, struct crystal_error *err)
{
    uint32_t lrank_count = d->layout->lrank_count;
    struct crystal_timeline_config config = {.graph = d->graph,
                                             .programs = d->programs,
                                             .wire = crystal_profile_wire(d->profile),
                                             .nics = CRYSTAL_NICS_OF_ALL,
                                             .context = d,
                                             .on_coll = dr_board_on_coll,
                                             .on_p2p = dr_board_on_p2p};

    d->gaps = calloc(d->rep_count, sizeof(*d->gaps));
    d->is_outside = calloc(lrank_count, 1);
    if (!d->gaps || !d->is_outside)
        return crystal_error_set(err, ENOMEM, "out of memory");
    for (uint32_t i = 0; i < d->rep_count; i++) {
        const struct crystal_profile_op *ops = crystal_profile_ops(d->profile, i);

        d->gaps[i] = malloc((d->programs[i]->instr_count + 1) * sizeof **d->gaps);
        if (!d->gaps[i])
            return crystal_error_set(err, ENOMEM, "out of memory");
        for (uint32_t k = 0; k < d->programs[i]->instr_count; k++)
            d->gaps[i][k] = ops[k].gap_ns;
    }
    for (uint32_t i = 0; i < d->layout->sandbox_count; i++)
        if (d->layout->sandbox[i] < lrank_count)
            d->is_outside[d->layout->sandbox[i]] = 1;
    for (uint32_t r = 0; r < lrank_count; r++) {
        const struct crystal_profile_iteration *it =
            crystal_profile_iteration(d->profile, r);

        if (3 * it->mean_ns > d->quiet_ns)
            d->quiet_ns = 3 * it->mean_ns;
    }
    config.gap_ns = (const uint64_t *const *)d->gaps;
    config.is_outside = d->is_outside;
    config.wire.bytes_per_s = d->head->wire_bytes_per_s;
    config.wire.latency_ns = d->head->wire_latency_ns;
    d->head->message_overhead_ns = config.wire.overhead_ns;
    config.wire.algos = crystal_transfer_algos(getenv("NCCL_ALGO")) &
                        CRYSTAL_TRANSFER_TREE; /* as hostccl */
    config.wire.proto = crystal_transfer_proto(getenv("NCCL_PROTO"));
    d->timeline = crystal_timeline_create(&config, err);
    return d->timeline ? 0 : -EINVAL;
}

struct crystal_driver *crystal_driver_create(const struct crystal_driver_config *config,
                                             struct crystal_error *err)
{
    struct crystal_driver *d = calloc(1, sizeof *d);
    int code;

    if (!d)
        goto err_memory;
    (void)pthread_mutex_init(&d->inbox_lock, NULL); /* cannot fail on Linux */
    d->board = config->board;
    d->head = crystal_board_header(d->board);
    d->layout = config->layout;
    d->links = config->links;
    d->quiet_ns = QUIET_NS;
    d->comms = calloc(d->head->comm_capacity, sizeof *d->comms);
    if (!d->comms)
        goto err_memory;
    if (config->profile_path &&
        (open_files(d, config, err) || dr_far_init(d, err) || make_timeline(d, err)))
        goto err_destroy;
    code = crystal_thread_start(&d->thread, run, d);
    if (code) {
        (void)crystal_error_set(err, code, "timeline: cannot start its thread: %s",
                                strerror(code));
        goto err_destroy;
    }
    d->has_thread = true;
    return d;

err_memory:
    (void)crystal_error_set(err, ENOMEM, "timeline: out of memory");
err_destroy:
    crystal_driver_destroy(d);
    return NULL;
}

void crystal_driver_destroy(struct crystal_driver *d)
{
    if (!d)
        return;
    if (d->has_thread) {
        atomic_store(&d->stop, 1);
        crystal_board_ring(d->board);
        (void)pthread_join(d->thread, NULL);
    }
    dr_board_fini(d);
    dr_far_fini(d);
    (void)pthread_mutex_destroy(&d->inbox_lock);
    crystal_timeline_destroy(d->timeline);
    for (uint32_t i = 0; i < d->rep_count; i++) {
        if (d->programs)
            crystal_program_destroy(d->programs[i]);
        if (d->gaps)
            free(d->gaps[i]);
    }
    free(d->programs);
    free(d->gaps);
    free(d->is_outside);
    crystal_profile_close(d->profile);
    crystal_graph_close(d->graph);
    free(d);
}
