/* Running the timeline with what-ifs, and keeping what it says. See predict_run.h. */
#include "config.h"

#include "runtime/predict_run.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static int no_memory(struct crystal_error *err)
{
    return crystal_error_set(err, ENOMEM, "predict: out of memory");
}

void crystal_what_if_init(struct crystal_what_if *w)
{
    memset(w, 0, sizeof *w);
    w->compute_ppm = 1000000;
    w->bytes_per_s = w->latency_ns = UINT64_MAX;
    w->node_bytes_per_s = w->node_latency_ns = UINT64_MAX;
}

/* --- what the timeline tells --- */

static void on_iteration(void *context, uint32_t lrank, uint64_t iteration,
                         uint64_t begin_ns, uint64_t end_ns)
{
    struct crystal_prediction *pr = context;

    (void)iteration, (void)begin_ns;
    pr->end_ns[lrank] = end_ns;
}

static void on_end(void *context, uint32_t lrank, uint64_t iteration, uint32_t instr,
                   uint64_t arrive_ns, uint64_t end_ns)
{
    struct crystal_prediction *pr = context;

    (void)iteration;
    if (end_ns > pr->still_ns)
        pr->still_ns = end_ns;
    if (pr->spans) {
        uint32_t rep = crystal_graph_rep_of(pr->predict->graph, lrank);

        pr->spans[pr->span_first[lrank] + pr->ordinals[rep][instr]] =
            (struct crystal_span){arrive_ns, end_ns};
    }
}

static bool is_comm(uint8_t kind)
{
    return kind == CRYSTAL_OP_COLL || kind == CRYSTAL_OP_SEND ||
           kind == CRYSTAL_OP_RECV;
}

static int spans_init(struct crystal_prediction *pr)
{
    const struct crystal_predict *p = pr->predict;
    uint32_t lrank_count = crystal_graph_lrank_count(p->graph);
    uint32_t *counts = calloc(p->rep_count, sizeof *counts);
    uint64_t sum = 0;

    pr->ordinals = calloc(p->rep_count, sizeof(uint32_t *));
    pr->span_first = malloc(lrank_count * sizeof *pr->span_first);
    if (!counts || !pr->ordinals || !pr->span_first) {
        free(counts);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < p->rep_count; i++) {
        uint32_t count = p->programs[i]->instr_count;

        pr->ordinals[i] = malloc((count + 1) * sizeof **pr->ordinals);
        if (!pr->ordinals[i]) {
            free(counts);
            return -ENOMEM;
        }
        for (uint32_t k = 0; k < count; k++) {
            pr->ordinals[i][k] = counts[i];
            counts[i] += is_comm(p->programs[i]->instrs[k].kind);
        }
    }
    for (uint32_t r = 0; r < lrank_count; r++) {
        pr->span_first[r] = sum;
        sum += counts[crystal_graph_rep_of(p->graph, r)];
    }
    free(counts);
    pr->spans = calloc(sum + 1, sizeof *pr->spans);
    return pr->spans ? 0 : -ENOMEM;
}

/* --- what if --- */

static void network_change(struct crystal_network *n, const struct crystal_what_if *w)
{
    if (w->bytes_per_s != UINT64_MAX)
        n->wire.bytes_per_s = w->bytes_per_s;
    if (w->latency_ns != UINT64_MAX)
        n->wire.latency_ns = w->latency_ns;
    if (w->node_bytes_per_s != UINT64_MAX)
        n->node_wire.bytes_per_s = w->node_bytes_per_s;
    if (w->node_latency_ns != UINT64_MAX)
        n->node_wire.latency_ns = w->node_latency_ns;
    if (w->link_count && !n->ranks_per_node) { /* one wire for all so far */
        n->ranks_per_node = w->ranks_per_node;
        n->node_wire = n->wire;
    }
    n->algos = w->algos;
    n->links = w->links;
    n->link_count = w->link_count;
}

static uint32_t node_size(const struct crystal_predict *p,
                          const struct crystal_what_if *w)
{
    return p->network.ranks_per_node ? p->network.ranks_per_node : w->ranks_per_node;
}

static int links_check(const struct crystal_what_if *w, const struct crystal_predict *p,
                       struct crystal_error *err)
{
    uint32_t size = node_size(p, w), n = crystal_graph_lrank_count(p->graph);
    uint32_t nodes = size ? (n - 1) / size + 1 : 0;

    if (w->link_count && !nodes)
        return crystal_error_set(err, EINVAL,
                                 "--slow-link: the graph does not tell which ranks "
                                 "share a node; name the job with --job, whose "
                                 "layout.yaml does");
    for (uint32_t i = 0; i < w->link_count; i++)
        if (w->links[i].node_a >= nodes || w->links[i].node_b >= nodes)
            return crystal_error_set(err, EINVAL,
                                     "--slow-link=%u:%u: the job has %u nodes, from 0",
                                     w->links[i].node_a, w->links[i].node_b, nodes);
    return 0;
}

static int latency_check(const char *name, uint64_t ns, struct crystal_error *err)
{
    return ns == UINT64_MAX || ns <= CRYSTAL_TIMELINE_LONGEST_NS
               ? 0
               : crystal_error_set(err, EINVAL, "--%s: at most 1e9 s, 31 years", name);
}

