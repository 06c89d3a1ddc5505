/* Run records -> iterations and operations of a report.
 *
 * An iteration lasts from its first call to the first call of the next one. Where a
 * call is another than expected (report_script.h), the program has left its iterations
 * (it ends, say), and the rest is not counted.
 */
#include "config.h"

#include "replay/report_internal.h"

#include "replay/measure.h"
#include "replay/report_script.h"
#include "replay/run_record.h"
#include "runtime/blockfile.h"
#include "runtime/transfer.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

int rp_samples_add(struct rp_samples *s, uint64_t ns)
{
    if (s->count == s->capacity) {
        size_t capacity = s->capacity ? 2 * s->capacity : 64;
        uint64_t *more = realloc(s->ns, capacity * sizeof *more);

        if (!more)
            return -ENOMEM;
        s->ns = more;
        s->capacity = capacity;
    }
    s->ns[s->count++] = ns;
    return 0;
}

void rp_samples_spread(struct rp_samples *s, struct rp_spread *ret)
{
    uint32_t count = s->count < UINT32_MAX ? (uint32_t)s->count : UINT32_MAX;

    memset(ret, 0, sizeof *ret);
    ret->count =
        crystal_measure_spread(s->ns, count, &ret->mean_ns, &ret->p10_ns, &ret->p90_ns);
    if (ret->count)
        ret->max_ns = s->ns[ret->count - 1]; /* now sorted */
}

static uint32_t nranks_of(const struct report *r, uint32_t lrank, uint32_t local)
{
    struct crystal_graph_comm c;

    crystal_graph_comm(r->graph, crystal_graph_comm_of(r->graph, lrank, local), &c);
    return c.nranks;
}

static uint64_t alone_ns(const struct report *r, uint32_t lrank,
                         const struct crystal_program *p, uint32_t instr,
                         const struct crystal_run_record *rec)
{
    const struct crystal_instr *in = &p->instrs[instr];
    struct crystal_transfer_wire wire = {
        r->wire_bytes_per_s,
        r->wire_latency_ns,
        r->overhead_ns,
        1,
        crystal_profile_head(r->profile)->op_overhead_ns,
        0,
        0,
        CRYSTAL_PROTO_SIMPLE};
    struct crystal_transfer_op op = {.func = in->func,
                                     .nranks = nranks_of(r, lrank, in->local),
                                     .root = in->peer,
                                     .count = in->count,
                                     .way = rec->way,
                                     .elt_bytes =
                                         (uint32_t)crystal_dtype_bytes(in->dtype)};

    if (in->kind == CRYSTAL_OP_SEND)
        return crystal_transfer_send_ns(&wire, rec->bytes);
    if (in->kind == CRYSTAL_OP_RECV)
        return crystal_transfer_recv_ns(&wire, rec->bytes);
    return rec->crank < op.nranks
               ? crystal_transfer_alone_ns(&wire, &op, rec->crank, r->scratch)
               : 0;
}

static int add_event(struct report *r, uint32_t rank, uint64_t iteration,
                     const struct crystal_instr *in, uint64_t plan_ns,
                     const struct crystal_run_record *rec)
{
    uint32_t lrank = r->layout.sandbox[rank];
    struct rp_event event = {.rank = rank,
                             .iteration = (uint32_t)iteration,
                             .comm = crystal_graph_comm_of(r->graph, lrank, in->local),
                             .peer = UINT32_MAX,
                             .kind = in->kind,
                             .func = rec->func,
                             .bytes = rec->bytes,
                             .api_ns = rec->api_ns,
                             .arrive_ns = rec->arrive_ns < rec->end_ns ? rec->arrive_ns
                                                                       : rec->end_ns,
                             .end_ns = rec->end_ns,
                             .virtual_ns = rec->waited_us * UINT64_C(1000),
                             .plan_ns = plan_ns,
                             .waits_for = UINT32_MAX};

    (void)rp_group_name(r, event.comm);
    if (in->kind != CRYSTAL_OP_COLL) {
        struct crystal_graph_comm c;
        uint32_t crank = crystal_graph_peer_of(r->graph, lrank, in->local, in->peer);

        crystal_graph_comm(r->graph, event.comm, &c);
        if (crank < c.nranks)
            event.peer = c.members[crank];
    }
    return rp_events_add(&r->events, &event);
}

