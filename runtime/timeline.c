/* The timeline's frame: making and ending it, nodes, and the loop that lets ranks run
 * and ends spread. See timeline.h for the rules.
 *
 * A node is work whose end may not be known yet. When the end becomes known it goes to
 * the nodes that wait for it and to the host that does; a node that waits for nothing
 * any more has arrived: a join ends then, an operation tells its collective or message.
 */
#include "config.h"

#include "runtime/timeline_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SLAB_COUNT 256

/* --- memory --- */

static void *slab(struct crystal_timeline *t, size_t element_bytes)
{
    void *memory;

    if (t->slab_count == t->slab_capacity) {
        size_t capacity = t->slab_capacity ? 2 * t->slab_capacity : 64;
        void **slabs = realloc(t->slabs, capacity * sizeof *slabs);

        if (!slabs)
            return NULL;
        t->slabs = slabs;
        t->slab_capacity = capacity;
    }
    memory = calloc(SLAB_COUNT, element_bytes);
    if (memory)
        t->slabs[t->slab_count++] = memory;
    return memory;
}

struct tl_node *tl_node_new(struct crystal_timeline *t, enum tl_kind kind,
                            struct tl_rank *rank, uint64_t issue_ns)
{
    struct tl_node *node = t->free_nodes;

    if (!node) {
        struct tl_node *more = slab(t, sizeof *more);

        if (!more) {
            t->code = -ENOMEM;
            return NULL;
        }
        for (size_t i = 0; i < SLAB_COUNT; i++) {
            more[i].next = t->free_nodes;
            t->free_nodes = &more[i];
        }
        node = t->free_nodes;
    }
    t->free_nodes = node->next;
    memset(node, 0, sizeof *node);
    node->refs = 1; /* until its end is known */
    node->waits = 1;
    node->kind = kind;
    node->rank = rank;
    node->ready_ns = issue_ns;
    return node;
}

void tl_node_put(struct crystal_timeline *t, struct tl_node *node)
{
    if (!node || --node->refs)
        return;
    node->next = t->free_nodes;
    t->free_nodes = node;
}

void tl_node_set(struct crystal_timeline *t, struct tl_node **place,
                 struct tl_node *node)
{
    if (node)
        node->refs++;
    tl_node_put(t, *place);
    *place = node;
}

static struct tl_edge *edge_new(struct crystal_timeline *t)
{
    struct tl_edge *edge = t->free_edges;

    if (!edge) {
        struct tl_edge *more = slab(t, sizeof *more);

        if (!more) {
            t->code = -ENOMEM;
            return NULL;
        }
        for (size_t i = 0; i < SLAB_COUNT; i++) {
            more[i].next = t->free_edges;
            t->free_edges = &more[i];
        }
        edge = t->free_edges;
    }
    t->free_edges = edge->next;
    return edge;
}

struct tl_message *tl_message_new(struct crystal_timeline *t)
{
    struct tl_message *m = t->free_messages;

    if (!m) {
        struct tl_message *more = slab(t, sizeof *more);

        if (!more) {
            t->code = -ENOMEM;
            return NULL;
        }
        for (size_t i = 0; i < SLAB_COUNT; i++) {
            more[i].next = t->free_messages;
            t->free_messages = &more[i];
        }
        m = t->free_messages;
    }
    t->free_messages = m->next;
    memset(m, 0, sizeof *m);
    return m;
}

/* --- nodes --- */

void tl_node_wait(struct crystal_timeline *t, struct tl_node *node,
                  struct tl_node *other)
{
    struct tl_edge *edge;

    if (!other)
        return;
    if (other->is_ended) {
        if (other->end_ns > node->ready_ns)
            node->ready_ns = other->end_ns;
        return;
    }
    edge = edge_new(t);
    if (!edge)
        return;
    edge->to = node;
    edge->next = other->dependents;
    other->dependents = edge;
    node->waits++;
}

static void arrived(struct crystal_timeline *t, struct tl_node *node)
{
    switch (node->kind) {
    case TL_JOIN:
        tl_node_end(t, node, node->ready_ns);
        break;
    case TL_COLL:
        tl_coll_arrive(t, node->coll, node->crank, node->ready_ns);
        break;
    case TL_SEND:
    case TL_RECV:
        tl_message_arrive(t, node->message, node->kind == TL_SEND, node->ready_ns);
        break;
    }
}

void tl_node_made(struct crystal_timeline *t, struct tl_node *node)
{
    if (--node->waits == 0)
        arrived(t, node);
}

