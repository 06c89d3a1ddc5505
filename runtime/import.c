/* See import.h. Two passes in one: events are collected while the file is read, then
 * sorted by when the host issued them and written as records.
 */
#include "config.h"

#include "runtime/import.h"

#include "runtime/graph_write.h"
#include "runtime/infile.h"
#include "runtime/json_reader.h"
#include "runtime/nccl_abi.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NONE        UINT32_MAX
#define STREAMS_MAX 200

enum what { KERNEL, COLL, SEND, RECV, STREAM_WAIT, LAUNCH };

struct event {
    enum what what;
    uint8_t func, dtype;
    uint64_t issue_ns, start_ns, ns; /* issue: of the launch, where it is there */
    uint64_t correlation;
    uint64_t stream, other_stream;
    uint64_t in, out; /* elements */
    uint32_t group;   /* index in groups */
    uint32_t from, to;
    struct crystal_json_token name; /* borrowed from the file */
};

struct group {
    uint32_t *members, count;
    uint64_t name; /* hash */
};

struct rank {
    const char *text;
    size_t bytes;
    struct event *events;
    size_t count, capacity;
    uint32_t lrank;
    uint32_t *locals, local_count; /* groups it uses, in order of first use */
};

struct import {
    struct rank *ranks;
    uint32_t rank_count;
    struct group *groups;
    uint32_t group_count, group_capacity;
};

/* --- groups --- */

static uint64_t hash_of(const char *text, size_t bytes)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    return hash;
}

/* "[0, 8, 16]" -> members, ascending or not; -EINVAL where the list is cut short. */
static int members_parse(struct crystal_json_token t, uint32_t limit, uint32_t **ret,
                         uint32_t *ret_count)
{
    uint32_t *members = NULL, count = 0, value = 0;
    bool has_digit = false;

    members = malloc((t.bytes / 2 + 1) * sizeof *members);
    if (!members)
        return -ENOMEM;
    for (size_t i = 0; i < t.bytes; i++) {
        char c = t.text[i];

        if (c >= '0' && c <= '9') {
            value = has_digit ? value * 10 + (uint32_t)(c - '0') : (uint32_t)(c - '0');
            has_digit = true;
            if (value < limit)
                continue;
        }
        if ((c >= '0' && c <= '9') || !strchr("[], ", c))
            goto bad;
        if (has_digit) {
            for (uint32_t k = 0; k < count; k++)
                if (members[k] == value)
                    goto bad;
            members[count++] = value;
        }
        has_digit = false;
    }
    if (!count || has_digit)
        goto bad;
    *ret = members;
    *ret_count = count;
    return 0;
bad:
    free(members);
    return -EINVAL;
}

/* The index of the group, NONE where it cannot be known; takes members. */
static uint32_t group_add(struct import *m, uint64_t name, uint32_t *members,
                          uint32_t count)
{
    for (uint32_t i = 0; i < m->group_count; i++)
        if (m->groups[i].name == name && m->groups[i].count == count &&
            memcmp(m->groups[i].members, members, count * sizeof *members) == 0) {
            free(members);
            return i;
        }
    if (m->group_count == m->group_capacity) {
        uint32_t capacity = m->group_capacity ? 2 * m->group_capacity : 16;
        struct group *groups = realloc(m->groups, capacity * sizeof *groups);

        if (!groups) {
            free(members);
            return NONE;
        }
        m->groups = groups;
        m->group_capacity = capacity;
    }
    m->groups[m->group_count] = (struct group){members, count, name};
    return m->group_count++;
}

/* --- events --- */