int crystal_what_if_check(const struct crystal_what_if *w,
                          const struct crystal_predict *p, struct crystal_error *err)
{
    uint32_t n = crystal_graph_lrank_count(p->graph);

    for (uint32_t i = 0; i < w->slow_count; i++)
        if (w->slow[i].lrank >= n)
            return crystal_error_set(err, EINVAL,
                                     "--slow-rank=%u: the job has %u ranks, from 0",
                                     w->slow[i].lrank, n);
    for (uint32_t i = 0; i < w->dead_count; i++)
        if (w->dead[i] >= n)
            return crystal_error_set(err, EINVAL,
                                     "--dead-rank=%u: the job has %u ranks, from 0",
                                     w->dead[i], n);
    if (latency_check("latency", w->latency_ns, err) ||
        latency_check("node-latency", w->node_latency_ns, err))
        return -EINVAL;
    return links_check(w, p, err);
}

static int run(struct crystal_prediction *pr, const struct crystal_what_if *w,
               struct crystal_error *err)
{
    const struct crystal_predict *p = pr->predict;
    uint32_t n = crystal_graph_lrank_count(p->graph);
    struct crystal_timeline_config config = crystal_predict_config(p);
    struct crystal_network network = p->network;
    uint32_t *scale = malloc(n * sizeof *scale);
    uint8_t *dead = calloc(n, 1);
    int code = scale && dead ? 0 : no_memory(err);

    for (uint32_t i = 0; !code && i < n; i++)
        scale[i] = w->compute_ppm;
    for (uint32_t i = 0; !code && i < w->slow_count; i++) {
        uint64_t ppm = (uint64_t)w->compute_ppm * w->slow[i].ppm / 1000000;

        scale[w->slow[i].lrank] = ppm < UINT32_MAX ? (uint32_t)ppm : UINT32_MAX;
    }
    for (uint32_t i = 0; !code && i < w->dead_count; i++)
        dead[w->dead[i]] = 1;
    network_change(&network, w);
    config.network = &network;
    config.jitter_ppm = w->jitter_ppm;
    config.one_queue = w->one_queue;
    config.nics = w->shared_nics ? CRYSTAL_NICS_OF_ALL : CRYSTAL_NICS_OF_GROUPS;
    config.ignores_algos = w->has_algos;
    config.seed = w->seed;
    config.scale_ppm = scale;
    config.is_outside = w->dead_count ? dead : NULL;
    config.context = pr;
    config.on_iteration = on_iteration;
    config.on_end = on_end;
    if (!code && !(pr->timeline = crystal_timeline_create(&config, err)))
        code = -EINVAL;
    if (!code)
        code = crystal_timeline_start(pr->timeline, 0, err);
    if (!code)
        code = crystal_timeline_advance(pr->timeline, UINT64_MAX, err);
    free(scale);
    free(dead);
    return code;
}

struct crystal_prediction *crystal_predict_run(const struct crystal_predict *p,
                                               const struct crystal_what_if *what,
                                               int with_spans,
                                               struct crystal_error *err)
{
    uint32_t n = crystal_graph_lrank_count(p->graph);
    struct crystal_prediction *pr;

    if (crystal_what_if_check(what, p, err))
        return NULL;
    pr = calloc(1, sizeof *pr);
    if (!pr || !(pr->end_ns = calloc(n, sizeof *pr->end_ns)))
        goto err_memory;
    pr->predict = p;
    if (with_spans && spans_init(pr))
        goto err_memory;
    if (run(pr, what, err)) {
        crystal_prediction_destroy(pr);
        return NULL;
    }
    for (uint32_t r = 0; r < n; r++) {
        pr->stuck_count += !pr->end_ns[r];
        if (pr->end_ns[r] > pr->iteration_ns) {
            pr->iteration_ns = pr->end_ns[r];
            pr->last_lrank = r;
        }
    }
    pr->operation_count = crystal_timeline_event_count(pr->timeline);
    return pr;

err_memory:
    crystal_prediction_destroy(pr);
    (void)no_memory(err);
    return NULL;
}

void crystal_prediction_destroy(struct crystal_prediction *pr)
{
    if (!pr)
        return;
    for (uint32_t i = 0; pr->ordinals && i < pr->predict->rep_count; i++)
        free(pr->ordinals[i]);
    free(pr->ordinals);
    free(pr->span_first);
    free(pr->spans);
    free(pr->end_ns);
    crystal_timeline_destroy(pr->timeline);
    free(pr);
}

/* --- walks --- */

struct own {
    const struct crystal_span *spans;
    const uint32_t *ordinals;
};

static uint64_t own_end(void *context, uint32_t instr)
{
    const struct own *own = context;

    return own->spans[own->ordinals[instr]].end_ns;
}

int crystal_prediction_walk(const struct crystal_prediction *pr, uint32_t lrank,
                            int with_host, struct crystal_walk *walk)
{
    struct own own = {pr->spans + pr->span_first[lrank],
                      pr->ordinals[crystal_graph_rep_of(pr->predict->graph, lrank)]};

    return crystal_timeline_walk(pr->timeline, lrank, 0, with_host, own_end, &own,
                                 walk);
}
