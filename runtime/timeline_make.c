/* Making and ending a timeline: lists, communicators, ranks, pairs. */
#include "config.h"

#include "runtime/timeline_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define QUEUE_AT_FIRST 32

static int no_memory(struct crystal_error *err)
{
    return tl_error(-ENOMEM, err);
}

static bool is_same(const struct crystal_transfer_wire *a,
                    const struct crystal_transfer_wire *b)
{
    return a->bytes_per_s == b->bytes_per_s && a->latency_ns == b->latency_ns &&
           a->overhead_ns == b->overhead_ns && a->channel_count == b->channel_count &&
           a->op_overhead_ns == b->op_overhead_ns && a->algos == b->algos &&
           a->node_ranks == b->node_ranks && a->proto == b->proto;
}

/* Sets t->code where memory ends or the wire is too slow. */
uint32_t tl_wire(struct crystal_timeline *t, const uint32_t *members, uint32_t nranks)
{
    struct crystal_transfer_wire wire =
        t->config.network ? crystal_network_wire(t->config.network, members, nranks)
                          : t->config.wire;

    if (!wire.channel_count)
        wire.channel_count = 1;
    if (wire.latency_ns > CRYSTAL_TIMELINE_LONGEST_NS ||
        wire.overhead_ns > CRYSTAL_TIMELINE_LONGEST_NS ||
        wire.op_overhead_ns > CRYSTAL_TIMELINE_LONGEST_NS)
        t->code = -ERANGE;
    for (uint32_t i = 0; i < t->wire_count; i++)
        if (is_same(&t->wires[i], &wire))
            return i;
    if (t->wire_count == t->wire_capacity) {
        uint32_t capacity = t->wire_capacity ? 2 * t->wire_capacity : 8;
        struct crystal_transfer_wire *wires =
            realloc(t->wires, capacity * sizeof *wires);
        struct crystal_transfer_plan **plans =
            realloc(t->plans, capacity * sizeof *plans);

        t->wires = wires ? wires : t->wires;
        t->plans = plans ? plans : t->plans;
        if (!wires || !plans) {
            t->code = -ENOMEM;
            return 0;
        }
        t->wire_capacity = capacity;
    }
    t->plans[t->wire_count] = calloc(t->call_count + 1, sizeof **t->plans);
    if (!t->plans[t->wire_count]) {
        t->code = -ENOMEM;
        return 0;
    }
    t->wires[t->wire_count] = wire;
    return t->wire_count++;
}

/* --- communicators --- */

static enum tl_way way_of(const struct crystal_timeline *t, const uint32_t *members,
                          uint32_t nranks)
{
    for (uint32_t i = 0; i < nranks; i++)
        if (!t->ranks_per_node ||
            members[i] / t->ranks_per_node != members[0] / t->ranks_per_node)
            return TL_BETWEEN_NODES;
    return TL_ON_NODE;
}

static int comms_init(struct crystal_timeline *t)
{
    uint32_t greatest = 1;

    t->comm_count = crystal_graph_comm_count(t->config.graph);
    t->comms = calloc(t->comm_count + 1, sizeof *t->comms);
    if (!t->comms)
        return -ENOMEM;
    for (uint32_t i = 0; i < t->comm_count; i++) {
        struct crystal_graph_comm c;

        crystal_graph_comm(t->config.graph, i, &c);
        t->comms[i].index = i;
        t->comms[i].nranks = c.nranks;
        t->comms[i].members = c.members;
        t->comms[i].wire = tl_wire(t, c.members, c.nranks);
        t->comms[i].way = way_of(t, c.members, c.nranks);
        t->comms[i].spare = tl_coll_new(c.nranks);
        if (!t->comms[i].spare)
            return -ENOMEM;
        if (c.nranks > greatest)
            greatest = c.nranks;
    }
    t->ends = malloc(greatest * sizeof *t->ends);
    t->scratch = malloc(2 * (size_t)greatest * sizeof *t->scratch);
    return t->ends && t->scratch ? t->code : -ENOMEM;
}

/* What the ranks say of a communicator, to be compared. */
struct said {
    uint64_t each;
    uint64_t before, before_most; /* least and most */
    uint32_t lrank;               /* who said it first; NONE: nobody */
};