void tl_node_end(struct crystal_timeline *t, struct tl_node *node, uint64_t end_ns)
{
    node->is_ended = true;
    node->end_ns = end_ns;
    node->next = NULL;
    if (t->ended_tail)
        t->ended_tail->next = node;
    else
        t->ended_head = node;
    t->ended_tail = node;
}

/* Hands a known end to everything that waits for it. */
static void spread(struct crystal_timeline *t, struct tl_node *node)
{
    struct tl_edge *edge = node->dependents;

    node->dependents = NULL;
    if (node->kind != TL_JOIN) {
        t->event_count++;
        if (t->config.on_end)
            t->config.on_end(t->config.context, node->rank->lrank, node->iteration,
                             node->instr, node->ready_ns, node->end_ns);
    }
    while (edge) {
        struct tl_edge *next = edge->next;
        struct tl_node *to = edge->to;

        if (node->end_ns > to->ready_ns)
            to->ready_ns = node->end_ns;
        edge->next = t->free_edges;
        t->free_edges = edge;
        if (--to->waits == 0)
            arrived(t, to);
        edge = next;
    }
    if (node->waiter) {
        struct tl_rank *r = node->waiter;

        node->waiter = NULL;
        if (node->end_ns > r->host_ns)
            r->host_ns = node->end_ns;
        tl_node_set(t, &r->awaited, NULL);
        r->pc++;
        r->gap_done = false;
        tl_rank_queue(t, r);
    }
    tl_node_put(t, node); /* the reference until its end is known */
}

static void go_on(struct crystal_timeline *t)
{
    while (!t->code && (t->ended_head || t->run_head)) {
        while (!t->code && t->ended_head) {
            struct tl_node *node = t->ended_head;

            t->ended_head = node->next;
            if (!t->ended_head)
                t->ended_tail = NULL;
            spread(t, node);
        }
        if (!t->code && t->run_head) {
            struct tl_rank *r = t->run_head;

            t->run_head = r->next;
            if (!t->run_head)
                t->run_tail = NULL;
            tl_rank_run(t, r);
        }
    }
}

static int outcome(const struct crystal_timeline *t, struct crystal_error *err)
{
    return t->code ? crystal_error_set(err, -t->code, "timeline: out of memory") : 0;
}

int crystal_timeline_advance(struct crystal_timeline *t, uint64_t until_ns,
                             struct crystal_error *err)
{
    struct tl_rank *r = t->beyond;

    t->until_ns = until_ns;
    t->beyond = NULL;
    while (r) {
        struct tl_rank *next = r->next;

        tl_rank_queue(t, r);
        r = next;
    }
    if (t->is_started)
        go_on(t);
    return outcome(t, err);
}

int crystal_timeline_start(struct crystal_timeline *t, uint64_t now_ns,
                           struct crystal_error *err)
{
    if (t->is_started)
        return crystal_error_set(err, EALREADY, "timeline: started twice");
    t->is_started = true;
    t->start_ns = now_ns;
    for (uint32_t i = 0; i < t->lrank_count; i++)
        if (t->ranks[i].state != TL_OUTSIDE) {
            t->ranks[i].host_ns = t->ranks[i].begin_ns = now_ns;
            tl_rank_queue(t, &t->ranks[i]);
        }
    return outcome(t, err);
}

int crystal_timeline_feed(struct crystal_timeline *t, uint32_t comm, uint64_t seq,
                          uint32_t crank, uint64_t time_ns, struct crystal_error *err)
{
    struct tl_coll *coll;

    if (comm >= t->comm_count || crank >= t->comms[comm].nranks ||
        t->ranks[t->comms[comm].members[crank]].state != TL_OUTSIDE)
        return crystal_error_set(err, EINVAL, "timeline: fed for no outside rank");
    coll = tl_coll_get(t, &t->comms[comm], seq);
    if (coll && !coll->has_arrived[crank])
        tl_coll_arrive(t, coll, crank, time_ns);
    return outcome(t, err);
}

int crystal_timeline_feed_p2p(struct crystal_timeline *t, uint32_t comm, uint32_t from,
                              uint32_t to, uint64_t seq, int outside_sends,
                              uint64_t time_ns, struct crystal_error *err)
{
    struct tl_message *m = NULL;
    struct tl_pair *pair;

    if (comm >= t->comm_count || from >= t->comms[comm].nranks ||
        to >= t->comms[comm].nranks ||
        t->ranks[t->comms[comm].members[outside_sends ? from : to]].state != TL_OUTSIDE)
        return crystal_error_set(err, EINVAL, "timeline: fed for no outside rank");
    pair = tl_pair_get(t, comm, from, to);
    if (pair)
        m = tl_message_get(t, pair, seq);
    if (m && !(outside_sends ? m->has_send : m->has_recv))
        tl_message_arrive(t, m, outside_sends != 0, time_ns);
    return outcome(t, err);
}

