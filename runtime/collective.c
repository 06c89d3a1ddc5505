/* NCCL's collectives on host memory. See collective.h. Reductions take the parts in
 * ascending order of cranks, so that results are the same in every run. */
#include "config.h"

#include "runtime/collective.h"

#include "runtime/nccl_names.h"
#include "runtime/parallel.h"
#include "runtime/reduce.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES  (256U << 10) /* of a reduction at a time */
#define BLOCK_INPUTS 63U
#define THREAD_BYTES (4U << 20) /* read by a thread in a third of a millisecond */

/* Buffers in units of count elements; 0 = the member has none. */
struct buffers {
    uint64_t send, recv;
    int send_optional; /* may be given although nobody reads it */
};

static struct buffers buffers_of(unsigned func, uint32_t nranks, int is_root)
{
    switch (func) {
    case CRYSTAL_FUNC_BROADCAST:
        return (struct buffers){1, 1, !is_root};
    case CRYSTAL_FUNC_REDUCE:
        return (struct buffers){1, is_root ? 1 : 0, 0};
    case CRYSTAL_FUNC_ALLGATHER:
        return (struct buffers){1, nranks, 0};
    case CRYSTAL_FUNC_REDUCESCATTER:
        return (struct buffers){nranks, 1, 0};
    case CRYSTAL_FUNC_ALLREDUCE:
        return (struct buffers){1, 1, 0};
    case CRYSTAL_FUNC_SEND:
        return (struct buffers){1, 0, 0};
    case CRYSTAL_FUNC_RECV:
        return (struct buffers){0, 1, 0};
    case CRYSTAL_FUNC_ALLTOALL:
        return (struct buffers){nranks, nranks, 0};
    case CRYSTAL_FUNC_GATHER:
        return (struct buffers){1, is_root ? nranks : 0, 0};
    default: /* scatter */
        return (struct buffers){nranks, 1, !is_root};
    }
}

int crystal_op_check(const struct crystal_msg_op *op, uint32_t nranks, uint32_t crank,
                     struct crystal_error *err)
{
    struct buffers b;
    uint64_t unit;
    int has_peer = crystal_func_has_root(op->func) || op->func == CRYSTAL_FUNC_SEND ||
                   op->func == CRYSTAL_FUNC_RECV;

    if (op->func == CRYSTAL_FUNC_NONE || op->func >= CRYSTAL_FUNC_COUNT ||
        op->dtype >= ncclNumTypes ||
        (crystal_func_reduces(op->func) && op->redop >= CRYSTAL_REDOP_COUNT))
        return crystal_error_set(
            err, EINVAL, "no such operation: function %u, type %u, reduction %u",
            op->func, op->dtype, op->redop);
    if (has_peer && op->peer >= nranks)
        return crystal_error_set(err, EINVAL, "%s: rank %u of a communicator of %u",
                                 crystal_func_name(op->func), op->peer, nranks);
    if (op->count > CRYSTAL_MESSAGE_BODY_MAX)
        return crystal_error_set(err, EINVAL, "%s of %llu elements is too large",
                                 crystal_func_name(op->func),
                                 (unsigned long long)op->count);
    b = buffers_of(op->func, nranks, op->peer == crank);
    unit = op->count * crystal_dtype_bytes(op->dtype);
    if ((op->send_bytes != b.send * unit && !(b.send_optional && !op->send_bytes)) ||
        (op->recv_bytes != b.recv * unit && op->recv_bytes != 0))
        return crystal_error_set(
            err, EINVAL,
            "%s of %llu x %s: %llu bytes sent and %llu received "
            "do not fit",
            crystal_func_name(op->func), (unsigned long long)op->count,
            crystal_dtype_name(op->dtype), (unsigned long long)op->send_bytes,
            (unsigned long long)op->recv_bytes);
    return 0;
}

uint64_t crystal_op_recv_bytes(const struct crystal_msg_op *op, uint32_t nranks,
                               uint32_t crank)
{
    return buffers_of(op->func, nranks, op->peer == crank).recv * op->count *
           crystal_dtype_bytes(op->dtype);
}

/* --- results --- */

static struct crystal_slice whole(struct crystal_blob *blob)
{
    return (struct crystal_slice){blob, blob->data, blob->bytes};
}

