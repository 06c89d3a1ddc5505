/* Rank lists and grids: exact values there and back, and one sentence per bad text. */
#include "config.h"

#include "runtime/layout.h"

#include "tests/check.h"

static void lists_there_and_back(void)
{
    static const struct {
        const char *text;
        int keep_order;
        const char *back;
        uint32_t count;
    } cases[] = {
        {"0", 0, "0", 1},
        {"0-7", 0, "0-7", 8},
        {"16,0-3,2-5", 0, "0-5,16", 7},
        {"5,4,3", 1, "5,4,3", 3},
        {"0,8,16,24", 1, "0,8,16,24", 4},
        {"4-6,0-1", 1, "4-6,0-1", 5},
    };

    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t *ranks = NULL, count = 0;
        char *back;

        CHECK_EQ(crystal_ranks_parse(cases[i].text, 32, cases[i].keep_order, &ranks,
                                     &count, NULL),
                 0);
        CHECK_EQ(count, cases[i].count);
        back = crystal_ranks_format(ranks, count);
        CHECK_STR(back, cases[i].back);
        free(back);
        free(ranks);
    }
}

static void bad_lists(void)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"", "is no rank list"},
        {"a", "is no rank list"},
        {"1,", "is no rank list"},
        {"-1", "is no rank list"},
        {"3-1", "is no rank list"},
        {"1 2", "is no rank list"},
        {"32", "beyond 31"},
        {"0-32", "beyond 31"},
        {"99999999999999999999", "beyond"},
        {"0-4294967296", "beyond"},
    };

    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct crystal_error err = {0};
        uint32_t *ranks = NULL, count = 0;

        CHECK(crystal_ranks_parse(cases[i].text, 32, 0, &ranks, &count, &err) < 0);
        CHECK_HAS(crystal_error_text(&err), cases[i].want);
        CHECK(ranks == NULL);
    }
}

static void grids(void)
{
    struct crystal_grid grid;
    struct crystal_error err = {0};
    static const char *const bad[] = {
        "",   "tp",    "tp=",    "tp=0",      "tp=2,",         "tp=2 pp=2",
        "=2", "tp=-1", "tp=2.5", "tp=2,tp=4", "tp=99999999999"};

    CHECK_EQ(crystal_grid_parse("tp=2,pp=4,dp=8", &grid, NULL), 0);
    CHECK_EQ(grid.count, 3);
    CHECK_STR(grid.dim[1].name, "pp");
    CHECK_EQ(crystal_grid_size(&grid, "dp"), 8);
    CHECK_EQ(crystal_grid_size(&grid, "cp"), 1);
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(crystal_grid_parse(bad[i], &grid, &err) < 0);
        CHECK_HAS(crystal_error_text(&err), "grid");
    }
}

int main(void)
{
    check_begin();
    CHECK_RUN(lists_there_and_back);
    CHECK_RUN(bad_lists);
    CHECK_RUN(grids);
    return check_end();
}