uint64_t crystal_timeline_event_count(const struct crystal_timeline *t)
{
    return t->event_count;
}

int crystal_timeline_is_done(const struct crystal_timeline *t)
{
    return t->done_count == t->inside_count;
}

/* --- making --- */

static int rank_init(struct crystal_timeline *t, uint32_t lrank)
{
    struct tl_rank *r = &t->ranks[lrank];
    uint32_t rep = crystal_graph_rep_of(t->config.graph, lrank);
    const struct crystal_program *p = t->config.programs[rep];

    r->lrank = lrank;
    r->state = TL_OUTSIDE;
    r->program = p;
    r->gap_ns = t->config.gap_ns[rep];
    r->tail_ns = t->config.tail_ns ? t->config.tail_ns[rep] : 0;
    if (t->config.is_outside && t->config.is_outside[lrank])
        return 0;
    r->state = TL_RUNS;
    t->inside_count++;
    r->stream_end = calloc(p->stream_count + 1, sizeof *r->stream_end);
    r->comm_end = calloc(p->local_count + 1, sizeof *r->comm_end);
    r->event = calloc(p->event_count + 1, sizeof *r->event);
    r->coll_seq = calloc(p->local_count + 1, sizeof *r->coll_seq);
    r->comm = calloc(p->local_count + 1, sizeof *r->comm);
    r->pair = calloc(p->pair_count + 1, sizeof *r->pair);
    r->pair_seq = calloc(p->pair_count + 1, sizeof *r->pair_seq);
    if (!r->stream_end || !r->comm_end || !r->event || !r->coll_seq || !r->comm ||
        !r->pair || !r->pair_seq)
        return -ENOMEM;
    for (uint32_t i = 0; i < p->local_count; i++) {
        r->comm[i] = &t->comms[crystal_graph_comm_of(t->config.graph, lrank, i)];
        r->coll_seq[i] = p->coll_before[i];
    }
    return 0;
}

