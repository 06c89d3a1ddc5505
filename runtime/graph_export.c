/* Writing Chakra traces. See graph_export.h; graph_export_events.c has the other form.
 *
 * Of protobuf only what the schema needs: varints (wire type 0) and strings or messages
 * behind their length (type 2); a tag is the field's number * 8 + type.
 */
#include "config.h"

#include "runtime/graph_export.h"

#include "runtime/nccl_abi.h"
#include "runtime/nccl_names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define NONE     UINT64_MAX
#define DEPS_MAX 16

/* --- protobuf --- */

struct message {
    unsigned char bytes[2048];
    size_t count;
};

static void put_varint(struct message *m, uint64_t value)
{
    do {
        if (m->count < sizeof m->bytes)
            m->bytes[m->count++] = (unsigned char)(value & 0x7f) | (value > 0x7f) << 7;
        value >>= 7;
    } while (value);
}

static void put_number(struct message *m, unsigned field, uint64_t value)
{
    put_varint(m, field << 3);
    put_varint(m, value);
}

static void put_bytes(struct message *m, unsigned field, const void *bytes,
                      size_t count)
{
    if (count > sizeof m->bytes - m->count - 12)
        count = 0; /* names are short; a longer one is left out */
    put_varint(m, field << 3 | 2);
    put_varint(m, count);
    memcpy(m->bytes + m->count, bytes, count);
    m->count += count;
}

/* An AttributeProto with a number in its field `type` (7 int32, 9 int64, 27 bool). */
static void put_attribute(struct message *m, const char *name, unsigned type,
                          uint64_t value)
{
    struct message a = {.count = 0};

    put_bytes(&a, 1, name, strlen(name));
    put_number(&a, type, value);
    put_bytes(m, 10, a.bytes, a.count);
}

static void put_text_attribute(struct message *m, const char *name, const char *text)
{
    struct message a = {.count = 0};

    put_bytes(&a, 1, name, strlen(name));
    put_bytes(&a, 29, text, strlen(text));
    put_bytes(m, 10, a.bytes, a.count);
}

static void write_message(FILE *out, const struct message *m)
{
    struct message length = {.count = 0};

    put_varint(&length, m->count);
    (void)fwrite(length.bytes, 1, length.count, out); /* the caller looks at ferror */
    (void)fwrite(m->bytes, 1, m->count, out);
}

/* --- nodes --- */

enum node_type { COMP = 4, SEND = 5, RECV = 6, COLL = 7 };

/* What the next operation of a stream has to wait for. */
struct waits {
    uint64_t ids[DEPS_MAX];
    uint32_t count;
};

struct chakra {
    FILE *out;
    const struct crystal_predict *p;
    const struct crystal_program *program;
    const struct crystal_op *ops;
    const uint64_t *gaps;
    uint32_t lrank;
    uint64_t next_id, host; /* host: the last node that holds it up, NONE */
    struct waits *streams;
    uint64_t *comms, *events;
    bool with_host;
};

static uint64_t node(struct chakra *c, enum node_type type, const char *name,
                     uint64_t duration_ns, const struct waits *w, struct message *m)
{
    struct message head = {.count = 0};

    put_number(&head, 1, c->next_id);
    put_bytes(&head, 2, name, strlen(name));
    put_number(&head, 3, type);
    for (uint32_t i = 0; i < w->count; i++)
        put_number(&head, 5, w->ids[i]);
    put_number(&head, 7, (duration_ns + 500) / 1000);
    if (m->count <= sizeof head.bytes - head.count) {
        memcpy(head.bytes + head.count, m->bytes, m->count);
        head.count += m->count;
    }
    write_message(c->out, &head);
    return c->next_id++;
}

/* Nodes of the host: its computation, or nothing but to wait. */
static uint64_t host_node(struct chakra *c, const char *name, uint64_t ns,
                          const struct waits *w)
{
    struct message m = {.count = 0};

    put_attribute(&m, "is_cpu_op", 27, 1);
    return node(c, COMP, name, ns, w, &m);
}