static struct crystal_blob *blob_create(uint64_t bytes, struct crystal_error *err)
{
    struct crystal_blob *blob =
        bytes <= SIZE_MAX - 64 ? crystal_blob_create(bytes) : NULL;

    if (!blob)
        (void)crystal_error_set(err, ENOMEM, "out of memory for a result of %llu bytes",
                                (unsigned long long)bytes);
    return blob;
}

/* The part that stands for crank, with need bytes in it. NULL on failure. */
static const struct crystal_part *part_of(const struct crystal_collective *c,
                                          uint32_t crank, uint64_t need,
                                          struct crystal_error *err)
{
    uint32_t i = c->part_of[crank];

    if (i == CRYSTAL_NO_PART) {
        (void)crystal_error_set(
            err, ENOTSUP,
            "nobody here stands for its rank %u, which is not live; "
            "use --crystal-live=all",
            crank);
        return NULL;
    }
    if (c->parts[i].send.bytes < need) {
        (void)crystal_error_set(err, ENOTSUP,
                                "its rank %u is not live and rank %u, which stands for "
                                "it, has nothing to contribute there; use "
                                "--crystal-live=all",
                                crank, c->parts[i].lrank);
        return NULL;
    }
    return &c->parts[i];
}

/* Makes a copy of a contribution what NCCL adds up. */
static void prepare(const struct crystal_collective *c, const struct crystal_part *part,
                    void *data, size_t count)
{
    const struct crystal_msg_op *op = c->op;

    if (op->redop == CRYSTAL_REDOP_PREMULSUM)
        (void)crystal_reduce_scale(data, count, op->dtype, part->scalar);
    if (op->redop == ncclAvg && crystal_dtype_is_float(op->dtype))
        (void)crystal_reduce_scale(data, count, op->dtype,
                                   crystal_reduce_avg_factor(op->dtype, c->nranks));
    (void)crystal_reduce_repeat(data, count, op->dtype, op->redop, part->times);
}

static int is_as_it_is(const struct crystal_collective *c)
{
    const struct crystal_msg_op *op = c->op;

    if (op->redop == CRYSTAL_REDOP_PREMULSUM ||
        (op->redop == ncclAvg && crystal_dtype_is_float(op->dtype)))
        return 0;
    for (uint32_t i = 0; i < c->part_count; i++)
        if (c->parts[i].times != 1)
            return 0;
    return 1;
}

/* count elements of every part, from element first on, into sum: in the order of the
 * parts. room has as many bytes. */
static void reduce_block(const struct crystal_collective *c, uint64_t first,
                         size_t count, int is_plain, void *sum, void *room)
{
    const struct crystal_msg_op *op = c->op;
    const size_t element = crystal_dtype_bytes(op->dtype);
    const void *in[BLOCK_INPUTS];
    uint32_t n = 0;

    /* arguments were checked by crystal_op_check: these calls cannot fail */
    for (uint32_t i = 0; i < c->part_count; i++) {
        const uint8_t *from = c->parts[i].send.at + first * element;

        if (i == 0 || !is_plain) {
            void *to = i == 0 ? sum : room;

            memcpy(to, from, count * element);
            prepare(c, &c->parts[i], to, count);
            if (i > 0)
                (void)crystal_reduce(sum, room, count, op->dtype, op->redop);
            continue;
        }
        in[n++] = from;
        if (n == BLOCK_INPUTS || i + 1 == c->part_count) {
            (void)crystal_reduce_many(sum, in, n, count, op->dtype, op->redop);
            n = 0;
        }
    }
    if (op->redop == ncclAvg && !crystal_dtype_is_float(op->dtype))
        (void)crystal_reduce_finish_avg(sum, count, op->dtype, c->nranks);
}

struct reduction {
    const struct crystal_collective *c;
    uint64_t first; /* element of the parts */
    size_t count, block;
    uint8_t *sum;
    int is_plain;
};

static int reduce_blocks(void *context, uint32_t first, uint32_t end)
{
    const struct reduction *r = context;
    size_t element = crystal_dtype_bytes(r->c->op->dtype);
    uint8_t *room = malloc(BLOCK_BYTES);

    if (!room)
        return -ENOMEM;
    for (size_t at = first * r->block; at < r->count && at < end * r->block;
         at += r->block) {
        size_t now = r->count - at < r->block ? r->count - at : r->block;

        reduce_block(r->c, r->first + at, now, r->is_plain, r->sum + at * element,
                     room);
    }
    free(room);
    return 0;
}

