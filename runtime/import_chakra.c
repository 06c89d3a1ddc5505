/* Reading a Chakra execution trace: a stream of protobuf messages, of which the first
 * is about the trace and each other one a node of a graph: what, how long, behind which
 * other nodes. The numbers are those of schema/protobuf/et_def.proto of
 * github.com/mlcommons/chakra.
 *
 * The format tells no order but that of dependencies: a node begins when the last one
 * that it is behind has ended, however many are under way. It becomes work of a stream.
 * Streams are chains of nodes that depend on each other anyway, so they add no order of
 * their own; where a trace has more chains than IMPORT_STREAMS_MAX, a stream is given
 * on to a node that begins when all on it have ended, so they add none either as long
 * as no more nodes are under way at once. A node behind a node of another stream waits
 * for an event that is recorded there. The host issues all at once. Of PyTorch's
 * communication there are two nodes, the host's call (is_cpu_op) and behind it the
 * kernel, which communicates. A converter's control dependencies name who has called a
 * node, which may end behind it, so Chakra's own feeder leaves them out; here they
 * count where a trace has no data dependencies.
 */
#include "config.h"

#include "runtime/import_trace.h"

#include "runtime/nccl_abi.h"
#include "runtime/protobuf_reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum field { /* of Node, and of AttributeProto from ATTR_NAME on */
             ID = 1,
             NAME = 2,
             TYPE = 3,
             CTRL_DEPS = 4,
             DATA_DEPS = 5,
             DURATION = 7,
             ATTR = 10,
             ATTR_NAME = 1,
             ATTR_STRING = 29
};
enum type { COMM_SEND = 5, COMM_RECV = 6, COMM_COLL = 7 };

#define US_MAX UINT64_C(86400000000) /* a day; a longer node is none */

struct node {
    uint64_t id, type, us;
    uint64_t comm_type, comm_size, src, dst, tag;
    bool is_host; /* what the host did to start it: no communication itself */
    bool has_comm_type;
    struct crystal_protobuf name, group;
    size_t dep_first, dep_count; /* in deps: first ids, then indices of nodes */
    uint32_t missing;            /* of them that are not placed yet */
    uint32_t stream;             /* NONE: not placed */
    uint64_t begin_us, end_us;   /* at the earliest, if communication took no time */
    bool is_recorded;            /* as an event, since another stream waits for it */
};

struct turn { /* of a node to be placed */
    uint64_t begin_us;
    uint32_t nth, node; /* nth in the order of the file, as far as it goes */
};

struct dep {
    uint64_t id; /* first of a node, then its index */
    bool is_ctrl;
};

struct chakra {
    struct node *nodes;
    size_t count, capacity;
    struct dep *deps;
    size_t dep_count, dep_capacity;
    bool has_data_deps;
    uint32_t *places; /* of ids, open addressing: 1 + index, 0: free */
    size_t mask;
    uint32_t *ready; /* heap by index: the order of the file as far as it goes */
    size_t ready_count;
    struct turn *turns;
    uint32_t last[IMPORT_STREAMS_MAX]; /* node of each stream */
    uint32_t stream_count;
};

/* --- messages --- */

static bool is_text(struct crystal_protobuf p, const char *text)
{
    return (size_t)(p.end - p.at) == strlen(text) &&
           memcmp(p.at, text, strlen(text)) == 0;
}

