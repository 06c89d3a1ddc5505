/* Colours and keys of ranks that do not run, against what they are by definition. */
#include "config.h"

#include "replay/split_groups.h"

#include "tests/check.h"

#include <errno.h>

/* abs(hash(tuple)) % 2**31 of CPython 3.11 and 3.12. */
static void colours_of_pytorch(void)
{
    uint32_t ranks[128];

    ranks[0] = 0;
    CHECK_EQ(split_color_python(1, ranks), 59908776);
    ranks[1] = 1;
    CHECK_EQ(split_color_python(2, ranks), 2130503744);
    for (uint32_t i = 0; i < 3; i++)
        ranks[i] = 8 * i;
    CHECK_EQ(split_color_python(3, ranks), 1750354384);
    for (uint32_t i = 0; i < 64; i++)
        ranks[i] = i;
    CHECK_EQ(split_color_python(64, ranks), 2047566134);
    for (uint32_t i = 0; i < 128; i++)
        ranks[i] = 5 + 64 * i;
    CHECK_EQ(split_color_python(128, ranks), 1724196948);
}

static void names(void)
{
    char text[128], parent[128];

    split_child_name("/a/b", 0, 3, 17, text);
    CHECK_STR(text, "/a/b/split3:17");
    split_child_name("/a/b", 1, 0, 17, text);
    CHECK_STR(text, "/a/b/shrink0");
    memset(parent, 'x', sizeof parent);
    parent[127] = '\0';
    split_child_name(parent, 0, 0, 7, text);
    CHECK_EQ(strlen(text), 111);
    CHECK_STR(text + 111 - 11, "xx/split0:7");
}

/* --- a parent of 16 ranks in a grid, in order or in reverse --- */

static struct {
    struct crystal_layout layout;
    uint32_t members[16];
    struct split_parent parent;
    struct split_told told;
    struct crystal_error err;
    uint32_t count, cranks[16];
    int32_t color;
    unsigned children;
} now;

static void begin(const char *grid, int is_reversed)
{
    memset(&now, 0, sizeof now);
    now.layout.lrank_count = 16;
    now.layout.ranks_per_node = 4;
    CHECK_EQ(crystal_grid_parse(grid, &now.layout.grid, &now.err), 0);
    now.parent = (struct split_parent){.layout = &now.layout,
                                       .told = &now.told,
                                       .name = "p",
                                       .nranks = 16,
                                       .members = now.members};
    for (uint32_t i = 0; i < 16; i++)
        now.members[i] = is_reversed ? 15 - i : i;
}

static int keep(void *context, int32_t color, uint32_t count, const uint32_t *cranks,
                struct crystal_error *err)
{
    (void)context;
    (void)err;
    now.color = color;
    now.count = count;
    memcpy(now.cranks, cranks, 4 * (size_t)count);
    now.children++;
    return 0;
}

static void check_child(uint32_t count, const uint32_t *cranks)
{
    CHECK_EQ(now.count, count);
    CHECK(now.count == count && memcmp(now.cranks, cranks, 4 * (size_t)count) == 0);
}

static void only_group(void)
{
    static const uint32_t both[8] = {0, 1, 4, 5, 8, 9, 12, 13};
    struct split_groups *g;
    int32_t color, key;

    begin("tp=2,pp=2,dp=4", 0);
    g = split_groups_create(&now.parent, 0);
    /* 1 and 5 differ in dp only: their group is of dp or of more dimensions, but
     * 3 and 0 have other colours */
    CHECK_EQ(split_groups_tell(g, 0, 3, 0), 0);
    CHECK_EQ(split_groups_tell(g, 1, 7, 1), 0);
    CHECK_EQ(split_groups_tell(g, 5, 7, 5), 0);
    CHECK_EQ(split_groups_tell(g, 3, 8, 3), 0);
    CHECK_EQ(split_groups_tell(g, 4, 3, 4), 0);
    CHECK_EQ(split_groups_tell(g, 2, -1, 0), 0);
    CHECK_EQ(split_groups_ask(g, 9, &color, &key, &now.err), 0);
    CHECK_EQ(color, 7);
    CHECK_EQ(key, 9); /* keys are ranks */
    CHECK_EQ(split_groups_ask(g, 10, &color, &key, &now.err), 0);
    CHECK_EQ(color, -1);
    CHECK_EQ(split_groups_ask(g, 9, &color, &key, &now.err), 0);
    CHECK_EQ(color, 7);
    CHECK_EQ(split_groups_each(g, keep, NULL, &now.err), 0);
    CHECK_EQ(now.children, 3); /* 3, 7 and 8 */
    split_groups_destroy(g);
    now.children = 0;
    g = split_groups_create(&now.parent, 0);
    CHECK_EQ(split_groups_tell(g, 1, 7, 5), 0); /* all keys are 5 */
    CHECK_EQ(split_groups_tell(g, 0, 7, 5), 0);
    CHECK_EQ(split_groups_tell(g, 4, 7, 5), 0);
    CHECK_EQ(split_groups_tell(g, 2, 1, 5), 0);
    CHECK_EQ(split_groups_each(g, keep, NULL, &now.err), -EAGAIN); /* 2: pp? dp? */
    split_groups_destroy(g);
    now.children = 0;
    g = split_groups_create(&now.parent, 0);
    CHECK_EQ(split_groups_tell(g, 1, 7, 5), 0);
    CHECK_EQ(split_groups_tell(g, 0, 7, 5), 0);
    CHECK_EQ(split_groups_tell(g, 4, 7, 5), 0);
    CHECK_EQ(split_groups_tell(g, 2, -1, 5), 0);
    CHECK_EQ(split_groups_each(g, keep, NULL, &now.err), 0);
    check_child(8, both);
    split_groups_destroy(g);
}

