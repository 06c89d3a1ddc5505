/* How the library did the collectives of a rank while plan measured it: from the net
 * plugin's run records to the instructions of its program.
 */
#ifndef CRYSTAL_WAYS_H
#define CRYSTAL_WAYS_H

#include "runtime/error.h"
#include "runtime/program.h"
#include "runtime/trace.h"

#include <stdint.h>

/* Adds what the run records at path tell of algorithm and protocol to the flags of p's
 * COLL instructions. t is the trace of the same process, whose records begin .. end are
 * one iteration. Nothing is added where there are no records, or where they are not of
 * these calls. */
int crystal_ways_add(const char *path, const struct crystal_graph *g,
                     const struct crystal_trace *t, uint64_t begin, uint64_t end,
                     struct crystal_program *p, struct crystal_error *err);

#endif