static int attribute_read(struct node *n, struct crystal_protobuf m)
{
    struct crystal_protobuf name = {NULL, NULL}, text = {NULL, NULL};
    struct crystal_protobuf_field f;
    uint64_t value = 0;
    int code;

    while ((code = crystal_protobuf_next(&m, &f)) == 1) {
        if (f.number == ATTR_NAME && f.kind == CRYSTAL_PROTOBUF_BYTES)
            name = f.bytes;
        else if (f.number == ATTR_STRING && f.kind == CRYSTAL_PROTOBUF_BYTES)
            text = f.bytes;
        else if (f.kind == CRYSTAL_PROTOBUF_VARINT)
            value = f.number == 15 || f.number == 17 /* sint: zigzag */
                        ? f.value >> 1 ^ (0 - (f.value & 1))
                        : f.value;
        else if (f.kind != CRYSTAL_PROTOBUF_BYTES && f.number >= 19 && f.number <= 25)
            value = f.value; /* fixed */
    }
    if (code || !name.at)
        return code;
    if (is_text(name, "comm_type")) {
        n->comm_type = value;
        n->has_comm_type = true;
    } else if (is_text(name, "is_cpu_op")) {
        n->is_host = value != 0;
    } else if (is_text(name, "comm_size")) {
        n->comm_size = value;
    } else if (is_text(name, "comm_src")) {
        n->src = value;
    } else if (is_text(name, "comm_dst")) {
        n->dst = value;
    } else if (is_text(name, "comm_tag")) {
        n->tag = value;
    } else if (is_text(name, "pg_name")) {
        n->group = text;
    }
    return 0;
}

static int dep_add(struct chakra *c, struct node *n, struct dep dep)
{
    if (c->dep_count == c->dep_capacity) {
        size_t capacity = c->dep_capacity ? 2 * c->dep_capacity : 1024;
        struct dep *more = realloc(c->deps, capacity * sizeof *more);

        if (!more)
            return -ENOMEM;
        c->deps = more;
        c->dep_capacity = capacity;
    }
    c->deps[c->dep_count++] = dep;
    n->dep_count++;
    return 0;
}

/* One id, or packed ones. */
static int deps_read(struct chakra *c, struct node *n, struct crystal_protobuf_field *f)
{
    struct dep dep = {.is_ctrl = f->number == CTRL_DEPS};
    int code;

    c->has_data_deps |= !dep.is_ctrl;
    if (f->kind == CRYSTAL_PROTOBUF_VARINT) {
        dep.id = f->value;
        return dep_add(c, n, dep);
    }
    if (f->kind != CRYSTAL_PROTOBUF_BYTES)
        return -EINVAL;
    while ((code = crystal_protobuf_varint(&f->bytes, &dep.id)) == 1)
        if ((code = dep_add(c, n, dep)))
            break;
    return code;
}

static int node_read(struct chakra *c, struct crystal_protobuf m)
{
    struct node n = {.dep_first = c->dep_count, .stream = IMPORT_NONE};
    struct crystal_protobuf_field f;
    int code = 0;

    while (!code && (code = crystal_protobuf_next(&m, &f)) == 1) {
        bool is_number = f.kind == CRYSTAL_PROTOBUF_VARINT;

        code = 0;
        if (f.number == CTRL_DEPS || f.number == DATA_DEPS)
            code = deps_read(c, &n, &f);
        else if (f.number == ATTR && f.kind == CRYSTAL_PROTOBUF_BYTES)
            code = attribute_read(&n, f.bytes);
        else if (f.number == NAME && f.kind == CRYSTAL_PROTOBUF_BYTES)
            n.name = f.bytes;
        else if (f.number == ID && is_number)
            n.id = f.value;
        else if (f.number == TYPE && is_number)
            n.type = f.value;
        else if (f.number == DURATION && is_number)
            n.us = f.value;
    }
    if (code || n.us > US_MAX)
        return code ? code : -EINVAL;
    if (c->count == c->capacity) {
        size_t capacity = c->capacity ? 2 * c->capacity : 1024;
        struct node *more =
            capacity < UINT32_MAX ? realloc(c->nodes, capacity * sizeof *more) : NULL;

        if (!more)
            return -ENOMEM;
        c->nodes = more;
        c->capacity = capacity;
    }
    c->nodes[c->count++] = n;
    return 0;
}

/* --- order: a node is ready when all that it depends on have been placed --- */

static uint32_t *place_of(const struct chakra *c, uint64_t id)
{
    size_t at = (size_t)(id * UINT64_C(0x9e3779b97f4a7c15) >> 20) & c->mask;

    while (c->places[at] && c->nodes[c->places[at] - 1].id != id)
        at = (at + 1) & c->mask;
    return &c->places[at];
}

