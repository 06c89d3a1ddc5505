/* See spans.h. */
#include "config.h"

#include "replay/spans.h"

#include <errno.h>
#include <stdlib.h>

#define STREAMS 65536 /* what a record can name */
#define NOTHING UINT64_MAX

/* While the records are gone through. */
struct reading {
    const struct crystal_op *ops;
    struct crystal_span *spans;
    uint64_t *last;    /* [STREAMS]: the latest operation of a stream */
    uint64_t *before;  /* [op_count]: the one before it there */
    uint64_t *waited;  /* [STREAMS]: operations of less than this were waited for */
    uint64_t *covered; /* [event_count]: the latest operation in front of an event */
    uint64_t event_count;
};

static int is_operation(const struct crystal_op *op)
{
    return op->kind == CRYSTAL_OP_COLL || op->kind == CRYSTAL_OP_SEND ||
           op->kind == CRYSTAL_OP_RECV;
}

/* The host has waited for operation `at`, and so for all before it on its stream. */
static void returned(struct reading *r, uint64_t at, uint64_t time_ns)
{
    uint64_t next = at;

    if (at == NOTHING)
        return;
    for (; next != NOTHING && next >= r->waited[r->ops[at].stream];
         next = r->before[next])
        if (r->spans[next].end_ns != UINT64_MAX && r->spans[next].end_ns > time_ns)
            r->spans[next].end_ns = time_ns;
    if (at >= r->waited[r->ops[at].stream])
        r->waited[r->ops[at].stream] = at + 1;
}

static void read_record(struct reading *r, uint64_t i)
{
    const struct crystal_op *op = &r->ops[i];

    r->before[i] = NOTHING;
    if (is_operation(op)) {
        r->before[i] = r->last[op->stream];
        r->last[op->stream] = i;
    } else if (op->kind == CRYSTAL_OP_RECORD && op->peer < r->event_count) {
        r->covered[op->peer] = r->last[op->stream];
    } else if (op->kind == CRYSTAL_OP_WAIT && op->peer < r->event_count) {
        returned(r, r->covered[op->peer], op->value);
    } else if (op->kind == CRYSTAL_OP_SYNC) {
        returned(r, r->last[op->stream], op->value);
    }
}

/* Where an operation began when the one before it on its stream was seen to end, it
 * began when that has ended. */
static void begin_earlier(struct reading *r, const uint64_t *seen, uint64_t i)
{
    uint64_t before = r->before[i];
    struct crystal_span *span = &r->spans[i];

    if (span->end_ns == UINT64_MAX || before == NOTHING ||
        r->spans[before].end_ns == UINT64_MAX || span->begin_ns != seen[before])
        return;
    span->begin_ns = r->ops[i].t_ns > r->spans[before].end_ns ? r->ops[i].t_ns
                                                              : r->spans[before].end_ns;
}

struct crystal_span *crystal_spans_find(const struct crystal_op *ops, uint64_t op_count,
                                        struct crystal_error *err)
{
    struct crystal_span *spans = malloc((op_count + 1) * sizeof *spans);
    uint64_t *seen = calloc(op_count + 1, sizeof *seen); /* the ends of DONE records */
    struct reading r = {.ops = ops, .spans = spans, .event_count = op_count};

    r.last = malloc(STREAMS * sizeof *r.last);
    r.waited = calloc(STREAMS, sizeof *r.waited);
    r.before = malloc((op_count + 1) * sizeof *r.before);
    r.covered = malloc((op_count + 1) * sizeof *r.covered);
    if (!spans || !seen || !r.last || !r.waited || !r.before || !r.covered) {
        (void)crystal_error_set(err, ENOMEM, "out of memory");
        free(spans);
        spans = NULL;
        goto out;
    }
    for (uint64_t i = 0; i < op_count; i++)
        spans[i].begin_ns = spans[i].end_ns = UINT64_MAX;
    for (uint64_t i = 0; i < op_count; i++) {
        const struct crystal_op *done = &ops[i];

        if (done->kind != CRYSTAL_OP_DONE || done->peer >= op_count ||
            done->t_ns < done->value)
            continue;
        spans[done->peer].begin_ns = done->value;
        spans[done->peer].end_ns = seen[done->peer] = done->t_ns;
    }
    for (uint64_t i = 0; i < STREAMS; i++)
        r.last[i] = NOTHING;
    for (uint64_t i = 0; i < op_count; i++)
        r.covered[i] = NOTHING;
    for (uint64_t i = 0; i < op_count; i++)
        read_record(&r, i);
    for (uint64_t i = 0; i < op_count; i++)
        if (is_operation(&ops[i]))
            begin_earlier(&r, seen, i);
out:
    free(seen);
    free(r.last);
    free(r.waited);
    free(r.before);
    free(r.covered);
    return spans;
}