static void wait_for(struct chakra *c, struct waits *w, uint64_t id)
{
    for (uint32_t i = 0; i < w->count; i++)
        if (w->ids[i] == id)
            return;
    if (id == NONE)
        return;
    if (w->count == DEPS_MAX) { /* one node in place of all */
        w->ids[0] = host_node(c, "join", 0, w);
        w->count = 1;
    }
    w->ids[w->count++] = id;
}

static void only(struct waits *w, uint64_t id)
{
    w->ids[0] = id;
    w->count = id != NONE;
}

static void host_waits(struct chakra *c, const struct waits *w)
{
    struct waits all = *w;

    if (!all.count)
        return;
    wait_for(c, &all, c->host);
    c->host = host_node(c, "wait", 0, &all);
}

static int comm_type(uint8_t func)
{
    switch (func) {
    case CRYSTAL_FUNC_ALLREDUCE:
        return 0;
    case CRYSTAL_FUNC_REDUCE:
        return 1;
    case CRYSTAL_FUNC_ALLGATHER:
        return 2;
    case CRYSTAL_FUNC_GATHER:
        return 3;
    case CRYSTAL_FUNC_SCATTER:
        return 4;
    case CRYSTAL_FUNC_BROADCAST:
        return 5;
    case CRYSTAL_FUNC_ALLTOALL:
        return 6;
    default:
        return 7; /* reduce-scatter */
    }
}

static uint64_t bytes_in(const struct crystal_instr *in, uint32_t nranks)
{
    uint64_t bytes = in->count * crystal_dtype_bytes(in->dtype);
    bool is_by_rank = in->func == CRYSTAL_FUNC_REDUCESCATTER ||
                      in->func == CRYSTAL_FUNC_ALLTOALL ||
                      in->func == CRYSTAL_FUNC_SCATTER;

    return is_by_rank ? bytes * nranks : bytes;
}

/* The number that names the communicator's process group. To ASTRA-sim the group 0 is
 * all ranks, whatever the file of groups says. */
static uint32_t group_of(uint32_t comm)
{
    return comm + 1;
}

static void communication(struct chakra *c, const struct crystal_instr *in)
{
    const struct crystal_graph *g = c->p->graph;
    uint32_t comm = crystal_graph_comm_of(g, c->lrank, in->local);
    bool sends = in->kind == CRYSTAL_OP_SEND;
    struct waits *w = &c->streams[in->stream];
    struct message m = {.count = 0};
    struct crystal_graph_comm members;
    char group[16];
    uint64_t id;

    crystal_graph_comm(g, comm, &members);
    put_attribute(&m, "is_cpu_op", 27, 0);
    put_attribute(&m, "comm_size", 9, bytes_in(in, members.nranks));
    (void)snprintf(group, sizeof group, "%u", group_of(comm));
    wait_for(c, w, c->host);
    wait_for(c, w, c->comms[in->local]);
    if (in->kind == CRYSTAL_OP_COLL) {
        put_attribute(&m, "comm_type", 9, (uint64_t)comm_type(in->func));
        put_text_attribute(&m, "pg_name", group);
        id = node(c, COLL, crystal_func_name(in->func), 0, w, &m);
    } else {
        uint32_t peer =
            members.members[crystal_graph_peer_of(g, c->lrank, in->local, in->peer)];

        put_attribute(&m, "comm_src", 7, sends ? c->lrank : peer);
        put_attribute(&m, "comm_dst", 7, sends ? peer : c->lrank);
        put_attribute(&m, "comm_tag", 7, comm);
        id = node(c, sends ? SEND : RECV, crystal_func_name(in->func), 0, w, &m);
    }
    only(w, id);
    c->comms[in->local] = id;
}

static void kernel(struct chakra *c, const struct crystal_instr *in)
{
    struct waits *w = &c->streams[in->stream];
    const char *label = crystal_graph_label(c->p->graph, &c->ops[in->record]);
    struct message m = {.count = 0};

    wait_for(c, w, c->host);
    put_attribute(&m, "is_cpu_op", 27, 0);
    only(w, node(c, COMP, label ? label : "kernel", in->count, w, &m));
}

