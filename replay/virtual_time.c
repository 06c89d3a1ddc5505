/* The arithmetic of virtual_time.h. */
#include "config.h"

#include "replay/virtual_time.h"

#include <string.h>

#define LONG_AGO (INT64_MIN / 4) /* as a time in ns: decides nothing */

static int is_ring(enum crystal_func func)
{
    return func == CRYSTAL_FUNC_ALLREDUCE || func == CRYSTAL_FUNC_ALLGATHER ||
           func == CRYSTAL_FUNC_REDUCESCATTER;
}

void crystal_vt_path(const struct crystal_ring_op *op, uint32_t crank, uint32_t run,
                     struct crystal_vt_path *ret)
{
    /* how far the root stands before crank: 1 .. n, n = it is crank itself */
    uint32_t root = (crank + 2 * op->nranks - op->root - 1) % op->nranks + 1;
    struct crystal_vt_path path = {.run = run,
                                   .reach = run,
                                   .has_sender = 1,
                                   .is_ring = is_ring(op->func),
                                   .slices = crystal_ring_slices(op),
                                   .steps = 1};

    if (op->func == CRYSTAL_FUNC_ALLREDUCE)
        path.steps = 2 * ((uint64_t)op->nranks - 1);
    else if (path.is_ring)
        path.steps = op->nranks - 1;
    else if (op->func == CRYSTAL_FUNC_BROADCAST &&
             (root <= run || root == op->nranks)) {
        /* the chain begins at the root, which is virtual, or crank itself */
        path.reach = root <= run ? root : 0;
        path.has_sender = 0;
    } else if (op->func == CRYSTAL_FUNC_REDUCE && root <= run + 1) {
        path.reach = root - 1; /* the chain begins behind the root */
        path.has_sender = 0;
    }
    *ret = path;
}

/* Step within the loop, and whether a virtual rank starts the message. */
static uint64_t step_of(const struct crystal_vt_path *path, uint64_t g)
{
    return (g >> (path->slices - 1)) % path->steps; /* slices: 1 or 2 */
}

static int is_started_virtually(const struct crystal_vt_path *path, uint64_t g)
{
    return path->is_ring && step_of(path, g) < path->run;
}

uint64_t crystal_vt_sent_count(const struct crystal_vt_path *path, uint64_t received)
{
    uint64_t delay = path->is_ring ? (uint64_t)path->run * path->slices : 0;

    return path->has_sender && received > delay ? received - delay : 0;
}

void crystal_vt_needs(const struct crystal_vt_path *path, uint64_t g,
                      uint64_t *ret_sent, uint64_t *ret_edge)
{
    uint64_t delay = path->is_ring ? (uint64_t)path->run * path->slices : 0;

    *ret_sent = *ret_edge = CRYSTAL_VT_NONE;
    if (!path->has_sender)
        return;
    if (!is_started_virtually(path, g)) {
        *ret_sent = g - delay;
    } else if (g >= path->steps * path->slices && g % path->slices == 0) {
        *ret_sent = g - delay;
        *ret_edge = g - delay + path->slices - 1;
    }
}

void crystal_vt_init(struct crystal_vt *vt, const struct crystal_vt_path *path,
                     const struct crystal_wire *wire, struct crystal_vt_rank *ranks)
{
    memset(vt, 0, sizeof *vt);
    vt->path = *path;
    vt->wire = wire;
    vt->ranks = ranks;
}

static uint64_t extra_ns(const struct crystal_wire *wire)
{
    return wire->latency_ns + wire->overhead_ns;
}