static int differ(const struct crystal_timeline *t, uint32_t c, const struct said *said,
                  uint32_t lrank, uint64_t each, struct crystal_error *err)
{
    struct crystal_graph_comm comm;

    crystal_graph_comm(t->config.graph, c, &comm);
    return crystal_error_set(
        err, EINVAL,
        "ranks %u and %u do %llu and %llu collectives of communicator %u ('%s') in an "
        "iteration; scrystal verify tells where they part, and a capture may need more "
        "iterations",
        said->lrank, lrank, (unsigned long long)said->each, (unsigned long long)each, c,
        comm.name ? comm.name : "in a replica");
}

/* Members of a communicator have to do equally many collectives in an iteration. */
static int comms_compare(struct crystal_timeline *t, struct said *said,
                         struct crystal_error *err)
{
    for (uint32_t i = 0; i < t->comm_count; i++)
        said[i].lrank = TL_NONE;
    for (uint32_t r = 0; r < t->lrank_count; r++) {
        const struct crystal_program *p = t->ranks[r].list->program;

        for (uint32_t i = 0; i < p->local_count; i++) {
            uint32_t c = crystal_graph_comm_of(t->config.graph, r, i);
            struct said *s = &said[c];

            if (t->ranks[r].state != TL_OUTSIDE)
                t->comms[c].inside_count++;
            if (s->lrank == TL_NONE)
                *s = (struct said){p->coll_each[i], p->coll_before[i],
                                   p->coll_before[i], r};
            else if (s->each != p->coll_each[i])
                return differ(t, c, s, r, p->coll_each[i], err);
            if (p->coll_before[i] < s->before)
                s->before = p->coll_before[i];
            if (p->coll_before[i] > s->before_most)
                s->before_most = p->coll_before[i];
        }
    }
    return 0;
}

static int before_init(struct crystal_timeline *t, const struct said *said)
{
    const struct crystal_graph *g = t->config.graph;
    bool is_uneven = false;

    for (uint32_t c = 0; c < t->comm_count; c++) {
        t->comms[c].first = said[c].lrank == TL_NONE ? 0 : said[c].before;
        if (said[c].lrank == TL_NONE || said[c].before == said[c].before_most)
            continue;
        is_uneven = true;
        t->comms[c].before = calloc(t->comms[c].nranks, sizeof *t->comms[c].before);
        if (!t->comms[c].before)
            return -ENOMEM;
    }
    for (uint32_t r = 0; is_uneven && r < t->lrank_count; r++) {
        const struct crystal_program *p = t->ranks[r].list->program;

        for (uint32_t i = 0; i < p->local_count; i++) {
            uint32_t c = crystal_graph_comm_of(g, r, i);

            if (t->comms[c].before)
                t->comms[c].before[crystal_graph_crank_of(g, c, r)] = p->coll_before[i];
        }
    }
    return 0;
}

/* --- ranks --- */

static size_t rank_bytes(const struct tl_list *list)
{
    size_t bytes =
        list->lane_count *
            (sizeof(struct tl_lane) + QUEUE_AT_FIRST * sizeof(struct tl_entry)) +
        list->program->local_count * sizeof(struct tl_local) +
        list->slot_count * sizeof(struct tl_slot) +
        list->program->pair_count * (sizeof(struct tl_pair *) + sizeof(uint64_t));

    return (bytes + 63) & ~(size_t)63;
}

static void *carve(char **at, size_t count, size_t bytes)
{
    void *memory = *at;

    *at += count * bytes;
    return memory;
}

static void rank_init(struct crystal_timeline *t, struct tl_rank *r, char *at)
{
    const struct crystal_program *p = r->list->program;

    r->lanes = carve(&at, r->list->lane_count, sizeof *r->lanes);
    r->locals = carve(&at, p->local_count, sizeof *r->locals);
    r->slots = carve(&at, r->list->slot_count, sizeof *r->slots);
    r->pair = carve(&at, p->pair_count, sizeof(struct tl_pair *));
    r->pair_seq = carve(&at, p->pair_count, sizeof *r->pair_seq);
    for (uint32_t i = 0; i < r->list->lane_count; i++) {
        r->lanes[i].ring = carve(&at, QUEUE_AT_FIRST, sizeof(struct tl_entry));
        r->lanes[i].mask = QUEUE_AT_FIRST - 1;
    }
    for (uint32_t i = 0; i < p->local_count; i++) {
        uint32_t c = crystal_graph_comm_of(t->config.graph, r->lrank, i);

        r->locals[i].comm = &t->comms[c];
        r->locals[i].seq = p->coll_before[i];
        r->locals[i].crank = crystal_graph_crank_of(t->config.graph, c, r->lrank);
    }
}