static uint8_t func_of(struct crystal_json_token t)
{
    static const struct {
        const char *name;
        uint8_t func;
    } rows[] = {{"allreduce", CRYSTAL_FUNC_ALLREDUCE},
                {"allreduce_coalesced", CRYSTAL_FUNC_ALLREDUCE},
                {"barrier", CRYSTAL_FUNC_ALLREDUCE},
                {"allgather", CRYSTAL_FUNC_ALLGATHER},
                {"_allgather_base", CRYSTAL_FUNC_ALLGATHER},
                {"allgather_into_tensor_coalesced", CRYSTAL_FUNC_ALLGATHER},
                {"reduce_scatter", CRYSTAL_FUNC_REDUCESCATTER},
                {"_reduce_scatter_base", CRYSTAL_FUNC_REDUCESCATTER},
                {"reduce_scatter_tensor_coalesced", CRYSTAL_FUNC_REDUCESCATTER},
                {"broadcast", CRYSTAL_FUNC_BROADCAST},
                {"reduce", CRYSTAL_FUNC_REDUCE},
                {"gather", CRYSTAL_FUNC_GATHER},
                {"scatter", CRYSTAL_FUNC_SCATTER},
                {"all_to_all", CRYSTAL_FUNC_ALLTOALL},
                {"all_to_allv", CRYSTAL_FUNC_ALLTOALL},
                {"send", CRYSTAL_FUNC_SEND},
                {"recv", CRYSTAL_FUNC_RECV}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (crystal_json_is(t, rows[i].name))
            return rows[i].func;
    return CRYSTAL_FUNC_NONE;
}

static uint8_t dtype_of(struct crystal_json_token t)
{
    static const struct {
        const char *name;
        uint8_t dtype;
    } rows[] = {{"BFloat16", ncclBfloat16},
                {"Float", ncclFloat32},
                {"Half", ncclFloat16},
                {"Double", ncclFloat64},
                {"Int", ncclInt32},
                {"Long", ncclInt64},
                {"Byte", ncclUint8},
                {"Char", ncclInt8},
                {"Bool", ncclUint8},
                {"Float8_e4m3fn", ncclFloat8e4m3},
                {"Float8_e5m2", ncclFloat8e5m2}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (crystal_json_is(t, rows[i].name))
            return rows[i].dtype;
    return ncclUint8;
}

static uint64_t whole(struct crystal_json_token t)
{
    double value = crystal_json_number(t, 0);

    return value > 0 && value < 1e15 ? (uint64_t)value : 0;
}

static uint64_t ns_of(struct crystal_json_token t)
{
    double value = crystal_json_number(t, 0);

    return value > 0 && value < 1e13 ? (uint64_t)(value * 1000 + 0.5) : 0;
}

/* What of an event's args matters. */
struct args {
    struct crystal_json_token collective, group, members;
    struct event *e;
    bool has_stream;
};

static void arg_take(struct args *a, struct crystal_json_token key,
                     struct crystal_json_token value)
{
    struct event *e = a->e;

    if (crystal_json_is(key, "stream")) {
        e->stream = whole(value);
        a->has_stream = true;
    } else if (crystal_json_is(key, "correlation")) {
        e->correlation = whole(value);
    } else if (crystal_json_is(key, "wait_on_stream")) {
        e->other_stream = whole(value);
    } else if (crystal_json_is(key, "Collective name")) {
        a->collective = value;
    } else if (crystal_json_is(key, "Process Group Name")) {
        a->group = value;
    } else if (crystal_json_is(key, "Process Group Ranks")) {
        a->members = value;
    } else if (crystal_json_is(key, "In msg nelems")) {
        e->in = whole(value);
    } else if (crystal_json_is(key, "Out msg nelems")) {
        e->out = whole(value);
    } else if (crystal_json_is(key, "dtype")) {
        e->dtype = dtype_of(value);
    } else if (crystal_json_is(key, "Src Rank")) {
        e->from = (uint32_t)whole(value);
    } else if (crystal_json_is(key, "Dst Rank")) {
        e->to = (uint32_t)whole(value);
    }
}

static int args_read(struct crystal_json *j, struct args *a)
{
    for (;;) {
        struct crystal_json_token key = crystal_json_next(j), value;

        if (key.kind == CRYSTAL_JSON_OBJECT_END)
            return 0;
        value = crystal_json_next(j);
        if (key.kind != CRYSTAL_JSON_KEY || value.kind == CRYSTAL_JSON_ERROR)
            return -EINVAL;
        if (value.kind == CRYSTAL_JSON_OBJECT || value.kind == CRYSTAL_JSON_ARRAY) {
            if (crystal_json_skip(j, value))
                return -EINVAL;
        } else {
            arg_take(a, key, value);
        }
    }
}

static int event_add(struct rank *r, const struct event *e)
{
    if (r->count == r->capacity) {
        size_t capacity = r->capacity ? 2 * r->capacity : 1024;
        struct event *events = realloc(r->events, capacity * sizeof *events);

        if (!events)
            return -ENOMEM;
        r->events = events;
        r->capacity = capacity;
    }
    r->events[r->count++] = *e;
    return 0;
}

/* The communication in an event; -EPROTO where its group cannot be known. */
static int communication(struct import *m, struct args *a)
{
    uint8_t func = func_of(a->collective);
    struct event *e = a->e;
    uint32_t *members, count;
    int code;

    if (func == CRYSTAL_FUNC_NONE)
        return 0; /* a kernel like others */
    code = a->members.bytes ? members_parse(a->members, m->rank_count, &members, &count)
                            : -EINVAL;
    if (code)
        return code == -ENOMEM ? code : -EPROTO;
    e->group = group_add(m, hash_of(a->group.text, a->group.bytes), members, count);
    if (e->group == NONE)
        return -ENOMEM;
    e->func = func;
    e->what = func == CRYSTAL_FUNC_SEND   ? SEND
              : func == CRYSTAL_FUNC_RECV ? RECV
                                          : COLL;
    return 0;
}

static int event_read(struct crystal_json *j, struct import *m, struct rank *r)
{
    struct event e = {.from = NONE, .to = NONE, .dtype = ncclUint8};
    struct args a = {.e = &e};
    struct crystal_json_token cat = {.kind = CRYSTAL_JSON_WORD};
    int code;

    for (;;) {
        struct crystal_json_token key = crystal_json_next(j), value;

        if (key.kind == CRYSTAL_JSON_OBJECT_END)
            break;
        value = crystal_json_next(j);
        if (key.kind != CRYSTAL_JSON_KEY || value.kind == CRYSTAL_JSON_ERROR)
            return -EINVAL;
        if (crystal_json_is(key, "args") && value.kind == CRYSTAL_JSON_OBJECT) {
            if (args_read(j, &a))
                return -EINVAL;
        } else if (value.kind == CRYSTAL_JSON_OBJECT ||
                   value.kind == CRYSTAL_JSON_ARRAY) {
            if (crystal_json_skip(j, value))
                return -EINVAL;
        } else if (crystal_json_is(key, "cat")) {
            cat = value;
        } else if (crystal_json_is(key, "name")) {
            e.name = value;
        } else if (crystal_json_is(key, "ts")) {
            e.start_ns = ns_of(value);
        } else if (crystal_json_is(key, "dur")) {
            e.ns = ns_of(value);
        }
    }
    e.issue_ns = e.start_ns;
    if (crystal_json_is(cat, "kernel") || crystal_json_is(cat, "gpu_memcpy") ||
        crystal_json_is(cat, "gpu_memset")) {
        e.what = KERNEL;
        if (a.collective.bytes && (code = communication(m, &a)))
            return code;
    } else if (crystal_json_is(cat, "cuda_sync") &&
               crystal_json_is(e.name, "Stream Wait Event") && a.has_stream) {
        e.what = STREAM_WAIT;
    } else if ((crystal_json_is(cat, "cuda_runtime") ||
                crystal_json_is(cat, "cuda_driver")) &&
               e.correlation) {
        e.what = LAUNCH;
    } else {
        return 0;
    }
    return event_add(r, &e);
}

static int events_read(struct crystal_json *j, struct import *m, struct rank *r)
{
    for (;;) {
        struct crystal_json_token t = crystal_json_next(j);
        int code = 0;

        if (t.kind == CRYSTAL_JSON_ARRAY_END)
            return 0;
        if (t.kind == CRYSTAL_JSON_OBJECT)
            code = event_read(j, m, r);
        else if (crystal_json_skip(j, t))
            code = -EINVAL;
        if (code)
            return code;
    }
}

static int info_read(struct crystal_json *j, struct rank *r)
{
    for (;;) {
        struct crystal_json_token key = crystal_json_next(j), value;

        if (key.kind == CRYSTAL_JSON_OBJECT_END)
            return 0;
        value = crystal_json_next(j);
        if (key.kind != CRYSTAL_JSON_KEY || crystal_json_skip(j, value))
            return -EINVAL;
        if (crystal_json_is(key, "rank"))
            r->lrank = (uint32_t)whole(value);
    }
}

static int trace_read(struct import *m, struct rank *r)
{
    struct crystal_json_token key;
    struct crystal_json j;
    int code = 0;

    crystal_json_init(&j, r->text, r->bytes);
    if (crystal_json_next(&j).kind != CRYSTAL_JSON_OBJECT)
        return -EINVAL;
    while (!code && (key = crystal_json_next(&j)).kind == CRYSTAL_JSON_KEY) {
        struct crystal_json_token value = crystal_json_next(&j);

        if (crystal_json_is(key, "traceEvents") && value.kind == CRYSTAL_JSON_ARRAY)
            code = events_read(&j, m, r);
        else if (crystal_json_is(key, "distributedInfo") &&
                 value.kind == CRYSTAL_JSON_OBJECT)
            code = info_read(&j, r);
        else if (crystal_json_skip(&j, value))
            code = -EINVAL;
    }
    if (!code && key.kind != CRYSTAL_JSON_OBJECT_END)
        code = -EINVAL;
    return code;
}

/* --- order of issue --- */

static int by_correlation(const void *a, const void *b)
{
    const struct event *x = a, *y = b;

    if (x->correlation != y->correlation)
        return x->correlation < y->correlation ? -1 : 1;
    return (x->what == LAUNCH) - (y->what == LAUNCH);
}

static int by_issue(const void *a, const void *b)
{
    const struct event *x = a, *y = b;

    if (x->issue_ns != y->issue_ns)
        return x->issue_ns < y->issue_ns ? -1 : 1;
    if (x->start_ns != y->start_ns)
        return x->start_ns < y->start_ns ? -1 : 1;
    return (x->correlation > y->correlation) - (x->correlation < y->correlation);
}

static void order(struct rank *r)
{
    size_t kept = 0;

    if (!r->count)
        return;
    qsort(r->events, r->count, sizeof *r->events, by_correlation);
    for (size_t i = 0; i < r->count; i++) { /* launches stand behind their work */
        const struct event *launch = &r->events[i];

        if (launch->what != LAUNCH)
            continue;
        for (size_t k = i; k-- > 0 && r->events[k].correlation == launch->correlation;)
            if (launch->issue_ns < r->events[k].issue_ns)
                r->events[k].issue_ns = launch->issue_ns;
    }
    for (size_t i = 0; i < r->count; i++)
        if (r->events[i].what != LAUNCH)
            r->events[kept++] = r->events[i];
    r->count = kept;
    qsort(r->events, r->count, sizeof *r->events, by_issue);
}

/* --- records --- */

struct streams {
    uint64_t ids[STREAMS_MAX];
    uint32_t count;
};

static uint16_t stream_of(struct streams *s, uint64_t id)
{
    uint32_t i = 0;

    while (i < s->count && s->ids[i] != id)
        i++;
    if (i == s->count && s->count < STREAMS_MAX)
        s->ids[s->count++] = id;
    return (uint16_t)(i < STREAMS_MAX ? i : STREAMS_MAX - 1);
}

static uint32_t local_of(const struct rank *r, uint32_t group)
{
    uint32_t i = 0;

    while (i < r->local_count && r->locals[i] != group)
        i++;
    return i;
}

static int locals_make(const struct import *m, struct rank *r)
{
    r->locals = malloc((m->group_count + 1) * sizeof *r->locals);
    if (!r->locals)
        return -ENOMEM;
    for (size_t i = 0; i < r->count; i++) {
        const struct event *e = &r->events[i];
        bool is_member = false;

        if (e->what != COLL && e->what != SEND && e->what != RECV)
            continue;
        for (uint32_t k = 0; k < m->groups[e->group].count; k++)
            is_member = is_member || m->groups[e->group].members[k] == r->lrank;
        if (!is_member)
            return -EPROTO;
        if (local_of(r, e->group) == r->local_count)
            r->locals[r->local_count++] = e->group;
    }
    return r->local_count < UINT16_MAX ? 0 : -EPROTO;
}

static uint64_t count_of(const struct event *e, uint32_t nranks)
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

/* The crank of a message's other end; NONE: it is not in the trace. */
static uint32_t peer_of(const struct group *group, const struct event *e)
{
    uint32_t other = e->what == SEND ? e->to : e->from;

    for (uint32_t k = 0; k < group->count; k++)
        if (group->members[k] == other)
            return k;
    return NONE;
}

static int record(const struct import *m, const struct rank *r,
                  struct crystal_graph_writer *w, struct streams *s,
                  const struct event *e, uint64_t start_ns)
{
    struct crystal_op op = {.stream = stream_of(s, e->stream),
                            .t_ns = e->issue_ns - start_ns};
    const struct group *group;
    char name[128];

    if (e->what == STREAM_WAIT) {
        op.kind = CRYSTAL_OP_RECORD;
        op.stream = stream_of(s, e->other_stream);
        crystal_graph_writer_op(w, &op);
        op.kind = CRYSTAL_OP_SWAIT;
        op.stream = stream_of(s, e->stream);
    } else if (e->what == KERNEL) {
        size_t bytes = e->name.bytes < sizeof name ? e->name.bytes : sizeof name - 1;

        if (bytes)
            memcpy(name, e->name.text, bytes);
        name[bytes] = 0;
        name[strcspn(name, "<(")] = 0; /* templates and arguments tell too much */
        op.kind = CRYSTAL_OP_KERNEL;
        op.value = e->ns;
        op.aux = crystal_graph_writer_label(w, name[0] ? name : "kernel");
    } else {
        group = &m->groups[e->group];
        op.kind = e->what == COLL   ? CRYSTAL_OP_COLL
                  : e->what == SEND ? CRYSTAL_OP_SEND
                                    : CRYSTAL_OP_RECV;
        op.func = e->func;
        op.dtype = e->dtype;
        op.comm = (uint16_t)local_of(r, e->group);
        op.value = count_of(e, group->count);
        if (e->what != COLL && (op.peer = peer_of(group, e)) == NONE)
            return -EPROTO;
    }
    crystal_graph_writer_op(w, &op);
    return 0;
}

static int rank_write(const struct import *m, const struct rank *r,
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

/* --- files --- */

static int file_map(const char *path, struct rank *r, struct crystal_error *err)
{
    uint64_t bytes;
    int fd = crystal_infile_open(path, &bytes, err);
    void *text = MAP_FAILED;

    if (fd < 0)
        return fd;
    if (bytes)
        text = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    (void)close(fd); /* the mapping stays */
    if (text == MAP_FAILED)
        return crystal_error_set(err, EINVAL, "%s: %s", path,
                                 bytes ? "cannot be mapped" : "empty");
    r->text = text;
    r->bytes = (size_t)bytes;
    return 0;
}

static int trace_error(const char *path, int code, struct crystal_error *err)
{
    if (code == -EPROTO)
        return crystal_error_set(
            err, EPROTO,
            "%s: a collective's process group is not among the ranks given (or not "
            "written out); give the traces of all ranks, of PyTorch 2.2 or later",
            path);
    return crystal_error_set(err, -code, "%s: %s", path,
                             code == -ENOMEM ? "out of memory"
                                             : "no trace of the PyTorch profiler");
}

static int import_write(struct import *m, const struct crystal_graph_network *network,
                        const char *const *paths, const char *graph_path,
                        struct crystal_error *err)
{
    struct crystal_graph_writer *w = crystal_graph_writer_create(m->rank_count);
    int code = w ? 0 : crystal_error_set(err, ENOMEM, "out of memory");

    if (!code && network)
        crystal_graph_writer_network(w, network);
    for (uint32_t i = 0; !code && i < m->group_count; i++)
        (void)crystal_graph_writer_comm(w, NULL, m->groups[i].count,
                                        m->groups[i].members);
    for (uint32_t i = 0; !code && i < m->rank_count; i++) {
        int bad = rank_write(m, &m->ranks[i], w);

        if (bad)
            code = trace_error(paths[i], bad, err);
    }
    for (uint32_t i = 0; !code && i < m->rank_count; i++)
        crystal_graph_writer_rank(w, m->ranks[i].lrank, i, m->ranks[i].locals);
    if (!code)
        code = crystal_graph_writer_write(w, graph_path, 0, err);
    crystal_graph_writer_destroy(w);
    return code;
}

/* Each rank once. */
static int ranks_check(const struct import *m, const char *const *paths,
                       struct crystal_error *err)
{
    for (uint32_t i = 0; i < m->rank_count; i++) {
        if (m->ranks[i].lrank >= m->rank_count)
            return crystal_error_set(err, EINVAL,
                                     "%s: is of rank %u, but there are only %u traces; "
                                     "give those of all ranks",
                                     paths[i], m->ranks[i].lrank, m->rank_count);
        for (uint32_t k = 0; k < i; k++)
            if (m->ranks[k].lrank == m->ranks[i].lrank)
                return crystal_error_set(err, EINVAL, "%s and %s: both are of rank %u",
                                         paths[k], paths[i], m->ranks[i].lrank);
    }
    return 0;
}

int crystal_import_kineto(const char *const *paths, uint32_t count,
                          const struct crystal_graph_network *network,
                          const char *graph_path, struct crystal_error *err)
{
    struct import m = {.rank_count = count};
    int code = 0;

    m.ranks = calloc(count ? count : 1, sizeof *m.ranks);
    if (!m.ranks || !count)
        code = crystal_error_set(err, count ? ENOMEM : EINVAL,
                                 count ? "out of memory" : "no traces");
    for (uint32_t i = 0; !code && i < count; i++) {
        int bad;

        m.ranks[i].lrank = i;
        code = file_map(paths[i], &m.ranks[i], err);
        if (code)
            break;
        bad = trace_read(&m, &m.ranks[i]);
        if (bad)
            code = trace_error(paths[i], bad, err);
    }
    if (!code)
        code = ranks_check(&m, paths, err);
    for (uint32_t i = 0; !code && i < count; i++) {
        int bad;

        order(&m.ranks[i]);
        bad = locals_make(&m, &m.ranks[i]);
        if (bad)
            code = trace_error(paths[i], bad, err);
    }
    if (!code)
        code = import_write(&m, network, paths, graph_path, err);
    for (uint32_t i = 0; m.ranks && i < count; i++) {
        if (m.ranks[i].text)
            (void)munmap((void *)(uintptr_t)m.ranks[i].text, m.ranks[i].bytes);
        free(m.ranks[i].events);
        free(m.ranks[i].locals);
    }
    for (uint32_t i = 0; i < m.group_count; i++)
        free(m.groups[i].members);
    free(m.groups);
    free(m.ranks);
    return code;
}
