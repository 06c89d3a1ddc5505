/* The tree schedule: the trees are NCCL's (those drawn in its sources), every rank is
 * reached exactly once, both ends of a connection agree, and the messages of all
 * channels cover the tensor. */
#include "config.h"

#include "runtime/tree_schedule.h"

#include "tests/check.h"

static void check_place(const struct crystal_tree_op *op, uint32_t crank, int32_t up,
                        int32_t down0, int32_t down1, int32_t down2)
{
    struct crystal_tree_place place;

    crystal_tree_place(op, crank, &place);
    CHECK_EQ(place.up, up);
    CHECK_EQ(place.down[0], down0);
    CHECK_EQ(place.down[1], down1);
    CHECK_EQ(place.down[2], down2);
}

static struct crystal_tree_op op_of(uint32_t nranks, uint32_t channel)
{
    return (struct crystal_tree_op){.nranks = nranks,
                                    .ranks_per_node = 1,
                                    .shape = CRYSTAL_TREE_SINGLE,
                                    .half = 1,
                                    .elt_bytes = 4,
                                    .channel_count = 2,
                                    .channel = channel};
}

static void first_tree_of_14(void)
{
    struct crystal_tree_op op = op_of(14, 0);

    check_place(&op, 0, -1, 8, -1, -1);
    check_place(&op, 8, 0, 4, 12, -1);
    check_place(&op, 12, 8, 10, 13, -1);
    check_place(&op, 6, 4, 5, 7, -1);
    check_place(&op, 13, 12, -1, -1, -1);
    check_place(&op, 3, 2, -1, -1, -1);
}

static void second_tree_is_a_mirror_or_turned(void)
{
    struct crystal_tree_op even = op_of(12, 1), odd = op_of(13, 1);

    check_place(&even, 11, -1, 3, -1, -1);
    check_place(&even, 3, 11, 7, 1, -1);
    check_place(&even, 7, 3, 9, 5, -1);
    check_place(&even, 1, 3, 2, 0, -1);
    check_place(&odd, 1, -1, 9, -1, -1);
    check_place(&odd, 9, 1, 5, 0, -1);
    check_place(&odd, 0, 9, 11, -1, -1);
    check_place(&odd, 11, 0, 10, 12, -1);
}

static void chains_and_shapes_of_nodes(void)
{
    struct crystal_tree_op op = op_of(12, 0); /* nodes 0, 1, 2: 0 - 2 - 1 */

    op.ranks_per_node = 4;
    op.shape = CRYSTAL_TREE_BALANCED; /* 0's only child is its second */
    check_place(&op, 0, -1, 1, 8, -1);
    check_place(&op, 1, 0, 2, -1, -1);
    check_place(&op, 3, 2, -1, -1, -1);
    check_place(&op, 8, 0, 9, -1, -1);
    check_place(&op, 9, 8, 10, 4, -1);
    check_place(&op, 4, 9, 5, -1, -1);
    op.shape = CRYSTAL_TREE_SPLIT;
    check_place(&op, 0, -1, 1, -1, -1);
    check_place(&op, 1, 0, 2, 8, -1);
    check_place(&op, 8, 1, 9, -1, -1);
    op.shape = CRYSTAL_TREE_SINGLE;
    check_place(&op, 0, -1, 1, 8, -1);
    check_place(&op, 8, 0, 9, 4, -1);
    CHECK(crystal_tree_is_below(&op, 7, 8));
    CHECK(crystal_tree_is_below(&op, 8, 8));
    CHECK(!crystal_tree_is_below(&op, 1, 8));
}

/* Both ends agree, and all are below the one rank without a parent. */
static void check_tree(const struct crystal_tree_op *op)
{
    uint32_t roots = 0, edges = 0, root = 0;

    for (uint32_t r = 0; r < op->nranks; r++) {
        struct crystal_tree_place place, child;

        crystal_tree_place(op, r, &place);
        if (place.up < 0) {
            roots++;
            root = r;
        }
        for (int i = 0; i < CRYSTAL_TREE_ARITY && place.down[i] >= 0; i++) {
            crystal_tree_place(op, (uint32_t)place.down[i], &child);
            CHECK_EQ(child.up, r);
            edges++;
        }
    }
    CHECK_EQ(roots, 1);
    CHECK_EQ(edges, op->nranks - 1);
    for (uint32_t r = 0; r < op->nranks; r++)
        CHECK(crystal_tree_is_below(op, r, root));
}