uint64_t crystal_vt_hop_ns(const struct crystal_wire *wire, uint64_t bytes)
{
    return crystal_wire_occupy_ns(wire, bytes) + extra_ns(wire);
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* A new loop of a ring begins: what did the ranks behind each virtual rank allow in the
 * loop that is over? v[j], ready at A[j], sends its first message of the loop and all
 * that follow; the last one v[m] receives is the second slice of step `steps`-1 at
 * v[m]. It stands behind (steps + m - j) steps of two slices on v[j]'s NIC, its first
 * slice crosses j - m links, and the second follows on the last one: A[j] + (steps + m
 * - j) S + (j - m) h0 + s1  for every j > m
 */
static void loop_begin(struct crystal_vt *vt)
{
    const int64_t h0 = (int64_t)(vt->slice_ns[0] + extra_ns(vt->wire));
    const int64_t both = (int64_t)(vt->slice_ns[0] + vt->slice_ns[1]);
    int64_t most_ns = LONG_AGO;

    for (uint32_t j = vt->path.reach; j-- > 0;) {
        struct crystal_vt_rank *r = &vt->ranks[j];

        r->suffix_ns = most_ns;
        if (r->start_ns > LONG_AGO && r->start_ns + j * (h0 - both) > most_ns)
            most_ns = r->start_ns + j * (h0 - both);
    }
    memcpy(vt->before_ns, vt->slice_ns, sizeof vt->before_ns);
    vt->joined = 0;
    vt->sum_ns = 0;
    vt->best_count = 0;
}

/* When v[m] has received all of the loop before from a. */
static uint64_t loop_received(const struct crystal_vt *vt, uint32_t m,
                              const struct crystal_vt_sent *first,
                              const struct crystal_vt_sent *last)
{
    const uint64_t hops = vt->path.run - m;
    uint64_t last_ns = crystal_wire_occupy_ns(vt->wire, last->bytes);

    return later(last->start_ns + hops * (last_ns + extra_ns(vt->wire)),
                 first->start_ns + hops * crystal_vt_hop_ns(vt->wire, first->bytes) +
                     last_ns);
}

/* When v[m] is ready for the present loop, as far as virtual ranks decide it: when its
 * NIC has sent the loop before, and when the ranks behind it have. */
static int64_t loop_ready(const struct crystal_vt *vt, uint32_t m)
{
    const struct crystal_vt_rank *r = &vt->ranks[m];
    const int64_t h0 = (int64_t)(vt->before_ns[0] + extra_ns(vt->wire));
    const int64_t both = (int64_t)(vt->before_ns[0] + vt->before_ns[1]);
    const int64_t steps_ns = (int64_t)vt->path.steps * both;
    int64_t ready = LONG_AGO;

    if (r->start_ns > LONG_AGO)
        ready = r->start_ns + steps_ns;
    if (r->suffix_ns > LONG_AGO) {
        int64_t behind =
            r->suffix_ns + m * (both - h0) + steps_ns + (int64_t)vt->before_ns[1];

        if (behind > ready)
            ready = behind;
    }
    return ready;
}

/* Lets the virtual ranks in whose first message of the loop is the next one. */
static void join(struct crystal_vt *vt, crystal_vt_arrive_fn arrive, const void *user)
{
    uint64_t upto = vt->path.reach;
    int is_first = !vt->path.is_ring || vt->index < vt->path.steps * vt->path.slices;

    if (vt->path.is_ring && step_of(&vt->path, vt->index) + 1 < upto)
        upto = step_of(&vt->path, vt->index) + 1;
    for (; vt->joined < upto; vt->joined++) {
        struct crystal_vt_rank *r = &vt->ranks[vt->joined];
        uint64_t at = is_first ? arrive(user, vt->joined) : 0;

        if (is_first)
            r->start_ns = at <= 1 ? LONG_AGO : (int64_t)at;
        else
            r->start_ns = loop_ready(vt, vt->joined);
        r->offset_ns =
            r->start_ns > LONG_AGO ? r->start_ns - vt->sum_ns : (int64_t)LONG_AGO;
    }
}

/* The largest offset[j] + (j+1) h over all who have joined. */
static int64_t most(struct crystal_vt *vt, uint64_t occupy_ns)
{
    const int64_t hop_ns = (int64_t)(occupy_ns + extra_ns(vt->wire));
    const unsigned room = sizeof vt->best / sizeof vt->best[0];
    struct crystal_vt_best *b = vt->best;
    unsigned i = 0;

    while (i < vt->best_count && b[i].occupy_ns != occupy_ns)
        i++;
    if (i == vt->best_count) {
        if (vt->best_count < room)
            vt->best_count++;
        else
            i = vt->best_oldest++ % room;
        b[i] = (struct crystal_vt_best){occupy_ns, 0, LONG_AGO};
    }
    for (; b[i].joined < vt->joined; b[i].joined++) {
        int64_t value = vt->ranks[b[i].joined].offset_ns;

        if (value > LONG_AGO) {
            value += (int64_t)(b[i].joined + 1) * hop_ns;
            b[i].most_ns = value > b[i].most_ns ? value : b[i].most_ns;
        }
    }
    return b[i].most_ns;
}

uint64_t crystal_vt_next(struct crystal_vt *vt, uint64_t bytes,
                         crystal_vt_arrive_fn arrive, const void *user,
                         const struct crystal_vt_sent *sent,
                         const struct crystal_vt_sent *edge, uint64_t *ret_free_ns)
{
    const uint64_t occupy_ns = crystal_wire_occupy_ns(vt->wire, bytes);
    const uint64_t hop_ns = occupy_ns + extra_ns(vt->wire);
    const uint64_t step = step_of(&vt->path, vt->index);
    uint64_t free_ns = vt->index ? vt->last_ns + occupy_ns : 0, arrive_ns, hops;
    int64_t held;

    if (vt->path.is_ring && vt->index &&
        vt->index % (vt->path.steps * vt->path.slices) == 0)
        loop_begin(vt);
    join(vt, arrive, user);
    if (edge) { /* v[step] starts it, once it has received what a sent before */
        uint64_t ready_ns = loop_received(vt, (uint32_t)step, sent, edge);
        struct crystal_vt_rank *r = &vt->ranks[step];

        if ((int64_t)ready_ns > r->start_ns) {
            r->start_ns = (int64_t)ready_ns;
            r->offset_ns = r->start_ns - vt->sum_ns;
        }
        free_ns = later(free_ns, ready_ns + (step + 1) * hop_ns);
    } else if (sent) {
        hops = (uint64_t)vt->path.run + 1;
        free_ns = later(free_ns, sent->start_ns + hops * hop_ns);
    }
    held = most(vt, occupy_ns);
    held = held > LONG_AGO ? held + vt->sum_ns : 0;
    arrive_ns = held > 0 ? later(free_ns, (uint64_t)held) : free_ns;
    vt->slice_ns[vt->index % vt->path.slices] = occupy_ns;
    vt->index++;
    vt->sum_ns += (int64_t)occupy_ns;
    vt->last_ns = arrive_ns;
    *ret_free_ns = free_ns;
    return arrive_ns;
}

uint64_t crystal_vt_deliver(const struct crystal_wire *wire, uint64_t arrive_ns,
                            uint64_t posted_ns, uint64_t bytes, uint64_t *link_free_ns)
{
    const uint64_t occupy_ns = crystal_wire_occupy_ns(wire, bytes);
    const uint64_t hop_ns = occupy_ns + extra_ns(wire);
    uint64_t leave_ns = arrive_ns > hop_ns ? arrive_ns - hop_ns : 0;

    leave_ns = later(leave_ns, later(posted_ns, *link_free_ns));
    *link_free_ns = leave_ns + occupy_ns;
    return leave_ns + hop_ns;
}