/* As many as are busy for longer than it takes to start them. */
static uint32_t thread_count(uint64_t bytes)
{
    uint32_t most = crystal_parallel_processors();

    return bytes / THREAD_BYTES < most ? 1 + (uint32_t)(bytes / THREAD_BYTES) : most;
}

/* Reduces elements [first, first + count) of all parts, block by block, so that the sum
 * stays in the processor's cache; an element's order is that of the parts, whatever the
 * number of threads. */
static int reduce_parts(const struct crystal_collective *c, uint64_t first,
                        struct crystal_slice *ret, struct crystal_error *err)
{
    const struct crystal_msg_op *op = c->op;
    size_t element = crystal_dtype_bytes(op->dtype);
    struct reduction r = {.c = c,
                          .first = first,
                          .count = (size_t)op->count,
                          .block = BLOCK_BYTES / element,
                          .is_plain = is_as_it_is(c)};
    struct crystal_blob *sum = blob_create(r.count * element, err);
    uint64_t blocks = (r.count + r.block - 1) / r.block;

    if (!sum)
        return -ENOMEM;
    r.sum = sum->data;
    if (blocks > UINT32_MAX ||
        crystal_parallel(thread_count(r.count * element * c->part_count),
                         (uint32_t)blocks, 1, reduce_blocks, &r)) {
        crystal_blob_unref(sum);
        return crystal_error_set(err, ENOMEM, "out of memory for a reduction");
    }
    *ret = whole(sum);
    return 0;
}

/* Puts block number (crank's of alltoall, 0 of gathers) of every member in a row. */
static int gather_parts(const struct crystal_collective *c, uint32_t block,
                        struct crystal_slice *ret, struct crystal_error *err)
{
    uint64_t unit = c->op->count * crystal_dtype_bytes(c->op->dtype);
    struct crystal_blob *all = blob_create(unit * c->nranks, err);

    if (!all)
        return -ENOMEM;
    for (uint32_t j = 0; j < c->nranks; j++) {
        const struct crystal_part *part = part_of(c, j, (block + 1) * unit, err);

        if (!part) {
            crystal_blob_unref(all);
            return -ENOTSUP;
        }
        if (unit)
            memcpy(all->data + j * unit, part->send.at + block * unit, (size_t)unit);
    }
    *ret = whole(all);
    return 0;
}

/* Block number of what the root sent, where it stands in the root's message. */
static int root_block(const struct crystal_collective *c, uint32_t block,
                      struct crystal_slice *ret, struct crystal_error *err)
{
    uint64_t unit = c->op->count * crystal_dtype_bytes(c->op->dtype);
    const struct crystal_part *part = part_of(c, c->op->peer, (block + 1) * unit, err);

    if (!part)
        return -ENOTSUP;
    *ret = (struct crystal_slice){crystal_blob_ref(part->send.blob),
                                  part->send.at + block * unit, (size_t)unit};
    return 0;
}

/* Every member is stood for; reductions need all. */
static int all_present(const struct crystal_collective *c, struct crystal_error *err)
{
    for (uint32_t j = 0; j < c->nranks; j++)
        if (!part_of(c, j, 0, err))
            return -ENOTSUP;
    return 0;
}

int crystal_collective_is_shared(const struct crystal_collective *c)
{
    return c->op->func == CRYSTAL_FUNC_ALLREDUCE ||
           c->op->func == CRYSTAL_FUNC_ALLGATHER;
}

int crystal_collective_result(const struct crystal_collective *c, uint32_t crank,
                              struct crystal_slice *ret, struct crystal_error *err)
{
    int rc;

    switch (c->op->func) {
    case CRYSTAL_FUNC_BROADCAST:
        return root_block(c, 0, ret, err);
    case CRYSTAL_FUNC_SCATTER:
        return root_block(c, crank, ret, err);
    case CRYSTAL_FUNC_ALLGATHER:
    case CRYSTAL_FUNC_GATHER:
        return gather_parts(c, 0, ret, err);
    case CRYSTAL_FUNC_ALLTOALL:
        return gather_parts(c, crank, ret, err);
    default:
        rc = all_present(c, err);
        if (rc < 0)
            return rc;
        return reduce_parts(
            c, c->op->func == CRYSTAL_FUNC_REDUCESCATTER ? crank * c->op->count : 0,
            ret, err);
    }
}
