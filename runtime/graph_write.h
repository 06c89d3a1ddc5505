/* Writing a job.graph record by record: what synth and import make of other things than
 * our own traces (graph_build.h makes it of those). Version 2, without contributions.
 *
 * A failed call (memory, a limit of the format) is remembered and told by write, so
 * that callers need not look at each. One thread at a time.
 */
#ifndef CRYSTAL_GRAPH_WRITE_H
#define CRYSTAL_GRAPH_WRITE_H

#include "runtime/error.h"
#include "runtime/graph.h"

#include <stddef.h>
#include <stdint.h>

struct crystal_graph_writer;

/* NULL where there is no memory. */
struct crystal_graph_writer *crystal_graph_writer_create(uint32_t lrank_count);
void crystal_graph_writer_destroy(struct crystal_graph_writer *w);

void crystal_graph_writer_network(struct crystal_graph_writer *w,
                                  const struct crystal_graph_network *network);

/* The value for a KERNEL's aux; equal names are kept once. */
uint32_t crystal_graph_writer_label(struct crystal_graph_writer *w, const char *name);

/* A communicator: its index. name may be NULL; members are copied. */
uint32_t crystal_graph_writer_comm(struct crystal_graph_writer *w, const char *name,
                                   uint32_t nranks, const uint32_t *members);

/* A representative: its index. Its records and marks follow, one by one. */
uint32_t crystal_graph_writer_rep(struct crystal_graph_writer *w, uint32_t lrank,
                                  uint32_t local_count);
void crystal_graph_writer_op(struct crystal_graph_writer *w,
                             const struct crystal_op *op);
/* Many of them; copied. */
void crystal_graph_writer_ops(struct crystal_graph_writer *w,
                              const struct crystal_op *ops, size_t count);
/* An iteration begins, or the last one ends, with the next record. */
void crystal_graph_writer_mark(struct crystal_graph_writer *w);

/* lrank does what rep does, with these communicators: as many as rep has locals. Every
 * lrank once, after all representatives. */
void crystal_graph_writer_rank(struct crystal_graph_writer *w, uint32_t lrank,
                               uint32_t rep, const uint32_t *map);

/* Writes the file by way of a temporary name. It can be opened, or this fails. */
int crystal_graph_writer_write(struct crystal_graph_writer *w, const char *path,
                               uint64_t fingerprint, struct crystal_error *err);

#endif
