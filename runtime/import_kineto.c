/* Reading a trace of PyTorch's profiler. See import.h for what is taken. */
#include "config.h"

#include "runtime/import_trace.h"

#include "runtime/filehead.h"
#include "runtime/json_reader.h"
#include "runtime/nccl_abi.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* "[0, 8, 16]" -> members, ascending or not; -EINVAL where the list is cut short. */
static int members_parse(struct crystal_json_token t, uint32_t limit, uint32_t **ret,
                         uint32_t *ret_count)
{
    uint32_t *members = NULL, count = 0, value = 0;
    uint64_t *seen; /* bit by rank */
    bool has_digit = false;

    members = malloc((t.bytes / 2 + 1) * sizeof *members);
    seen = calloc(limit / 64 + 1, sizeof *seen);
    if (!members || !seen) {
        free(members);
        free(seen);
        return -ENOMEM;
    }
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
            if (seen[value / 64] >> (value % 64) & 1)
                goto bad;
            seen[value / 64] |= UINT64_C(1) << (value % 64);
            members[count++] = value;
        }
        has_digit = false;
    }
    if (!count || has_digit)
        goto bad;
    free(seen);
    *ret = members;
    *ret_count = count;
    return 0;
bad:
    free(seen);
    free(members);
    return -EINVAL;
}

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
    struct import_event *e;
    bool has_stream;
};

static void arg_take(struct args *a, struct crystal_json_token key,
                     struct crystal_json_token value)
{
    struct import_event *e = a->e;

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

/* What is read: the rank's events as they stand in the file. */
struct kineto {
    const struct import *m;
    struct import_rank *r;
    struct import_events events;
};

static int group_read(const struct kineto *k, const struct args *a, uint64_t name,
                      uint64_t list, uint32_t *ret)
{
    struct import_group group = {.name = name, .list = list, .is_owner = true};
    uint32_t *members;
    int code = a->members.bytes
                   ? members_parse(a->members, k->m->rank_count, &members, &group.count)
                   : -EINVAL;

    if (code)
        return code == -ENOMEM ? code : -EPROTO;
    group.members = members;
    *ret = import_group_add(&k->r->groups, &group);
    return *ret == IMPORT_NONE ? -ENOMEM : 0;
}

/* The communication in an event; -EPROTO where its group cannot be known. */
static int communication(const struct kineto *k, struct args *a)
{
    uint8_t func = func_of(a->collective);
    struct import_event *e = a->e;
    uint64_t name = crystal_hash(a->group.text, a->group.bytes);
    uint64_t list = crystal_hash(a->members.text, a->members.bytes);
    int code = 0;

    if (func == CRYSTAL_FUNC_NONE)
        return 0; /* a kernel like others */
    e->group = import_group_find(&k->r->groups, name, list);
    if (e->group == IMPORT_NONE)
        code = group_read(k, a, name, list, &e->group);
    if (code)
        return code;
    e->func = func;
    e->what = func == CRYSTAL_FUNC_SEND   ? IMPORT_SEND
              : func == CRYSTAL_FUNC_RECV ? IMPORT_RECV
                                          : IMPORT_COLL;
    return 0;
}

/* What a kernel's name tells of the algorithm. NCCL has kernels of their own for trees
 * only; those named RING serve what is none of the others, too, and all are named LL
 * (NCCL 2.28, src/device/generate.py). */
static uint8_t way_of(const struct import_event *e)
{
    static const char tree[] = "_TREE_";
    const size_t bytes = sizeof tree - 1;

    for (size_t i = 0; i + bytes <= e->name_bytes; i++)
        if (memcmp(e->name + i, tree, bytes) == 0)
            return CRYSTAL_OP_WAY(CRYSTAL_OP_ALGO_TREE, CRYSTAL_OP_PROTO_UNKNOWN);
    return 0;
}

static bool is_stream_wait(const struct import_event *e)
{
    static const char name[] = "Stream Wait Event";

    return e->name_bytes == sizeof name - 1 &&
           memcmp(e->name, name, sizeof name - 1) == 0;
}

static int event_read(struct crystal_json *j, struct kineto *k)
{
    struct import_event e = {.from = IMPORT_NONE,
                             .to = IMPORT_NONE,
                             .root = IMPORT_NONE,
                             .dtype = ncclUint8};
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
            e.name = value.text;
            e.name_bytes = value.bytes;
        } else if (crystal_json_is(key, "ts")) {
            e.start_ns = ns_of(value);
        } else if (crystal_json_is(key, "dur")) {
            e.ns = ns_of(value);
        }
    }
    e.issue_ns = e.start_ns;
    if (crystal_json_is(cat, "kernel") || crystal_json_is(cat, "gpu_memcpy") ||
        crystal_json_is(cat, "gpu_memset")) {
        e.what = IMPORT_KERNEL;
        if (a.collective.bytes && (code = communication(k, &a)))
            return code;
        if (e.what == IMPORT_COLL)
            e.way = way_of(&e);
    } else if (crystal_json_is(cat, "cuda_sync") && is_stream_wait(&e) &&
               a.has_stream) {
        e.what = IMPORT_STREAM_WAIT;
    } else if ((crystal_json_is(cat, "cuda_runtime") ||
                crystal_json_is(cat, "cuda_driver")) &&
               e.correlation) {
        return import_launch_add(&k->events,
                                 (struct import_launch){e.correlation, e.issue_ns});
    } else {
        return 0;
    }
    return import_event_add(&k->events, &e);
}

static int events_read(struct crystal_json *j, struct kineto *k)
{
    for (;;) {
        struct crystal_json_token t = crystal_json_next(j);
        int code = 0;

        if (t.kind == CRYSTAL_JSON_ARRAY_END)
            return 0;
        if (t.kind == CRYSTAL_JSON_OBJECT)
            code = event_read(j, k);
        else if (crystal_json_skip(j, t))
            code = -EINVAL;
        if (code)
            return code;
    }
}

static int info_read(struct crystal_json *j, struct import_rank *r)
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

static int trace_read(struct kineto *k)
{
    struct crystal_json_token key;
    struct crystal_json j;
    int code = 0;

    crystal_json_init(&j, k->r->text, k->r->bytes);
    if (crystal_json_next(&j).kind != CRYSTAL_JSON_OBJECT)
        return -EINVAL;
    while (!code && (key = crystal_json_next(&j)).kind == CRYSTAL_JSON_KEY) {
        struct crystal_json_token value = crystal_json_next(&j);

        if (crystal_json_is(key, "traceEvents") && value.kind == CRYSTAL_JSON_ARRAY)
            code = events_read(&j, k);
        else if (crystal_json_is(key, "distributedInfo") &&
                 value.kind == CRYSTAL_JSON_OBJECT)
            code = info_read(&j, k->r);
        else if (crystal_json_skip(&j, value))
            code = -EINVAL;
    }
    if (!code && key.kind != CRYSTAL_JSON_OBJECT_END)
        code = -EINVAL;
    return code;
}

int import_kineto_read(const struct import *m, struct import_rank *r)
{
    struct kineto k = {.m = m, .r = r};
    int code = trace_read(&k);

    if (!code)
        code = import_events_order(&k.events);
    for (size_t i = 0; !code && i < k.events.count; i++)
        code = import_ops_put(r, &k.events.rows[i],
                              k.events.rows[i].issue_ns - k.events.rows[0].issue_ns);
    if (!code)
        code = import_ops_end(r);
    import_events_fini(&k.events);
    return code;
}