static int add_call(struct report *r, uint32_t lrank, const struct rp_script *s,
                    uint32_t instr, const struct crystal_run_record *rec)
{
    const struct crystal_instr *in = &s->program->instrs[instr];
    uint64_t ns = rec->end_ns > rec->arrive_ns ? rec->end_ns - rec->arrive_ns : 0;
    const struct crystal_profile_op *plan =
        &crystal_profile_ops(r->profile, s->program->rep)[instr];
    uint64_t transfer_ns = alone_ns(r, lrank, s->program, instr, rec) + plan->cost_ns;
    uint64_t plan_ns = plan->composed_ns;
    uint64_t virtual_ns = rec->waited_us * UINT64_C(1000);
    bool is_eager =
        in->kind == CRYSTAL_OP_SEND && rec->bytes <= CRYSTAL_TRANSFER_EAGER_BYTES;
    struct rp_group *group;
    struct rp_op *op;
    const char *name =
        rp_group_name(r, crystal_graph_comm_of(r->graph, lrank, in->local));

    op = rp_op_of(r, name, rec->func, rec->bytes);
    group = rp_group_of(r, name, rec->nranks);
    if (!op || !group || rp_samples_add(&op->samples, ns))
        return -ENOMEM;
    if (transfer_ns > ns)
        transfer_ns = ns;
    op->is_eager = is_eager;
    op->plan_ns += plan_ns;
    op->plan_count++;
    op->transfer_ns += transfer_ns;
    op->virtual_wait_ns += virtual_ns;
    op->calls.count++;
    group->calls.count++;
    if (is_eager)
        return 0;
    group->time_ns += ns;
    group->transfer_ns += transfer_ns;
    group->waiting_ns += ns - transfer_ns;
    group->virtual_ns += virtual_ns < ns - transfer_ns ? virtual_ns : ns - transfer_ns;
    group->plan_ns += plan_ns;
    return 0;
}

/* Computation of an iteration and its operations alone, one after the other. */
static uint64_t summed_ns(const struct report *r, uint32_t lrank,
                          const struct rp_script *s,
                          const struct crystal_run_record *begin)
{
    const struct crystal_profile_op *ops =
        crystal_profile_ops(r->profile, s->program->rep);
    uint64_t sum = 0;

    for (uint32_t i = 0; i < s->program->instr_count; i++)
        sum += ops[i].gap_ns;
    for (uint64_t i = 0; i < s->each; i++)
        sum += alone_ns(r, lrank, s->program, s->instrs[i], &begin[i]);
    return sum;
}

static int rank_gather(struct report *r, uint32_t index,
                       struct crystal_run_record *recs, uint64_t count)
{
    struct rp_rank *rank = &r->ranks[index];
    struct rp_samples samples = {0};
    struct rp_reading reading;
    struct rp_script s;
    uint64_t whole, first, sum_ns = 0;
    int code = rp_script_make(r, rank->lrank, &s);

