/* Traces of live ranks: a file of checked blocks (runtime/blockfile.h) with records of
 * 32 bytes. This file adds the START record, the flush at least every 200 ms of the
 * records' own time, and the LOST record.
 *
 * A record and the EXT records behind it stay in one block where they can (a record
 * other than EXT starts a new block when fewer than EXT_ROOM records fit), so that a
 * block that reached the file is complete in itself.
 */
#include "config.h"

#include "runtime/clock.h"
#include "runtime/trace.h"

#include "runtime/blockfile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FLUSH_NS 200000000ULL
#define EXT_ROOM 16

static const struct crystal_blockfile_kind trace_kind = {
    CRYSTAL_TRACE_MAGIC, CRYSTAL_TRACE_VERSION, sizeof(struct crystal_op), 1};

struct crystal_trace_writer {
    struct crystal_block_writer *blocks; /* owned */
    uint64_t start_ns;                   /* absolute */
    uint64_t flushed_ns;                 /* t_ns of the first record of this block */
};

struct crystal_trace_writer *crystal_trace_create(const char *path, uint64_t lrank,
                                                  uint64_t fingerprint,
                                                  struct crystal_error *err)
{
    struct crystal_trace_writer *w = calloc(1, sizeof *w);
    struct crystal_op start = {.kind = CRYSTAL_OP_START};

    if (!w) {
        (void)crystal_error_set(err, ENOMEM, "%s: out of memory", path);
        return NULL;
    }
    w->blocks = crystal_block_create(path, &trace_kind, lrank, fingerprint, err);
    if (!w->blocks) {
        free(w);
        return NULL;
    }
    w->start_ns = crystal_now_ns();
    start.value = w->start_ns;
    start.aux = (uint32_t)getpid();
    crystal_block_append(w->blocks, &start);
    if (crystal_block_flush(w->blocks, err)) {
        (void)crystal_block_close(w->blocks, NULL); /* the error is set */
        free(w);
        return NULL;
    }
    return w;
}

uint64_t crystal_trace_start_ns(const struct crystal_trace_writer *w)
{
    return w->start_ns;
}

void crystal_trace_append(struct crystal_trace_writer *w, const struct crystal_op *op)
{
    if (op->kind != CRYSTAL_OP_EXT) {
        uint32_t room = crystal_block_room(w->blocks);

        if (room < EXT_ROOM ||
            (op->t_ns > w->flushed_ns && op->t_ns - w->flushed_ns >= FLUSH_NS)) {
            (void)crystal_block_flush(w->blocks, NULL); /* remembered there */
            w->flushed_ns = op->t_ns;
        }
    }
    crystal_block_append(w->blocks, op);
}

int crystal_trace_flush(struct crystal_trace_writer *w, struct crystal_error *err)
{
    return crystal_block_flush(w->blocks, err);
}

uint64_t crystal_trace_count(const struct crystal_trace_writer *w)
{
    return crystal_block_count(w->blocks);
}

int crystal_trace_close(struct crystal_trace_writer *w, struct crystal_error *err)
{
    int code;

    if (!w)
        return 0;
    (void)crystal_block_flush(w->blocks, NULL); /* so that lost is the final number */
    if (crystal_block_lost(w->blocks)) {
        struct crystal_op lost = {.kind = CRYSTAL_OP_LOST};

        lost.value = crystal_block_lost(w->blocks);
        crystal_block_retry(w->blocks);
        crystal_block_append(w->blocks, &lost);
    }
    code = crystal_block_close(w->blocks, err);
    free(w);
    return code;
}

int crystal_trace_seal(const char *path, struct crystal_error *err)
{
    return crystal_block_seal(path, &trace_kind, err);
}

int crystal_trace_read(const char *path, struct crystal_trace *ret_trace,
                       struct crystal_error *err)
{
    struct crystal_trace trace;
    void *records;
    int code = crystal_block_read(path, &trace_kind, &trace.head, &records,
                                  &trace.op_count, err);

    if (code)
        return code;
    trace.ops = records;
    *ret_trace = trace;
    return 0;
}

void crystal_trace_fini(struct crystal_trace *trace)
{
    if (!trace)
        return;
    free(trace->ops);
    memset(trace, 0, sizeof *trace);
}