static void instruction(struct chakra *c, uint32_t i)
{
    const struct crystal_instr *in = &c->program->instrs[i];
    struct waits w;

    if (c->with_host && c->gaps[i]) {
        only(&w, c->host);
        c->host = host_node(c, "host", c->gaps[i], &w);
    }
    switch (in->kind) {
    case CRYSTAL_OP_KERNEL:
        kernel(c, in);
        break;
    case CRYSTAL_OP_COLL:
    case CRYSTAL_OP_SEND:
    case CRYSTAL_OP_RECV:
        if (!crystal_instr_is_empty(in))
            communication(c, in);
        break;
    case CRYSTAL_OP_RECORD: /* one node for whatever the stream waits for */
        if (c->streams[in->stream].count > 1)
            only(&c->streams[in->stream],
                 host_node(c, "join", 0, &c->streams[in->stream]));
        c->events[in->slot] =
            c->streams[in->stream].count ? c->streams[in->stream].ids[0] : NONE;
        break;
    case CRYSTAL_OP_SWAIT:
        if (in->slot != CRYSTAL_PROGRAM_NONE)
            wait_for(c, &c->streams[in->stream], c->events[in->slot]);
        break;
    case CRYSTAL_OP_WAIT:
        only(&w, in->slot != CRYSTAL_PROGRAM_NONE ? c->events[in->slot] : NONE);
        host_waits(c, &w);
        break;
    case CRYSTAL_OP_SYNC:
        host_waits(c, &c->streams[in->stream]);
        break;
    default:
        break;
    }
}

int crystal_export_chakra(FILE *out, const struct crystal_predict *p, uint32_t lrank,
                          struct crystal_error *err)
{
    uint32_t rep = crystal_graph_rep_of(p->graph, lrank);
    const struct crystal_program *program = p->programs[rep];
    struct chakra c = {.out = out,
                       .p = p,
                       .program = program,
                       .gaps = p->gaps[rep],
                       .lrank = lrank,
                       .host = NONE,
                       .with_host = true};
    struct message version = {.count = 0};
    uint64_t count;
    int code = 0;

    c.ops = crystal_graph_ops(p->graph, rep, &count);
    c.streams = calloc(program->stream_count + 1, sizeof *c.streams);
    c.comms = malloc((program->local_count + 1) * sizeof *c.comms);
    c.events = malloc((program->event_count + 1) * sizeof *c.events);
    if (!c.streams || !c.comms || !c.events)
        code = crystal_error_set(err, ENOMEM, "export: out of memory");
    for (uint32_t i = 0; !code && i < program->local_count; i++)
        c.comms[i] = NONE;
    for (uint32_t i = 0; !code && i < program->event_count; i++)
        c.events[i] = NONE;
    for (uint32_t i = 0; i < program->instr_count; i++)
        c.with_host = c.with_host && program->instrs[i].kind != CRYSTAL_OP_KERNEL;
    put_bytes(&version, 1, "0.0.4", 5);
    if (!code)
        write_message(out, &version);
    for (uint32_t i = 0; !code && i < program->instr_count; i++)
        instruction(&c, i);
    free(c.streams);
    free(c.comms);
    free(c.events);
    return code;
}

void crystal_export_groups(FILE *out, const struct crystal_graph *g)
{
    putc('{', out);
    for (uint32_t i = 0; i < crystal_graph_comm_count(g); i++) {
        struct crystal_graph_comm c;

        crystal_graph_comm(g, i, &c);
        fprintf(out, "%s\n\"%u\": [", i ? "," : "", group_of(i));
        for (uint32_t k = 0; k < c.nranks; k++)
            fprintf(out, "%s%u", k ? ", " : "", c.members[k]);
        putc(']', out);
    }
    fputs("\n}\n", out);
}
