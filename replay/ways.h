/* How the library did the collectives of a rank while plan measured it, and how long
 * its operations waited for virtual ranks: from the net plugin's run records to the
 * instructions of its program.
 */
#ifndef CRYSTAL_WAYS_H
#define CRYSTAL_WAYS_H

#include "runtime/error.h"
#include "runtime/program.h"
#include "runtime/trace.h"

#include <stdint.h>

/* Adds what the run records at path tell of algorithm and protocol to the flags of p's
 * COLL instructions, and what they tell of waiting for virtual ranks, in iterations
 * first .. mark_count - 2, to waited_ns, by instruction. t is the trace of the same
 * process, marks as crystal_iteration_find gives them. Nothing is added where there are
 * no records, or where they are not of these calls. */
int crystal_ways_add(const char *path, const struct crystal_graph *g,
                     const struct crystal_trace *t, const uint64_t *marks,
                     uint32_t mark_count, uint32_t first, struct crystal_program *p,
                     uint64_t *waited_ns, struct crystal_error *err);

#endif