/* Dependencies as indices. A node that is not in the trace is nothing to wait for. */
static int deps_resolve(struct chakra *c)
{
    size_t capacity = 16;

    while (capacity < 2 * c->count)
        capacity *= 2;
    c->mask = capacity - 1;
    c->places = calloc(capacity, sizeof *c->places);
    c->ready = malloc((c->count + 1) * sizeof *c->ready);
    c->turns = malloc((c->count + 1) * sizeof *c->turns);
    if (!c->places || !c->ready || !c->turns)
        return -ENOMEM;
    for (size_t i = 0; i < c->count; i++) {
        uint32_t *place = place_of(c, c->nodes[i].id);

        if (*place)
            return -EINVAL; /* two nodes of one id */
        *place = (uint32_t)i + 1;
    }
    for (size_t i = 0; i < c->count; i++) {
        struct node *n = &c->nodes[i];
        size_t kept = 0;

        for (size_t k = 0; k < n->dep_count; k++) {
            struct dep dep = c->deps[n->dep_first + k];
            uint32_t at = *place_of(c, dep.id);

            if (at && !(dep.is_ctrl && c->has_data_deps))
                c->deps[n->dep_first + kept++].id = at - 1;
        }
        n->dep_count = kept;
        n->missing = (uint32_t)kept;
    }
    return 0;
}

