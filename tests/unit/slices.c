/* Who measures which slice of plan, where several nodes share them. */
#include "config.h"

#include "replay/slices.h"

#include "tests/check.h"

#define MOST 16

struct row {
    uint32_t slices, sandbox, per_node, nodes;
    uint32_t want[MOST];
};

static const struct row rows[] = {
    /* one node: all are its own */
    {4, 2, 4, 1, {0, 0, 0, 0}},
    /* a target node each, then evenly */
    {2, 2, 4, 2, {0, 1}},
    {7, 2, 4, 2, {0, 1, 0, 1, 0, 1, 0}},
    {6, 3, 4, 3, {0, 1, 2, 0, 1, 2}},
    /* two target nodes on a node; the other has fewer, until both have as many */
    {3, 3, 4, 2, {0, 0, 1}},
    {7, 3, 4, 2, {0, 0, 1, 1, 0, 1, 0}},
    {8, 4, 2, 2, {0, 0, 1, 1, 0, 1, 0, 1}},
    /* a target node over two nodes of the allocation: the first one measures it */
    {4, 1, 4, 2, {0, 1, 0, 1}},
    /* more nodes than slices */
    {3, 2, 4, 5, {0, 3, 1}},
};

static void each_has_its_share(void)
{
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        const struct row *row = &rows[r];
        uint32_t first[MOST + 1], got[MOST] = {0};
        struct crystal_slices s = {
            .count = row->slices, .sandbox_count = row->sandbox, .first = first};

        for (uint32_t i = 0; i <= row->slices; i++)
            first[i] = i * row->per_node;
        crystal_slices_deal(&s, row->nodes, got);
        for (uint32_t i = 0; i < row->slices; i++) {
            if (got[i] != row->want[i])
                printf("# row %zu, slice %u\n", r, i);
            CHECK_EQ(got[i], row->want[i]);
        }
    }
}

int main(void)
{
    check_begin();
    CHECK_RUN(each_has_its_share);
    return check_end();
}
