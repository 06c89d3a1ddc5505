/* Graphs for tests: a copy of a graph in which one rank does something else, and small
 * graphs written record by record. Failing calls end the test program.
 */
#ifndef CRYSTAL_TESTS_GRAPH_EDIT_H
#define CRYSTAL_TESTS_GRAPH_EDIT_H

#include "runtime/graph_write.h"
#include "runtime/synth.h"

#include "tests/folders.h"
#include "tests/must.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct crystal_error edit_err;

#define EDIT_MUST(call) MUST_OF(call, edit_err)

/* Changes the records of a rank's own copy of its list; returns how many there are now,
 * at most count. */
typedef uint64_t (*edit_fn)(struct crystal_op *ops, uint64_t count);

static inline void edit_comms(const struct crystal_graph *g,
                              struct crystal_graph_writer *w)
{
    for (uint32_t i = 0; i < crystal_graph_comm_count(g); i++) {
        struct crystal_graph_comm c;

        crystal_graph_comm(g, i, &c);
        (void)crystal_graph_writer_comm(w, c.name, c.nranks, c.members);
    }
}

/* One list; the only marks are its begin and its end. */
static inline void edit_rep(const struct crystal_graph *g,
                            struct crystal_graph_writer *w, uint32_t rep,
                            uint32_t lrank, edit_fn edit)
{
    uint64_t count;
    const struct crystal_op *ops = crystal_graph_ops(g, rep, &count);
    struct crystal_op *copy = malloc((count + 1) * sizeof *copy);

    EDIT_MUST(!copy);
    memcpy(copy, ops, count * sizeof *copy);
    if (edit)
        count = edit(copy, count);
    (void)crystal_graph_writer_rep(w, lrank, crystal_graph_local_count(g, lrank));
    crystal_graph_writer_mark(w);
    for (uint64_t i = 0; i < count; i++) {
        if (copy[i].kind == CRYSTAL_OP_KERNEL)
            copy[i].aux = 0; /* names are not copied */
        crystal_graph_writer_op(w, &copy[i]);
    }
    crystal_graph_writer_mark(w);
    free(copy);
}

/* Writes to path what g is, but for lrank, whose records edit changes. */
static inline void edit_graph(const struct crystal_graph *g, const char *path,
                              uint32_t lrank, edit_fn edit)
{
    uint32_t n = crystal_graph_lrank_count(g), reps = crystal_graph_rep_count(g),
             map[64];
    struct crystal_graph_writer *w = crystal_graph_writer_create(n);
    struct crystal_graph_network network;

    EDIT_MUST(!w);
    if (crystal_graph_network(g, &network))
        crystal_graph_writer_network(w, &network);
    edit_comms(g, w);
    for (uint32_t i = 0; i < reps; i++) {
        uint32_t stands = crystal_graph_rep_lrank(g, i);

        if (stands == lrank) /* another one stands for its ranks */
            for (stands = 0; stands == lrank || crystal_graph_rep_of(g, stands) != i;)
                stands++;
        edit_rep(g, w, i, stands, NULL);
    }
    edit_rep(g, w, crystal_graph_rep_of(g, lrank), lrank, edit);
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t i = 0; i < crystal_graph_local_count(g, r); i++)
            map[i] = crystal_graph_comm_of(g, r, i);
        crystal_graph_writer_rank(w, r, r == lrank ? reps : crystal_graph_rep_of(g, r),
                                  map);
    }
    EDIT_MUST(crystal_graph_writer_write(w, path, 0, &edit_err));
    crystal_graph_writer_destroy(w);
}

/* The example with that name from contrib/examples/synth, with dp replicas of it and
 * ep. */
static inline struct crystal_graph *edit_example(const char *name, uint32_t dp,
                                                 uint32_t ep, const char *path)
{
    const char *srcdir = source_folder();
    struct crystal_graph *g;
    struct crystal_synth s;
    char yaml[4096];

    (void)snprintf(yaml, sizeof yaml, "%s/contrib/examples/synth/%s.yaml", srcdir,
                   name);
    EDIT_MUST(crystal_synth_read(yaml, &s, &edit_err));
    s.dp = dp;
    s.ep = ep;
    EDIT_MUST(crystal_synth_write(&s, path, &edit_err));
    g = crystal_graph_open(path, &edit_err);
    EDIT_MUST(!g);
    return g;
}

#endif
