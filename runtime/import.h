/* PyTorch profiler traces (Kineto's JSON, one file for each rank) as a job.graph: what
 * the device did, by stream, in the order and at the distance in which the host issued
 * it, and the collectives and messages with their process groups.
 *
 * Of an event only what is needed is read: device work (kernels, copies), its stream
 * and duration; the launch with the same correlation; "Stream Wait Event"; and, of
 * NCCL's kernels, collective, sizes, type and ranks, which PyTorch 2.2 and later note.
 * The whole trace is one iteration: profile one step. Roots are not in the trace: 0.
 */
#ifndef CRYSTAL_IMPORT_H
#define CRYSTAL_IMPORT_H

#include "runtime/error.h"
#include "runtime/graph.h"

#include <stdint.h>

/* paths: the traces of ranks 0 .. count - 1, or in any order where they tell their
 * rank. network may be NULL. */
int crystal_import_kineto(const char *const *paths, uint32_t count,
                          const struct crystal_graph_network *network,
                          const char *graph_path, struct crystal_error *err);

#endif