static int pairs_init(struct crystal_timeline *t, struct tl_rank *r)
{
    for (uint32_t i = 0; i < r->list->program->pair_count; i++) {
        const struct crystal_program_pair *pp = &r->list->program->pairs[i];
        uint32_t peer =
            crystal_graph_peer_of(t->config.graph, r->lrank, pp->local, pp->peer);
        uint32_t comm = r->locals[pp->local].comm->index;
        uint32_t own = r->locals[pp->local].crank;
        struct tl_pair *pair =
            tl_pair_get(t, comm, pp->is_send ? own : peer, pp->is_send ? peer : own);

        if (!pair || t->code)
            return t->code ? t->code : -ENOMEM;
        if ((!pair->send_inside && !pair->recv_inside) || pp->before < pair->first)
            pair->first = pp->before;
        r->pair[i] = pair;
        r->pair_seq[i] = pp->before;
        if (pp->is_send) {
            pair->send_inside = true;
            pair->send_before = pp->before;
        } else {
            pair->recv_inside = true;
            pair->recv_before = pp->before;
        }
    }
    return 0;
}

static uint32_t scale_of(const struct crystal_timeline_config *config, uint32_t lrank)
{
    uint64_t ppm = config->scale_ppm ? config->scale_ppm[lrank] : 1000000;

    if (config->slow_ppm_of_one && lrank == config->slow_lrank)
        ppm += config->slow_ppm_of_one;
    return ppm < UINT32_MAX ? (uint32_t)ppm : UINT32_MAX;
}

static double computation_ns(const struct tl_list *list)
{
    double sum = (double)list->tail_ns;

    for (uint32_t i = 0; i < list->program->instr_count; i++) {
        sum += (double)tl_longest_gap(list, i);
        if (list->program->instrs[i].kind == CRYSTAL_OP_KERNEL)
            sum += (double)list->program->instrs[i].count;
    }
    return sum;
}

/* No clock may wrap around. */
static int computation_check(const struct crystal_timeline *t)
{
    const double most =
        CRYSTAL_TIMELINE_LONGEST_NS / (1 + (double)t->config.jitter_ppm / 1e6);
    uint32_t list = TL_NONE;
    double ns = 0;

    for (uint32_t i = 0; !t->config.is_untimed && i < t->lrank_count; i++) {
        if (crystal_graph_rep_of(t->config.graph, i) != list) {
            list = crystal_graph_rep_of(t->config.graph, i);
            ns = t->lists[list].most_ns;
        }
        if (ns * t->ranks[i].scale_ppm / 1e6 > most)
            return -ERANGE;
    }
    return 0;
}

static uint64_t seed_of(const struct crystal_timeline *t, uint32_t number)
{
    uint64_t seed = (t->config.seed + 1 + number) * UINT64_C(0x9e3779b97f4a7c15);

    return seed ^ seed >> 29;
}

/* Which ranks there are, and room for them. */
static int ranks_make(struct crystal_timeline *t)
{
    size_t bytes = 0;

    t->ranks = calloc(t->lrank_count, sizeof *t->ranks);
    t->beyond_capacity = t->lrank_count;
    t->beyond = malloc(t->lrank_count * sizeof *t->beyond);
    if (!t->ranks || !t->beyond)
        return -ENOMEM;
    for (uint32_t i = 0; i < t->lrank_count; i++) {
        struct tl_list *list = &t->lists[crystal_graph_rep_of(t->config.graph, i)];
        struct tl_rank *r = &t->ranks[i];

        r->lrank = i;
        r->list = list;
        r->scale_ppm = scale_of(&t->config, i);
        r->seed = seed_of(t, i);
        r->draws = seed_of(t, t->config.draws_together ? 0 : list->rank_count++);
        if (t->config.is_outside && t->config.is_outside[i])
            continue; /* OUTSIDE */
        r->state = TL_RUNS;
        t->inside_count++;
        bytes += rank_bytes(r->list);
    }
    t->arena = aligned_alloc(64, bytes + 64);
    if (!t->arena)
        return -ENOMEM;
    memset(t->arena, 0, bytes + 64);
    return 0;
}

