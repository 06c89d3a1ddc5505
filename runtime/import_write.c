/* The events of a rank as the records of a graph. See import_trace.h. */
#include "config.h"

#include "runtime/import_trace.h"

#include <errno.h>
#include <string.h>

struct streams {
    uint64_t ids[IMPORT_STREAMS_MAX];
    uint32_t count;
};

static uint16_t stream_of(struct streams *s, uint64_t id)
{
    uint32_t i = 0;

    while (i < s->count && s->ids[i] != id)
        i++;
    if (i == s->count && s->count < IMPORT_STREAMS_MAX)
        s->ids[s->count++] = id;
    return (uint16_t)(i < IMPORT_STREAMS_MAX ? i : IMPORT_STREAMS_MAX - 1);
}

static uint64_t count_of(const struct import_event *e, uint32_t nranks)
{
    switch (e->func) {
    case CRYSTAL_FUNC_REDUCESCATTER:
        return e->out;
    case CRYSTAL_FUNC_ALLTOALL:
    case CRYSTAL_FUNC_SCATTER:
        return e->in / nranks;
    case CRYSTAL_FUNC_RECV:
        return e->out ? e->out : e->in;
    default:
        return e->in;
    }
}

/* The crank of a message's other end; IMPORT_NONE: it is not in the trace. */
static uint32_t peer_of(const struct import_group *group, const struct import_event *e)
{
    uint32_t other = e->what == IMPORT_SEND ? e->to : e->from;

    for (uint32_t k = 0; k < group->count; k++)
        if (group->members[k] == other)
            return k;
    return IMPORT_NONE;
}

/* The crank of a collective's root; 0 where it is not told. */
static uint32_t root_of(const struct import_group *group, const struct import_event *e)
{
    for (uint32_t k = 0; k < group->count; k++)
        if (group->members[k] == e->root)
            return k;
    return 0;
}

static int record(const struct import *m, const struct import_rank *r,
                  struct crystal_graph_writer *w, struct streams *s,
                  const struct import_event *e, uint64_t start_ns)
{
    struct crystal_op op = {.stream = stream_of(s, e->stream),
                            .t_ns = e->issue_ns - start_ns};
    const struct import_group *group;
    char name[128];

    if (e->what == IMPORT_EVENT_RECORD || e->what == IMPORT_EVENT_WAIT) {
        op.kind = e->what == IMPORT_EVENT_RECORD ? CRYSTAL_OP_RECORD : CRYSTAL_OP_SWAIT;
        op.peer = e->event;
    } else if (e->what == IMPORT_STREAM_WAIT) {
        op.kind = CRYSTAL_OP_RECORD;
        op.stream = stream_of(s, e->other_stream);
        crystal_graph_writer_op(w, &op);
        op.kind = CRYSTAL_OP_SWAIT;
        op.stream = stream_of(s, e->stream);
    } else if (e->what == IMPORT_KERNEL) {
        size_t bytes = e->name_bytes < sizeof name ? e->name_bytes : sizeof name - 1;

        if (bytes)
            memcpy(name, e->name, bytes);
        name[bytes] = 0;
        name[strcspn(name, "<(")] = 0; /* templates and arguments tell too much */
        op.kind = CRYSTAL_OP_KERNEL;
        op.value = e->ns;
        op.aux = crystal_graph_writer_label(w, name[0] ? name : "kernel");
    } else {
        group = &m->groups[e->group];
        op.kind = e->what == IMPORT_COLL   ? CRYSTAL_OP_COLL
                  : e->what == IMPORT_SEND ? CRYSTAL_OP_SEND
                                           : CRYSTAL_OP_RECV;
        op.func = e->func;
        op.dtype = e->dtype;
        op.comm = (uint16_t)import_local_of(r, e->group);
        op.value = count_of(e, group->count);
        op.flags = e->what == IMPORT_COLL ? e->way : 0;
        if (e->what == IMPORT_COLL)
            op.peer = root_of(group, e);
        else if ((op.peer = peer_of(group, e)) == IMPORT_NONE)
            return -EPROTO;
    }
    crystal_graph_writer_op(w, &op);
    return 0;
}

int import_rank_write(const struct import *m, const struct import_rank *r,
                      struct crystal_graph_writer *w)
{
    struct streams streams = {.count = 0};
    int code = 0;

    (void)crystal_graph_writer_rep(w, r->lrank, r->local_count);
    crystal_graph_writer_mark(w);
    for (size_t i = 0; !code && i < r->count; i++)
        code = record(m, r, w, &streams, &r->events[i], r->events[0].issue_ns);
    for (uint32_t i = 0; i < streams.count || i == 0; i++) {
        struct crystal_op op = {.kind = CRYSTAL_OP_SYNC, .stream = (uint16_t)i};

        if (r->count) /* at once behind the last record */
            op.t_ns = op.value =
                r->events[r->count - 1].issue_ns - r->events[0].issue_ns;
        crystal_graph_writer_op(w, &op);
    }
    crystal_graph_writer_mark(w);
    return code;
}