static void ready_push(struct chakra *c, uint32_t node)
{
    size_t i = c->ready_count++;

    while (i && c->ready[(i - 1) / 2] > node) {
        c->ready[i] = c->ready[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    c->ready[i] = node;
}

static uint32_t ready_pop(struct chakra *c)
{
    uint32_t first = c->ready[0], last = c->ready[--c->ready_count];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < c->ready_count) {
        if (child + 1 < c->ready_count && c->ready[child + 1] < c->ready[child])
            child++;
        if (c->ready[child] >= last)
            break;
        c->ready[i] = c->ready[child];
        i = child;
    }
    c->ready[i] = last;
    return first;
}

/* --- events --- */

/* Of the streams that are through when the node begins the last one; else the first one
 * that is. */
static uint32_t stream_through(const struct chakra *c, const struct node *n)
{
    uint32_t best = 0;

    for (uint32_t s = 1; s < c->stream_count; s++) {
        uint64_t end_us = c->nodes[c->last[s]].end_us;
        uint64_t best_us = c->nodes[c->last[best]].end_us;

        if (best_us <= n->begin_us ? end_us > best_us && end_us <= n->begin_us
                                   : end_us < best_us)
            best = s;
    }
    return best;
}

/* The stream that ends with something the node is behind anyway; else a new one, as far
 * as there are any. */
static uint32_t stream_for(struct chakra *c, const struct node *n)
{
    for (size_t k = n->dep_count; k-- > 0;) {
        uint32_t dep = (uint32_t)c->deps[n->dep_first + k].id;

        if (c->last[c->nodes[dep].stream] == dep)
            return c->nodes[dep].stream;
    }
    return c->stream_count < IMPORT_STREAMS_MAX ? c->stream_count++
                                                : stream_through(c, n);
}

static uint8_t func_of(uint64_t comm_type)
{
    static const uint8_t funcs[] = {
        CRYSTAL_FUNC_ALLREDUCE, CRYSTAL_FUNC_REDUCE,        CRYSTAL_FUNC_ALLGATHER,
        CRYSTAL_FUNC_GATHER,    CRYSTAL_FUNC_SCATTER,       CRYSTAL_FUNC_BROADCAST,
        CRYSTAL_FUNC_ALLTOALL,  CRYSTAL_FUNC_REDUCESCATTER, CRYSTAL_FUNC_REDUCESCATTER,
        CRYSTAL_FUNC_ALLREDUCE};

    return comm_type < sizeof funcs ? funcs[comm_type] : CRYSTAL_FUNC_NONE;
}

/* The pair of a message: both ends name the same one. */
static uint32_t pair_group(struct import *m, const struct node *n)
{
    uint32_t low = (uint32_t)(n->src < n->dst ? n->src : n->dst);
    uint32_t high = (uint32_t)(n->src < n->dst ? n->dst : n->src);
    uint64_t name = import_hash("message", 7) ^ n->tag;
    uint64_t list = (uint64_t)low << 32 | high;
    uint32_t group = import_group_find(m, name, list), *members;

    if (group != IMPORT_NONE)
        return group;
    members = malloc(2 * sizeof *members);
    if (!members)
        return IMPORT_NONE;
    members[0] = low;
    members[1] = high;
    return import_group_add(m, name, list, members, low == high ? 1 : 2);
}

static bool communicates(const struct node *n)
{
    return !n->is_host && n->type >= COMM_SEND && n->type <= COMM_COLL;
}

static int communication(struct import *m, const struct import_rank *r,
                         const struct node *n, struct import_event *e)
{
    e->in = e->out = n->comm_size;
    if (n->type == COMM_COLL) {
        if (!n->has_comm_type)
            return -ENOTSUP;
        e->what = IMPORT_COLL;
        e->func = func_of(n->comm_type);
        if (e->func == CRYSTAL_FUNC_NONE)
            return -EINVAL;
        e->group = import_group_named(m, (const char *)n->group.at,
                                      (size_t)(n->group.end - n->group.at));
        if (e->group == IMPORT_NONE)
            return -EPROTO;
        if (e->func == CRYSTAL_FUNC_REDUCESCATTER)
            e->out = n->comm_size / m->groups[e->group].count;
        return 0;
    }
    if (n->src >= m->rank_count || n->dst >= m->rank_count ||
        (n->type == COMM_SEND ? n->src : n->dst) != r->lrank)
        return -EPROTO;
    e->what = n->type == COMM_SEND ? IMPORT_SEND : IMPORT_RECV;
    e->func = n->type == COMM_SEND ? CRYSTAL_FUNC_SEND : CRYSTAL_FUNC_RECV;
    e->from = (uint32_t)n->src;
    e->to = (uint32_t)n->dst;
    e->group = pair_group(m, n);
    return e->group == IMPORT_NONE ? -ENOMEM : 0;
}

static int event_put(struct import_rank *r, enum import_what what, uint32_t stream,
                     uint32_t event)
{
    struct import_event e = {.what = what, .stream = stream, .event = event};

    return import_event_add(r, &e);
}

/* Its waits for other streams, itself, and its event. */
static int place(struct chakra *c, struct import *m, struct import_rank *r,
                 uint32_t index)
{
    struct node *n = &c->nodes[index];
    struct import_event e = {.what = IMPORT_KERNEL,
                             .dtype = ncclUint8,
                             .root = IMPORT_NONE,
                             .from = IMPORT_NONE,
                             .to = IMPORT_NONE,
                             .ns = n->us * 1000,
                             .name = (const char *)n->name.at,
                             .name_bytes = (size_t)(n->name.end - n->name.at)};
    int code = 0;

    n->stream = stream_for(c, n);
    e.stream = n->stream;
    for (size_t k = 0; !code && k < n->dep_count; k++) {
        uint32_t dep = (uint32_t)c->deps[n->dep_first + k].id;

        if (c->nodes[dep].stream != n->stream)
            code = event_put(r, IMPORT_EVENT_WAIT, n->stream, dep);
    }
    if (!code && communicates(n))
        code = communication(m, r, n, &e);
    if (!code)
        code = import_event_add(r, &e);
    if (!code && n->is_recorded)
        code = event_put(r, IMPORT_EVENT_RECORD, n->stream, index);
    c->last[n->stream] = index;
    return code;
}

/* For each node, those that depend on it: a list of indices. */
struct followers {
    size_t *first;
    uint32_t *list;
};

static int followers_init(struct followers *f, struct chakra *c)
{
    f->first = calloc(c->count + 2, sizeof *f->first);
    f->list = malloc((c->dep_count + 1) * sizeof *f->list);
    if (!f->first || !f->list)
        return -ENOMEM;
    for (size_t i = 0; i < c->count; i++)
        for (size_t k = 0; k < c->nodes[i].dep_count; k++)
            f->first[c->deps[c->nodes[i].dep_first + k].id + 2]++;
    for (size_t i = 2; i < c->count + 2; i++)
        f->first[i] += f->first[i - 1];
    for (size_t i = 0; i < c->count; i++)
        for (size_t k = 0; k < c->nodes[i].dep_count; k++)
            f->list[f->first[c->deps[c->nodes[i].dep_first + k].id + 1]++] =
                (uint32_t)i;
    for (size_t i = 0; i < c->count; i++) { /* a chain needs no event */
        size_t count = f->first[i + 1] - f->first[i];

        c->nodes[i].is_recorded =
            count > 1 || (count && c->nodes[f->list[f->first[i]]].dep_count > 1);
    }
    return 0;
}

static void begin_set(const struct chakra *c, struct node *n)
{
    for (size_t k = 0; k < n->dep_count; k++) {
        const struct node *dep = &c->nodes[c->deps[n->dep_first + k].id];

        n->begin_us = dep->end_us > n->begin_us ? dep->end_us : n->begin_us;
    }
    n->end_us = n->begin_us + n->us;
}

static int turn_compare(const void *a, const void *b)
{
    const struct turn *x = a, *y = b;

    if (x->begin_us != y->begin_us)
        return x->begin_us < y->begin_us ? -1 : 1;
    return x->nth < y->nth ? -1 : 1;
}

/* The nodes in the order in which they begin, so that a stream which has to be shared
 * is one that is through by then. Communication keeps the order of the file, in which
 * the ranks agree. */
static int turns_make(struct chakra *c, const struct followers *f)
{
    uint64_t front_us = 0; /* when the last communication begins */
    size_t count = 0;

    for (size_t i = 0; i < c->count; i++)
        if (!c->nodes[i].missing)
            ready_push(c, (uint32_t)i);
    while (c->ready_count) {
        uint32_t index = ready_pop(c);
        struct node *n = &c->nodes[index];

        if (communicates(n))
            n->begin_us = front_us;
        begin_set(c, n);
        if (communicates(n))
            front_us = n->begin_us;
        c->turns[count] = (struct turn){n->begin_us, (uint32_t)count, index};
        count++;
        for (size_t k = f->first[index]; k < f->first[index + 1]; k++)
            if (--c->nodes[f->list[k]].missing == 0)
                ready_push(c, f->list[k]);
    }
    qsort(c->turns, count, sizeof *c->turns, turn_compare);
    return count < c->count ? -ELOOP : 0;
}

static int nodes_place(struct chakra *c, struct import *m, struct import_rank *r)
{
    struct followers f = {NULL, NULL};
    int code = deps_resolve(c);

    if (!code)
        code = followers_init(&f, c);
    if (!code)
        code = turns_make(c, &f);
    for (size_t i = 0; !code && i < c->count; i++)
        code = place(c, m, r, c->turns[i].node);
    free(f.first);
    free(f.list);
    return code;
}

int import_chakra_read(struct import *m, struct import_rank *r)
{
    const unsigned char *text = (const unsigned char *)r->text;
    struct crystal_protobuf p = {text, text + r->bytes}, message;
    struct chakra c;
    int code = crystal_protobuf_message(&p, &message); /* about the trace */

    memset(&c, 0, sizeof c);
    if (code == 1)
        while ((code = crystal_protobuf_message(&p, &message)) == 1)
            if ((code = node_read(&c, message)))
                break;
    if (!code)
        code = c.count ? nodes_place(&c, m, r) : -EINVAL;
    free(c.nodes);
    free(c.deps);
    free(c.places);
    free(c.ready);
    free(c.turns);
    return code;
}
