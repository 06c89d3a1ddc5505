/* Durations for a graph. See predict.h. */
#include "config.h"

#include "runtime/predict.h"

#include "runtime/parallel.h"
#include "runtime/profile_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The host's computation before instruction i: from the end of the one before it. */
static uint64_t gap_of(const struct crystal_op *ops, const struct crystal_program *p,
                       uint32_t i)
{
    const struct crystal_op *op = &ops[p->instrs[i].record], *before;
    uint64_t end_ns;

    if (i == 0)
        return 0;
    before = &ops[p->instrs[i - 1].record];
    end_ns = before->t_ns;
    if (before->kind == CRYSTAL_OP_WAIT || before->kind == CRYSTAL_OP_SYNC)
        end_ns = before->value;
    return op->t_ns > end_ns ? op->t_ns - end_ns : 0;
}

static int network_init(struct crystal_predict *p,
                        const struct crystal_profile *profile)
{
    struct crystal_graph_network n;

    if (profile) {
        p->network.wire = p->network.node_wire = crystal_profile_wire(profile);
        return 1;
    }
    if (!crystal_graph_network(p->graph, &n))
        return 0;
    p->network.ranks_per_node = n.ranks_per_node;
    p->network.wire = (struct crystal_transfer_wire){
        .bytes_per_s = n.bytes_per_s, .latency_ns = n.latency_ns, .channel_count = 1};
    p->network.node_wire =
        (struct crystal_transfer_wire){.bytes_per_s = n.node_bytes_per_s,
                                       .latency_ns = n.node_latency_ns,
                                       .channel_count = 1};
    return 1;
}

static int rep_init(struct crystal_predict *p, const struct crystal_profile *profile,
                    uint32_t rep, struct crystal_error *err)
{
    struct crystal_program *program = crystal_program_create(p->graph, rep, err);
    uint64_t op_count;
    const struct crystal_op *ops = crystal_graph_ops(p->graph, rep, &op_count);

    p->programs[rep] = program;
    if (!program)
        return -EINVAL;
    p->gaps[rep] = malloc((program->instr_count + 1) * sizeof **p->gaps);
    if (!p->gaps[rep])
        return crystal_error_set(err, ENOMEM, "out of memory");
    for (uint32_t i = 0; !profile && i < program->instr_count; i++)
        p->gaps[rep][i] = gap_of(ops, program, i);
    return 0;
}

struct reps {
    struct crystal_predict *p;
    const struct crystal_profile *profile;
};

static int reps_init(void *context, uint32_t first, uint32_t end)
{
    const struct reps *reps = context;
    int code = 0;

    for (uint32_t i = first; !code && i < end; i++)
        code = rep_init(reps->p, reps->profile, i, NULL);
    return code;
}

/* The sentence of the first representative that cannot be made. */
static int rep_error(struct crystal_predict *p, const struct crystal_profile *profile,
                     struct crystal_error *err)
{
    int code = 0;

    for (uint32_t i = 0; !code && i < p->rep_count; i++)
        if (!p->programs[i] || !p->gaps[i]) {
            crystal_program_destroy(p->programs[i]);
            code = rep_init(p, profile, i, err);
        }
    return code;
}

int crystal_predict_init(struct crystal_predict *p, const struct crystal_graph *graph,
                         const struct crystal_profile *profile, uint32_t threads,
                         struct crystal_error *err)
{
    struct reps reps = {p, profile};
    int code = 0;

    memset(p, 0, sizeof *p);
    p->graph = graph;
    p->rep_count = crystal_graph_rep_count(graph);
    p->origin = CRYSTAL_ORIGIN_MODELLED;
    p->programs = calloc(p->rep_count, sizeof(struct crystal_program *));
    p->gaps = calloc(p->rep_count, sizeof(uint64_t *));
    if (!p->programs || !p->gaps)
        return crystal_error_set(err, ENOMEM, "out of memory");
    if (!network_init(p, profile))
        return crystal_error_set(err, ENODATA,
                                 "the graph tells no durations; run 'scrystal plan' "
                                 "first, and name its job.profile");
    if (crystal_parallel(threads, p->rep_count, 1, reps_init, &reps))
        code = rep_error(p, profile, err);
    if (code || !profile)
        return code;
    code = crystal_profile_check(profile, graph, p->programs, err);
    if (!code)
        crystal_profile_tell(profile, p->programs);
    p->origin = CRYSTAL_ORIGIN_COMPOSED;
    for (uint32_t i = 0; !code && i < p->rep_count; i++) {
        const struct crystal_profile_op *ops = crystal_profile_ops(profile, i);

        if (crystal_profile_rep(profile, i)->origin != CRYSTAL_ORIGIN_MEASURED)
            p->origin = CRYSTAL_ORIGIN_MODELLED;
        for (uint32_t k = 0; k < p->programs[i]->instr_count; k++)
            p->gaps[i][k] = ops[k].gap_ns;
    }
    return code;
}

void crystal_predict_fini(struct crystal_predict *p)
{
    for (uint32_t i = 0; i < p->rep_count; i++) {
        if (p->programs)
            crystal_program_destroy(p->programs[i]);
        if (p->gaps)
            free(p->gaps[i]);
    }
    free(p->programs);
    free(p->gaps);
}

struct crystal_timeline_config crystal_predict_config(const struct crystal_predict *p)
{
    return (struct crystal_timeline_config){.graph = p->graph,
                                            .programs = p->programs,
                                            .gap_ns = (const uint64_t *const *)p->gaps,
                                            .network = &p->network,
                                            .iterations = 1};
}