static void numbered_group(void)
{
    struct split_groups *g;
    int32_t color, key;

    begin("tp=2,pp=2,dp=4", 1);
    g = split_groups_create(&now.parent, 0);
    /* Both crank 1's group of dp, 1 5 9 13, and that of dp and pp, which has 3, too,
     * are the second of their kinds in the order of cranks; 3 has another colour. */
    CHECK_EQ(split_groups_tell(g, 1, 1, 0), 0);
    CHECK_EQ(split_groups_tell(g, 3, 3, 0), 0);
    CHECK_EQ(split_groups_ask(g, 13, &color, &key, &now.err), 0);
    CHECK_EQ(color, 1);
    CHECK_EQ(key, 3); /* its place; at place 0 that says nothing else */
    CHECK_EQ(split_groups_each(g, keep, NULL, &now.err), 0);
    CHECK_EQ(now.color, 3);
    split_groups_destroy(g);
}

/* A group that its members' colour names; who asks before they have told it gets an
 * error in the end, not a wrong group. */
static void told_group(void)
{
    static const uint32_t odd[3] = {1, 6, 11};
    struct split_groups *g;
    int32_t color, key;

    begin("dp=16", 0);
    CHECK_EQ(split_told_add(&now.told, 3, odd), 0);
    CHECK_EQ(split_told_add(&now.told, 3, odd), 0);
    CHECK_EQ(now.told.count, 1);
    g = split_groups_create(&now.parent, 0);
    CHECK_EQ(split_groups_tell(g, 5, -1, 0), 0);
    CHECK_EQ(split_groups_tell(g, 6, split_color_python(3, odd), 1), 0);
    CHECK_EQ(split_groups_ask(g, 11, &color, &key, &now.err), 0);
    CHECK_EQ(color, split_color_python(3, odd));
    CHECK_EQ(key, 2);
    CHECK_EQ(split_groups_each(g, keep, NULL, &now.err), 0);
    check_child(3, odd);
    split_groups_destroy(g);
    g = split_groups_create(&now.parent, 0);
    CHECK_EQ(split_groups_tell(g, 5, -1, 0), 0);
    CHECK_EQ(split_groups_ask(g, 11, &color, &key, &now.err), 0);
    CHECK_EQ(color, -1);
    CHECK_EQ(split_groups_tell(g, 6, split_color_python(3, odd), 1), 0);
    CHECK_EQ(split_groups_each(g, keep, NULL, &now.err), -EPROTO);
    split_groups_destroy(g);
    /* the same key for all, keys without a rule, and keys that turn the order round */
    g = split_groups_create(&now.parent, 0);
    CHECK_EQ(split_groups_tell(g, 6, split_color_python(3, odd), -6), 0);
    CHECK_EQ(split_groups_ask(g, 1, &color, &key, &now.err), 0);
    CHECK_EQ(key, -6);
    CHECK_EQ(split_groups_ask(g, 11, &color, &key, &now.err), 0);
    CHECK_EQ(key, -6);
    CHECK_EQ(split_groups_each(g, keep, NULL, &now.err), 0);
    check_child(3, odd);
    split_groups_destroy(g);
    g = split_groups_create(&now.parent, 0);
    CHECK_EQ(split_groups_tell(g, 6, split_color_python(3, odd), -6), 0);
    CHECK_EQ(split_groups_tell(g, 11, split_color_python(3, odd), 20), 0);
    CHECK_EQ(split_groups_ask(g, 1, &color, &key, &now.err), 0);
    CHECK_EQ(key, -7); /* in front of rank 6 by one step */
    CHECK_EQ(split_groups_each(g, keep, NULL, &now.err), 0);
    check_child(3, odd);
    split_groups_destroy(g);
    g = split_groups_create(&now.parent, 0);
    CHECK_EQ(split_groups_tell(g, 6, split_color_python(3, odd), -6), 0);
    CHECK_EQ(split_groups_tell(g, 1, split_color_python(3, odd), -1), 0);
    CHECK_EQ(split_groups_ask(g, 11, &color, &key, &now.err), -ERANGE);
    split_groups_destroy(g);
    split_told_fini(&now.told);
}

static void shrunk_group(void)
{
    static const uint32_t some[5] = {0, 1, 6, 11, 15}, more[6] = {0, 1, 6, 11, 13, 15};
    uint32_t *cranks = NULL, count = 0;

    begin("tp=2,dp=8", 0); /* no part of the grid, which nobody has told */
    CHECK_EQ(split_shrink_find(&now.parent, 0, 1, 6, &cranks, &count, &now.err),
             -ENOENT);
    CHECK_STR(now.err.text,
              "ncclCommShrink: which ranks stay is not known: no group has rank 1 in "
              "front of rank 6; capture the job");
    CHECK_EQ(split_told_add(&now.told, 5, some), 0);
    CHECK_EQ(split_told_add(&now.told, 6, more), 0);
    CHECK_EQ(split_shrink_find(&now.parent, 0, 1, 6, &cranks, &count, &now.err),
             -ENOENT);
    CHECK_EQ(split_shrink_find(&now.parent, 0, 11, 15, &cranks, &count, &now.err), 0);
    CHECK_EQ(count, 5);
    CHECK(count == 5 && memcmp(cranks, some, sizeof some) == 0);
    free(cranks);
    split_told_fini(&now.told);
}

int main(void)
{
    check_begin();
    CHECK_RUN(colours_of_pytorch);
    CHECK_RUN(names);
    CHECK_RUN(only_group);
    CHECK_RUN(numbered_group);
    CHECK_RUN(told_group);
    CHECK_RUN(shrunk_group);
    return check_end();
}