static void every_rank_is_reached(void)
{
    for (uint32_t nodes = 1; nodes <= 130; nodes++)
        for (uint32_t l = 1; l <= 8; l *= 2)
            for (uint32_t channel = 0; channel < 2; channel++) {
                struct crystal_tree_op op = op_of(nodes * l, channel);

                op.ranks_per_node = l;
                for (int shape = CRYSTAL_TREE_BALANCED; shape <= CRYSTAL_TREE_SINGLE;
                     shape++) {
                    op.shape = (enum crystal_tree_shape)shape;
                    check_tree(&op);
                }
            }
}

static void messages_cover_the_tensor(void)
{
    static const uint64_t counts[] = {0,     1,      1000,   4096,   4097,
                                      65537, 262144, 524293, 3000001};
    static const uint32_t sizes[] = {1, 2, 4, 8};

    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++)
        for (unsigned s = 0; s < 4; s++)
            for (uint32_t channels = 1; channels <= 4; channels++) {
                struct crystal_tree_op op = op_of(5, 0);
                uint64_t at = 0;

                op.count = counts[i];
                op.elt_bytes = sizes[s];
                op.channel_count = channels;
                for (op.channel = 0; op.channel < channels; op.channel++)
                    for (uint64_t m = 0; m < crystal_tree_message_count(&op); m++) {
                        struct crystal_tree_message message;

                        crystal_tree_message(&op, m, &message);
                        CHECK_EQ(message.offset_elts, at);
                        CHECK(message.elts > 0);
                        CHECK(message.elts * sizes[s] <= 512U << 10);
                        at += message.elts;
                    }
                CHECK_EQ(at, counts[i]);
            }
}

static void small_operations_use_the_first_tree(void)
{
    struct crystal_tree_op op = op_of(4, 0);

    op.count = 2048; /* 8 KiB: 16 KiB of traffic */
    CHECK_EQ(crystal_tree_message_count(&op), 1);
    op.channel = 1;
    CHECK_EQ(crystal_tree_message_count(&op), 0);
    op.count = 1 << 20; /* 2 MiB on each channel */
    CHECK_EQ(crystal_tree_message_count(&op), 4);
}

/* Chunks of the other protocols; LL128 halves them where there are few. */
static void protocols(void)
{
    static const struct {
        enum crystal_proto proto;
        uint32_t nranks;
        uint64_t tensor, count, last_offset;
        uint32_t last_elts;
    } rows[] = {
        {CRYSTAL_PROTO_LL, 4, 300000, 37, 294912, 5088},
        /* 576,000 is halved to 18,000 bytes, in whole grains 17,280 */
        {CRYSTAL_PROTO_LL128, 4, 300000, 70, 298080, 1920},
        {CRYSTAL_PROTO_LL128, 1024, 1 << 26, 933, 67104000, 4864},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct crystal_tree_op op = op_of(rows[i].nranks, 0);
        struct crystal_tree_message message;
        uint64_t count;

        op.channel_count = 1;
        op.count = rows[i].tensor;
        op.proto = rows[i].proto;
        count = crystal_tree_message_count(&op);
        CHECK_EQ(count, rows[i].count);
        crystal_tree_message(&op, count - 1, &message);
        CHECK_EQ(message.offset_elts, rows[i].last_offset);
        CHECK_EQ(message.elts, rows[i].last_elts);
    }
}

/* What stock NCCL 2.28.9 sent: 100003 bytes over two channels with LL are 25 cells of
 * 2048 and 24, in chunks of 32 KiB. */
static void deals_ll_as_nccl_does(void)
{
    struct crystal_tree_op op = op_of(4, 0);
    struct crystal_tree_message m;

    op.proto = CRYSTAL_PROTO_LL;
    op.count = 100003;
    op.elt_bytes = 1;
    CHECK_EQ(crystal_tree_message_count(&op), 2);
    crystal_tree_message(&op, 0, &m);
    CHECK_EQ(crystal_form_bytes(op.proto, m.elts), 65536);
    crystal_tree_message(&op, 1, &m);
    CHECK_EQ(m.offset_elts, 32768);
    CHECK_EQ(m.elts, 51200 - 32768);
    op.channel = 1;
    CHECK_EQ(crystal_tree_message_count(&op), 2);
    crystal_tree_message(&op, 1, &m);
    CHECK_EQ(m.offset_elts, 51200 + 32768);
    CHECK_EQ(m.elts, 48803 - 32768);
}

int main(void)
{
    check_begin();
    CHECK_RUN(first_tree_of_14);
    CHECK_RUN(second_tree_is_a_mirror_or_turned);
    CHECK_RUN(chains_and_shapes_of_nodes);
    CHECK_RUN(every_rank_is_reached);
    CHECK_RUN(messages_cover_the_tensor);
    CHECK_RUN(small_operations_use_the_first_tree);
    CHECK_RUN(protocols);
    CHECK_RUN(deals_ll_as_nccl_does);
    return check_end();
}
