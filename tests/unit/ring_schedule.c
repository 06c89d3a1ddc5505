/* The ring schedule: what is received covers the tensor exactly once, what one rank
 * sends its neighbour expects, and the numbers are NCCL's. */
#include "config.h"

#include "runtime/ring_schedule.h"

#include "tests/check.h"

#define MAX_PIECES 65536

static const enum crystal_func funcs[] = {
    CRYSTAL_FUNC_BROADCAST, CRYSTAL_FUNC_REDUCE, CRYSTAL_FUNC_ALLGATHER,
    CRYSTAL_FUNC_REDUCESCATTER, CRYSTAL_FUNC_ALLREDUCE};
static const uint64_t counts[] = {0,    1,     2,      3,      17,     1000,
                                  4097, 65537, 262144, 524293, 3000001};

struct piece {
    uint64_t offset, elts;
};
static struct piece pieces[MAX_PIECES];
static uint32_t piece_count;

static void add_piece(uint64_t offset, uint64_t elts)
{
    if (!elts)
        return;
    CHECK(piece_count < MAX_PIECES);
    if (piece_count < MAX_PIECES)
        pieces[piece_count++] = (struct piece){offset, elts};
}

static int by_offset(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;

    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The pieces added so far are total elements, each exactly once. */
static bool pieces_cover(uint64_t total)
{
    uint64_t at = 0;

    qsort(pieces, piece_count, sizeof *pieces, by_offset);
    for (uint32_t i = 0; i < piece_count; i++) {
        if (pieces[i].offset != at)
            return false;
        at += pieces[i].elts;
    }
    piece_count = 0;
    return at == total;
}

/* All messages of one direction with steps first .. last, over all channels. */
static void add_messages(struct crystal_ring_op op, uint32_t crank, int is_send,
                         uint32_t first, uint32_t last)
{
    struct crystal_ring_message m;

    for (op.channel = 0; op.channel < op.channel_count; op.channel++) {
        uint64_t n = crystal_ring_message_count(&op, crank, is_send);

        for (uint64_t i = 0; i < n; i++) {
            crystal_ring_message(&op, crank, is_send, i, &m);
            if (m.step >= first && m.step <= last)
                add_piece(m.offset_elts, m.elts);
        }
    }
}

static bool rank_is_covered(const struct crystal_ring_op *op, uint32_t crank)
{
    uint32_t n = op->nranks;
    uint64_t total = op->count;

    switch (op->func) {
    case CRYSTAL_FUNC_ALLREDUCE: /* everything is sent once to be reduced, and comes
                                    back once reduced */
        add_messages(*op, crank, 1, 0, n - 1);
        if (!pieces_cover(total))
            return false;
        add_messages(*op, crank, 0, n - 2, 2 * n - 3);
        return pieces_cover(total);
    case CRYSTAL_FUNC_ALLGATHER:
        add_messages(*op, crank, 0, 0, UINT32_MAX);
        add_piece(crank * op->count, op->count);
        return pieces_cover(n * total);
    case CRYSTAL_FUNC_REDUCESCATTER:
        add_messages(*op, crank, 1, 0, UINT32_MAX);
        add_piece(crank * op->count, op->count);
        if (!pieces_cover(n * total))
            return false;
        add_messages(*op, crank, 0, n - 2, n - 2);
        add_piece(0, crank * op->count);
        add_piece((crank + 1) * op->count, (n - crank - 1) * op->count);
        return pieces_cover(n * total);
    case CRYSTAL_FUNC_BROADCAST:
        add_messages(*op, crank, 0, 0, 0);
        return pieces_cover(crank == op->root ? 0 : total);
    default: /* reduction to the root */
        add_messages(*op, crank, 1, 0, 0);
        return pieces_cover(crank == op->root ? 0 : total);
    }
}

static bool same(const struct crystal_ring_message *a,
                 const struct crystal_ring_message *b)
{
    return a->offset_elts == b->offset_elts && a->elts == b->elts &&
           a->step == b->step && a->slice == b->slice && a->loop == b->loop &&
           a->block == b->block;
}

static bool neighbours_agree(struct crystal_ring_op op, uint32_t crank)
{
    struct crystal_ring_message out, in;
    uint32_t next = (crank + 1) % op.nranks;

    for (op.channel = 0; op.channel < op.channel_count; op.channel++) {
        uint64_t n = crystal_ring_message_count(&op, crank, 1);

        if (n != crystal_ring_message_count(&op, next, 0))
            return false;
        for (uint64_t i = 0; i < n; i++) {
            crystal_ring_message(&op, crank, 1, i, &out);
            crystal_ring_message(&op, next, 0, i, &in);
            if (!same(&out, &in))
                return false;
        }
    }
    return true;
}

static void check_operation(struct crystal_ring_op op)
{
    for (uint32_t crank = 0; crank < op.nranks; crank++) {
        bool covered = rank_is_covered(&op, crank), agree = neighbours_agree(op, crank);

        piece_count = 0;
        if (covered && agree)
            continue;
        printf("# func %d n %u count %llu of %u bytes, channels %u, crank %u\n",
               (int)op.func, op.nranks, (unsigned long long)op.count, op.elt_bytes,
               op.channel_count, crank);
        CHECK(covered);
        CHECK(agree);
    }
}

static void covers_exactly_once(void)
{
    for (uint32_t n = 2; n <= 17; n++)
        for (size_t f = 0; f < sizeof funcs / sizeof *funcs; f++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                for (uint32_t bytes = 1; bytes <= 8; bytes *= 2)
                    check_operation((struct crystal_ring_op){.func = funcs[f],
                                                             .nranks = n,
                                                             .root = n / 3,
                                                             .count = counts[c],
                                                             .elt_bytes = bytes,
                                                             .channel_count = 1});
}

static void covers_over_channels(void)
{
    static const uint32_t channels[] = {2, 3, 8, 32, 64};

    for (uint32_t n = 2; n <= 9; n += 3)
        for (size_t f = 0; f < sizeof funcs / sizeof *funcs; f++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                for (size_t k = 0; k < sizeof channels / sizeof *channels; k++)
                    check_operation(
                        (struct crystal_ring_op){.func = funcs[f],
                                                 .nranks = n,
                                                 .root = n - 1,
                                                 .count = counts[c],
                                                 .elt_bytes = 4,
                                                 .channel_count = channels[k]});
}

/* Section d of the protocol: 2(n-1) * loops * 2, (n-1) * loops * 2, loops. */
static void counts_messages(void)
{
    struct crystal_ring_op op = {.nranks = 5, .elt_bytes = 4, .channel_count = 1};
    uint64_t loop_elts = 5 * (2U << 20) / 4;

    op.func = CRYSTAL_FUNC_ALLREDUCE;
    op.count = 1;
    CHECK_EQ(crystal_ring_message_count(&op, 0, 1), 2 * 4 * 1 * 2);
    op.count = loop_elts;
    CHECK_EQ(crystal_ring_message_count(&op, 3, 0), 2 * 4 * 1 * 2);
    op.count = loop_elts + 1;
    CHECK_EQ(crystal_ring_message_count(&op, 3, 0), 2 * 4 * 2 * 2);
    op.func = CRYSTAL_FUNC_ALLGATHER;
    op.count = 3 * (2U << 20) / 4;
    CHECK_EQ(crystal_ring_message_count(&op, 2, 1), 4 * 3 * 2);
    op.func = CRYSTAL_FUNC_REDUCESCATTER;
    op.count++;
    CHECK_EQ(crystal_ring_message_count(&op, 2, 1), 4 * 4 * 2);
    op.func = CRYSTAL_FUNC_BROADCAST;
    op.root = 1;
    op.count = 10 * (512U << 10) / 4;
    CHECK_EQ(crystal_ring_message_count(&op, 2, 1), 10);
    CHECK_EQ(crystal_ring_message_count(&op, 1, 0), 0);
    CHECK_EQ(crystal_ring_message_count(&op, 1, 1), 10);
    CHECK_EQ(crystal_ring_message_count(&op, 0, 1), 0);
    op.func = CRYSTAL_FUNC_REDUCE;
    CHECK_EQ(crystal_ring_message_count(&op, 1, 1), 0);
    CHECK_EQ(crystal_ring_message_count(&op, 1, 0), 10);
    CHECK_EQ(crystal_ring_message_count(&op, 2, 0), 0);
    op.nranks = 1;
    op.root = 0;
    CHECK_EQ(crystal_ring_message_count(&op, 0, 1), 0);
    op.nranks = 5;
    op.count = 0;
    CHECK_EQ(crystal_ring_message_count(&op, 3, 1), 0);
}

static void check_message(const struct crystal_ring_op *op, uint32_t crank,
                          uint64_t index, uint64_t offset, uint32_t elts,
                          uint32_t block)
{
    struct crystal_ring_message m;

    crystal_ring_message(op, crank, 1, index, &m);
    CHECK_EQ(m.offset_elts, offset);
    CHECK_EQ(m.elts, elts);
    CHECK_EQ(m.block, block);
}

static void cuts_as_nccl_does(void)
{
    struct crystal_ring_op op = {.func = CRYSTAL_FUNC_ALLREDUCE,
                                 .nranks = 4,
                                 .count = 100003,
                                 .elt_bytes = 4,
                                 .channel_count = 1};

    /* chunk = up(25001, 4) = 25004; slice = max(up(25004, 32) / 2, 8192) = 12512 */
    check_message(&op, 0, 0, 75012, 12496, 3); /* the last chunk has 24991 */
    check_message(&op, 0, 1, 87508, 12495, 3);
    check_message(&op, 0, 2, 50008, 12512, 2);
    check_message(&op, 0, 3, 62520, 12492, 2);
    check_message(&op, 0, 11, 62520, 12492, 2);
    /* one element: the first chunk is 1 of 4 elements, the others are empty */
    op.count = 1;
    check_message(&op, 1, 0, 0, 1, 0);
    check_message(&op, 1, 1, 1, 0, 0);
    check_message(&op, 1, 2, 1, 0, 3);
    /* gathers count bytes: 40 KiB of 8-byte elements = slices of 32 and 8 KiB */
    op.func = CRYSTAL_FUNC_ALLGATHER;
    op.elt_bytes = 8;
    op.count = 5120;
    check_message(&op, 2, 0, 2 * 5120, 4096, 2);
    check_message(&op, 2, 1, 2 * 5120 + 4096, 1024, 2);
    check_message(&op, 2, 4, 0, 4096, 0);
    op.func = CRYSTAL_FUNC_REDUCESCATTER;
    check_message(&op, 2, 0, 1 * 5120, 4096, 1);
}

/* 1 MiB of floats over 4 ranks: NCCL fills 32 channels with 4 cells of 8 KiB each; 3
 * cells of 8 KiB and a bit use 4 channels of the 32. */
static void deals_cells_to_channels(void)
{
    struct crystal_ring_op op = {.func = CRYSTAL_FUNC_ALLREDUCE,
                                 .nranks = 4,
                                 .count = 262144,
                                 .elt_bytes = 4,
                                 .channel_count = 32};

    op.channel = 31;
    CHECK_EQ(crystal_ring_message_count(&op, 0, 1), 12);
    check_message(&op, 1, 0, 31 * 8192, 2048, 0);
    op.count = 3 * 2048 + 5;
    op.channel = 3;
    check_message(&op, 1, 0, 3 * 2048, 4, 0);
    op.channel = 4;
    CHECK_EQ(crystal_ring_message_count(&op, 0, 1), 0);
    op.channel_count = 4; /* the number used gives the same cuts */
    op.channel = 3;
    check_message(&op, 1, 0, 3 * 2048, 4, 0);
}

/* What stock NCCL 2.28.9 sent over two channels with LL, 16 bytes for 8 of data: LL's
 * traffic counts four times in the share of a channel, too. */
static void deals_ll_as_nccl_does(void)
{
    struct crystal_ring_op op = {.func = CRYSTAL_FUNC_ALLREDUCE,
                                 .nranks = 2,
                                 .count = 100003,
                                 .elt_bytes = 1,
                                 .channel_count = 2,
                                 .proto = CRYSTAL_PROTO_LL};

    check_message(&op, 0, 0, 25600, 51200 / 2, 1);
    op.channel = 1; /* the other 24 cells, one of them short: 48803 bytes */
    check_message(&op, 0, 0, 51200 + 24416, 48803 - 24416, 1);
    op.channel = 0;
    op.nranks = 4;
    check_message(&op, 1, 0, 0, 25600 / 2, 0);
    op.func = CRYSTAL_FUNC_REDUCESCATTER;
    op.nranks = 64;
    op.count = 5000;
    op.elt_bytes = 4;
    check_message(&op, 5, 0, 4 * 5000, 20096 / 2 / 4, 4);
}

int main(void)
{
    check_begin();
    CHECK_RUN(covers_exactly_once);
    CHECK_RUN(covers_over_channels);
    CHECK_RUN(counts_messages);
    CHECK_RUN(cuts_as_nccl_does);
    CHECK_RUN(deals_cells_to_channels);
    CHECK_RUN(deals_ll_as_nccl_does);
    return check_end();
}