int tl_make(struct crystal_timeline *t, struct crystal_error *err)
{
    const struct crystal_graph *g = t->config.graph;
    struct said *said;
    char *at;
    int code = 0;

    t->lrank_count = crystal_graph_lrank_count(g);
    t->list_count = crystal_graph_rep_count(g);
    t->jitter = (int64_t)(((uint64_t)t->config.jitter_ppm << 20) / 1000000);
    t->ranks_per_node = t->config.network ? t->config.network->ranks_per_node : 0;
    t->bucket_count = 1024;
    while (t->bucket_count < t->lrank_count)
        t->bucket_count *= 2;
    t->buckets = calloc(t->bucket_count, sizeof *t->buckets);
    t->lists = calloc(t->list_count, sizeof *t->lists);
    if (!t->buckets || !t->lists)
        return no_memory(err);
    for (uint32_t i = 0; !code && i < t->list_count; i++)
        code = tl_list_init(t, i, err);
    if (code)
        return code;
    for (uint32_t i = 0; t->config.is_outside && i < t->list_count; i++)
        if (tl_list_find_overlap(&t->lists[i]))
            return no_memory(err);
    for (uint32_t i = 0; i < t->list_count; i++)
        t->lists[i].most_ns = computation_ns(&t->lists[i]);
    if (ranks_make(t) || comms_init(t))
        return tl_error(t->code ? t->code : -ENOMEM, err);
    code = computation_check(t);
    if (code)
        return tl_error(code, err);
    said = calloc(t->comm_count + 1, sizeof *said);
    if (!said)
        return no_memory(err);
    code = comms_compare(t, said, err);
    if (!code && before_init(t, said))
        code = no_memory(err);
    free(said);
    at = t->arena;
    for (uint32_t i = 0; !code && i < t->lrank_count; i++) {
        if (t->ranks[i].state == TL_OUTSIDE)
            continue;
        rank_init(t, &t->ranks[i], at);
        at += rank_bytes(t->ranks[i].list);
        code = pairs_init(t, &t->ranks[i]);
        if (code)
            code = tl_error(code, err);
    }
    return code;
}

/* --- end --- */

static void comm_fini(struct tl_comm *c)
{
    for (int i = 0; i < 2; i++)
        for (struct tl_coll *coll = i ? c->spare : c->colls, *next; coll; coll = next) {
            next = coll->next;
            free(coll->flow);
            free(coll);
        }
    for (struct tl_flow *flow = c->flows, *next; flow; flow = next) {
        next = flow->spare;
        free(flow);
    }
    free(c->before);
}

static void buckets_fini(struct crystal_timeline *t)
{
    for (uint32_t i = 0; t->buckets && i < t->bucket_count; i++)
        while (t->buckets[i]) {
            struct tl_pair *pair = t->buckets[i];

            for (uint32_t k = 0; k < pair->capacity; k++)
                if (pair->ring[k].inlet)
                    tl_inlet_put(t, pair->ring[k].inlet);
            t->buckets[i] = pair->next;
            free(pair->ring);
            free(pair);
        }
    free(t->buckets);
}

void tl_unmake(struct crystal_timeline *t)
{
    for (uint32_t i = 0; t->ranks && t->arena && i < t->lrank_count; i++)
        for (uint32_t k = 0; t->ranks[i].lanes && k < t->ranks[i].list->lane_count; k++)
            if (t->ranks[i].lanes[k].owns_ring)
                free(t->ranks[i].lanes[k].ring);
    for (uint32_t i = 0; t->comms && i < t->comm_count; i++)
        comm_fini(&t->comms[i]);
    buckets_fini(t);
    for (uint32_t i = 0; t->ranks && i < t->lrank_count; i++)
        for (int way = 0; way < TL_WAYS; way++)
            free(t->ranks[i].inlets[way]);
    while (t->free_inlets) {
        struct tl_inlet *next = t->free_inlets->next;

        free(t->free_inlets);
        t->free_inlets = next;
    }
    for (uint32_t i = 0; t->lists && i < t->list_count; i++)
        tl_list_fini(&t->lists[i]);
    for (uint32_t i = 0; i < t->wire_count; i++)
        free(t->plans[i]);
    free(t->plans);
    free(t->wires);
    free(t->calls);
    free(t->lists);
    free(t->ranks);
    free(t->beyond);
    free(t->turns);
    free(t->sends);
    free(t->readers);
    free(t->arena);
    free(t->comms);
    free(t->ends);
    free(t->scratch);
}