    if (code || !s.each)
        goto out;
    rp_script_read(&s, recs, count, &reading);
    rank->op_count = reading.count;
    rank->left_at = reading.left_at;
    rank->before = reading.before;
    rank->each = s.each;
    /* iterations of which the next one has begun */
    whole =
        rank->left_at > rank->before ? (rank->left_at - rank->before - 1) / s.each : 0;
    first = whole > 1 ? 1 : 0; /* the first is the warm-up */
    for (uint64_t k = 0; !code && k < whole; k++) {
        const struct crystal_run_record *begin = &recs[rank->before + k * s.each];
        uint64_t ns = begin[s.each].api_ns - begin->api_ns;
        struct rp_mark mark = {index, (uint32_t)k, begin->api_ns, begin[s.each].api_ns};

        code = rp_events_mark(&r->events, &mark);
        for (uint64_t i = 0; !code && i < s.each; i++)
            code =
                add_event(r, index, k, &s.program->instrs[s.instrs[i]],
                          crystal_profile_ops(r->profile, s.program->rep)[s.instrs[i]]
                              .composed_ns,
                          &begin[i]);
        if (code || k < first)
            continue;
        code = rp_samples_add(&samples, ns);
        if (!code)
            code = rp_samples_add(&r->iterations, ns);
        sum_ns += summed_ns(r, rank->lrank, &s, begin);
        for (uint64_t i = 0; !code && i < s.each; i++)
            code = add_call(r, rank->lrank, &s, s.instrs[i], &begin[i]);
    }
    if (whole > first)
        rp_groups_rank_done(r, whole - first);
    rp_samples_spread(&samples, &rank->iteration);
    if (samples.count)
        rank->summed_ns = sum_ns / samples.count;
    if (whole - first > r->iteration_count)
        r->iteration_count = whole - first;
out:
    free(samples.ns);
    rp_script_fini(&s);
    return code;
}

static int rank_read(struct report *r, uint32_t index, struct crystal_error *err)
{
    struct rp_rank *rank = &r->ranks[index];
    static const struct crystal_blockfile_kind kind = CRYSTAL_RUN_KIND;
    struct crystal_filehead head;
    char path[PATH_MAX];
    void *records = NULL;
    uint64_t count = 0;
    int code;

    if (snprintf(path, sizeof path, "%s/%s/%u.run", r->job_dir, r->run, rank->lrank) >=
        (int)sizeof path)
        return crystal_error_set(err, ENAMETOOLONG, "%s: path too long", r->job_dir);
    code = crystal_block_read(path, &kind, &head, &records, &count, err);
    if (code == -ENOENT || code == -ENODATA)
        return 0; /* it communicated with nobody, or died before; the text says so */
    if (code)
        return code;
    if (head.lrank != rank->lrank ||
        (head.fingerprint && head.fingerprint != r->layout.fingerprint))
        code =
            crystal_error_set(err, ESTALE,
                              "%s: of another rank, program or layout; run 'scrystal "
                              "emulate' again",
                              path);
    rank->has_run = true;
    if (!code && rank_gather(r, index, records, count))
        code = crystal_error_set(err, ENOMEM, "%s: out of memory", path);
    free(records);
    return code;
}

/* Members of the greatest communicator. */
static size_t greatest(const struct report *r)
{
    struct crystal_graph_comm c;
    size_t most = 1;

    for (uint32_t i = 0; i < crystal_graph_comm_count(r->graph); i++) {
        crystal_graph_comm(r->graph, i, &c);
        most = c.nranks > most ? c.nranks : most;
    }
    return most;
}

int rp_gather(struct report *r, struct crystal_error *err)
{
    uint64_t mean = 0, p10 = 0, p90 = 0;
    int code = 0;

    r->names = calloc(crystal_graph_comm_count(r->graph) + 1, sizeof *r->names);
    r->scratch = calloc(greatest(r), 4 * sizeof *r->scratch);
    if (!r->names || !r->scratch)
        return crystal_error_set(err, ENOMEM, "out of memory");
    for (uint32_t i = 0; !code && i < r->layout.sandbox_count; i++) {
        r->ranks[i].lrank = r->layout.sandbox[i];
        r->ranks[i].plan = *crystal_profile_iteration(r->profile, r->layout.sandbox[i]);
        mean += r->ranks[i].plan.mean_ns;
        p10 += r->ranks[i].plan.p10_ns;
        p90 += r->ranks[i].plan.p90_ns;
        code = rank_read(r, i, err);
    }
    r->plan.mean_ns = mean / r->layout.sandbox_count;
    r->plan.p10_ns = p10 / r->layout.sandbox_count;
    r->plan.p90_ns = p90 / r->layout.sandbox_count;
    rp_groups_average(r);
    rp_events_link(&r->events, r->layout.sandbox);
    return code;
}