static int pairs_init(struct crystal_timeline *t, struct tl_rank *r)
{
    for (uint32_t i = 0; i < r->program->pair_count; i++) {
        const struct crystal_program_pair *pp = &r->program->pairs[i];
        uint32_t peer =
            crystal_graph_peer_of(t->config.graph, r->lrank, pp->local, pp->peer);
        uint32_t comm = r->comm[pp->local]->index;
        uint32_t own = crystal_graph_crank_of(t->config.graph, comm, r->lrank);
        struct tl_pair *pair =
            tl_pair_get(t, comm, pp->is_send ? own : peer, pp->is_send ? peer : own);

        if (!pair)
            return -ENOMEM;
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

static int comms_init(struct crystal_timeline *t, struct crystal_error *err)
{
    uint32_t greatest = 1;

    t->comm_count = crystal_graph_comm_count(t->config.graph);
    t->comms = calloc(t->comm_count + 1, sizeof *t->comms);
    if (!t->comms)
        return crystal_error_set(err, ENOMEM, "timeline: out of memory");
    for (uint32_t i = 0; i < t->comm_count; i++) {
        struct crystal_graph_comm c;

        crystal_graph_comm(t->config.graph, i, &c);
        t->comms[i].index = i;
        t->comms[i].nranks = c.nranks;
        t->comms[i].members = c.members;
        t->comms[i].before = calloc(c.nranks, sizeof *t->comms[i].before);
        if (!t->comms[i].before)
            return crystal_error_set(err, ENOMEM, "timeline: out of memory");
        if (c.nranks > greatest)
            greatest = c.nranks;
    }
    t->ends = malloc(greatest * sizeof *t->ends);
    t->scratch = malloc(2 * (size_t)greatest * sizeof *t->scratch);
    if (!t->ends || !t->scratch)
        return crystal_error_set(err, ENOMEM, "timeline: out of memory");
    return 0;
}

/* Members of a communicator have to do equally many collectives in an iteration. */
static int comms_check(struct crystal_timeline *t, struct crystal_error *err)
{
    const struct crystal_graph *g = t->config.graph;
    uint64_t *each = malloc((t->comm_count + 1) * sizeof *each);
    uint32_t *first = malloc((t->comm_count + 1) * sizeof *first);
    int code =
        each && first ? 0 : crystal_error_set(err, ENOMEM, "timeline: out of memory");

    for (uint32_t i = 0; !code && i < t->comm_count; i++)
        first[i] = UINT32_MAX;
    for (uint32_t r = 0; !code && r < t->lrank_count; r++) {
        const struct crystal_program *p = t->ranks[r].program;

        for (uint32_t i = 0; !code && i < p->local_count; i++) {
            uint32_t c = crystal_graph_comm_of(g, r, i);

            t->comms[c].before[crystal_graph_crank_of(g, c, r)] = p->coll_before[i];
            if (t->ranks[r].state != TL_OUTSIDE)
                t->comms[c].inside_count++;
            if (first[c] == UINT32_MAX) {
                first[c] = r;
                each[c] = p->coll_each[i];
            } else if (each[c] != p->coll_each[i]) {
                struct crystal_graph_comm comm;

                crystal_graph_comm(g, c, &comm);
                code = crystal_error_set(
                    err, EINVAL,
                    "ranks %u and %u do %llu and %llu collectives of communicator %u "
                    "('%s') in an iteration; capture again with more iterations",
                    first[c], r, (unsigned long long)each[c],
                    (unsigned long long)p->coll_each[i], c,
                    comm.name ? comm.name : "in a replica");
            }
        }
    }
    for (uint32_t i = 0; !code && i < t->comm_count; i++) {
        t->comms[i].first = UINT64_MAX;
        for (uint32_t k = 0; k < t->comms[i].nranks; k++)
            if (t->comms[i].before[k] < t->comms[i].first)
                t->comms[i].first = t->comms[i].before[k];
        t->comms[i].end = t->comms[i].first;
    }
    free(each);
    free(first);
    return code;
}

struct crystal_timeline *
crystal_timeline_create(const struct crystal_timeline_config *config,
                        struct crystal_error *err)
{
    struct crystal_timeline *t = calloc(1, sizeof *t);
    int code = 0;

    if (!t)
        goto err_memory;
    t->config = *config;
    if (!t->config.wire.channel_count)
        t->config.wire.channel_count = 1;
    t->lrank_count = crystal_graph_lrank_count(config->graph);
    t->bucket_count = 1024;
    while (t->bucket_count < t->lrank_count)
        t->bucket_count *= 2;
    t->buckets = calloc(t->bucket_count, sizeof *t->buckets);
    t->ranks = calloc(t->lrank_count, sizeof *t->ranks);
    if (!t->buckets || !t->ranks)
        goto err_memory;
    if (comms_init(t, err))
        goto err_destroy;
    for (uint32_t i = 0; !code && i < t->lrank_count; i++)
        code = rank_init(t, i);
    for (uint32_t i = 0; !code && i < t->lrank_count; i++)
        if (t->ranks[i].state != TL_OUTSIDE)
            code = pairs_init(t, &t->ranks[i]);
    if (code)
        goto err_memory;
    if (comms_check(t, err))
        goto err_destroy;
    return t;

err_memory:
    (void)crystal_error_set(err, ENOMEM, "timeline: out of memory");
err_destroy:
    crystal_timeline_destroy(t);
    return NULL;
}

void crystal_timeline_destroy(struct crystal_timeline *t)
{
    if (!t)
        return;
    for (uint32_t i = 0; t->ranks && i < t->lrank_count; i++) {
        struct tl_rank *r = &t->ranks[i];

        free(r->stream_end);
        free(r->comm_end);
        free(r->event);
        free(r->coll_seq);
        free(r->comm);
        free(r->pair);
        free(r->pair_seq);
    }
    for (uint32_t i = 0; t->comms && i < t->comm_count; i++) {
        struct tl_comm *c = &t->comms[i];

        for (uint64_t seq = c->first; c->colls && seq < c->end; seq++)
            tl_coll_free(c->colls[seq % c->capacity]);
        free(c->colls);
        free(c->before);
    }
    for (uint32_t i = 0; t->buckets && i < t->bucket_count; i++)
        while (t->buckets[i]) {
            struct tl_pair *next = t->buckets[i]->next;

            free(t->buckets[i]);
            t->buckets[i] = next;
        }
    for (size_t i = 0; i < t->slab_count; i++)
        free(t->slabs[i]); /* nodes, edges and messages, whoever holds them */
    free(t->slabs);
    free(t->buckets);
    free(t->ranks);
    free(t->comms);
    free(t->ends);
    free(t->scratch);
    free(t);
}
