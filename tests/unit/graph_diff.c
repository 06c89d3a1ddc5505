/* Diff, rank map and memory of graphs, with exact text. */
#include "config.h"

#include "runtime/graph_diff.h"

#include "tests/check.h"
#include "tests/graph_edit.h"

#include <unistd.h>

static char path[64], other_path[64], text[4096];

static FILE *text_open(void)
{
    FILE *out = fmemopen(text, sizeof text, "w");

    EDIT_MUST(!out);
    memset(text, 0, sizeof text);
    return out;
}

static uint64_t halve(struct crystal_op *ops, uint64_t count)
{
    uint64_t i = 0;

    while (ops[i].kind != CRYSTAL_OP_SEND)
        i++;
    ops[i].value /= 2;
    return count;
}

static void diffs(void)
{
    struct crystal_graph *a = edit_example("llama3-405b-16384", 1, 1, path), *b;
    FILE *out = text_open();

    CHECK_EQ(crystal_graph_diff(out, a, a, &edit_err), 0);
    (void)fclose(out);
    CHECK_STR(text, "128 ranks do the same in both\n");
    edit_graph(a, other_path, 9, halve);
    b = crystal_graph_open(other_path, &edit_err);
    EDIT_MUST(!b);
    out = text_open();
    CHECK_EQ(crystal_graph_diff(out, a, b, &edit_err), 1);
    (void)fclose(out);
    CHECK_STR(text, "  operation 16 of ranks 8 and 9:\n"
                    "    - record 22: send, 16777216 x bfloat16, comm 2, peer 1\n"
                    "    + record 22: send, 8388608 x bfloat16, comm 2, peer 1\n");
    crystal_graph_close(a);
    crystal_graph_close(b);
}

/* Two pairs of ranks that exchange messages; rank 2 does what rank 0 does, as
 * the first of its pair or, wrongly, as the second, and rank 3 does nothing. */
static void pairs(int wrongly)
{
    struct crystal_graph_writer *w = crystal_graph_writer_create(4);
    uint32_t members[2] = {0, 1}, map;
    struct crystal_op op = {.dtype = 7, .value = 8};

    EDIT_MUST(!w);
    (void)crystal_graph_writer_comm(w, NULL, 2, members);
    members[0] = wrongly ? 3 : 2;
    members[1] = wrongly ? 2 : 3;
    (void)crystal_graph_writer_comm(w, NULL, 2, members);
    for (uint32_t r = 0; r < 2; r++) {
        (void)crystal_graph_writer_rep(w, r, 1);
        crystal_graph_writer_mark(w);
        op.kind = r ? CRYSTAL_OP_RECV : CRYSTAL_OP_SEND;
        op.func = r ? CRYSTAL_FUNC_RECV : CRYSTAL_FUNC_SEND;
        op.peer = !r;
        crystal_graph_writer_op(w, &op);
        crystal_graph_writer_mark(w);
    }
    (void)crystal_graph_writer_rep(w, 3, 0); /* does nothing */
    crystal_graph_writer_mark(w);
    op = (struct crystal_op){.kind = CRYSTAL_OP_HINT};
    crystal_graph_writer_op(w, &op);
    crystal_graph_writer_mark(w);
    for (uint32_t r = 0; r < 4; r++) {
        map = r / 2;
        crystal_graph_writer_rank(w, r, r == 3 ? 2 : r % 2, &map);
    }
    EDIT_MUST(crystal_graph_writer_write(w, path, 0, &edit_err));
    crystal_graph_writer_destroy(w);
}

static void rank_maps(void)
{
    struct crystal_graph *g = edit_example("qwen3-235b-a22b-8192", 2, 2, path);
    FILE *out = text_open();

    CHECK_EQ(crystal_graph_expand_check(out, g, &edit_err), 0);
    (void)fclose(out);
    CHECK_STR(text, "128 ranks fit the 16 that stand for them, in 416 communicators "
                    "with all their members\n");
    crystal_graph_close(g);
    pairs(0);
    g = crystal_graph_open(path, &edit_err);
    EDIT_MUST(!g);
    out = text_open();
    CHECK_EQ(crystal_graph_expand_check(out, g, &edit_err), 1);
    (void)fclose(out);
    CHECK_STR(text,
              "rank 3 does not fit: it is a member of communicator 1, and what rank "
              "3 does, who stands for it, never uses that\n");
    crystal_graph_close(g);
    pairs(1);
    g = crystal_graph_open(path, &edit_err);
    EDIT_MUST(!g);
    out = text_open();
    CHECK_EQ(crystal_graph_expand_check(out, g, &edit_err), 1);
    (void)fclose(out);
    CHECK_STR(text, "rank 2 does not fit rank 0, which stands for it: it is crank 1 of "
                    "communicator 1, that one crank 0 of communicator 0, and messages "
                    "name cranks\n");
    crystal_graph_close(g);
}

static void memory(void)
{
    static const struct {
        uint64_t bytes;
        uint32_t is_free;
    } rows[] = {{1000, 0}, {500, 0}, {300, 0}, {500, 1}, {400, 0}, {300, 1}, {400, 1}};
    struct crystal_graph_writer *w = crystal_graph_writer_create(1);
    struct crystal_graph_memory m;
    struct crystal_graph *g;

    EDIT_MUST(!w);
    (void)crystal_graph_writer_rep(w, 0, 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct crystal_op op = {
            .kind = CRYSTAL_OP_ALLOC, .aux = rows[i].is_free, .value = rows[i].bytes};

        if (i == 1)
            crystal_graph_writer_mark(w);
        crystal_graph_writer_op(w, &op);
    }
    crystal_graph_writer_mark(w);
    crystal_graph_writer_rank(w, 0, 0, NULL);
    EDIT_MUST(crystal_graph_writer_write(w, path, 0, &edit_err));
    crystal_graph_writer_destroy(w);
    g = crystal_graph_open(path, &edit_err);
    EDIT_MUST(!g);
    CHECK_EQ(crystal_graph_memory(NULL, g, 0, &m), 1);
    CHECK_EQ(m.start_bytes, 1000);
    CHECK_EQ(m.peak_bytes, 1800);
    CHECK_EQ(m.peak_record, 2);
    CHECK_EQ(m.end_bytes, 1000);
    CHECK_EQ(m.allocation_count, 7);
    crystal_graph_close(g);
}

int main(void)
{
    (void)snprintf(path, sizeof path, "/tmp/crystal-diff.%ld", (long)getpid());
    (void)snprintf(other_path, sizeof other_path, "%s.other", path);
    check_begin();
    CHECK_RUN(diffs);
    CHECK_RUN(rank_maps);
    CHECK_RUN(memory);
    (void)unlink(path); /* temporary files */
    (void)unlink(other_path);
    return check_end();
}
