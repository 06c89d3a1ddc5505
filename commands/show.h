/* Printing the records of a job directory's files as text, for show and graph. */
#ifndef CRYSTAL_COMMANDS_SHOW_H
#define CRYSTAL_COMMANDS_SHOW_H

#include "runtime/graph.h"
#include "runtime/profile_file.h"
#include "runtime/nccl_names.h"
#include "runtime/trace.h"

#include <stdbool.h>
#include <stdio.h>

/* One line per record, with its index from first on; EXT records join the COMM record
 * before them. comm_name gives the name behind a record's communicator (context, index)
 * or NULL; it may be NULL itself. */
void crystal_show_ops(FILE *out, const struct crystal_op *ops, uint64_t first,
                      uint64_t end);
/* Ranks, communicators, iterations of a graph; with_ops prints every operation too. */
int crystal_show_graph(FILE *out, const struct crystal_graph *g, int with_ops);
/* Iterations, computation and transfers of a profile. */
void crystal_show_profile(FILE *out, const struct crystal_profile *p);

/* What is known of a collective's CRYSTAL_OP_WAY: " by tree with LL", or nothing. */
void crystal_show_way(FILE *out, uint8_t way);

#endif
