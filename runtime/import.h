/* Traces of other tools, one file for each rank, as a job.graph: what the device did,
 * by stream, and the collectives and messages with their process groups. The whole
 * trace is one iteration.
 *
 * PyTorch's profiler (Kineto's JSON): work in the order and at the distance in which
 * the host issued it. Of an event only what is needed is read: device work (kernels,
 * copies), its stream and duration; the launch with the same correlation; "Stream Wait
 * Event"; and, of NCCL's kernels, collective, sizes, type and ranks, which PyTorch 2.2
 * and later note. Profile one step. Roots are not in the trace: 0.
 *
 * Chakra execution traces (protobuf): nodes with their durations, in the order of their
 * dependencies; their groups are in a file of JSON. A node without a duration takes
 * none.
 */
#ifndef CRYSTAL_IMPORT_H
#define CRYSTAL_IMPORT_H

#include "runtime/error.h"
#include "runtime/graph.h"

#include <stdint.h>

/* paths: the traces of ranks 0 .. count - 1, or in any order where they tell their
 * rank, of Chakra by their name: PREFIX.RANK.et. groups_path: of Chakra, may be NULL:
 * then PREFIX.json where it is there. network may be NULL. */
int crystal_import_traces(const char *const *paths, uint32_t count,
                          const char *groups_path,
                          const struct crystal_graph_network *network,
                          const char *graph_path, struct crystal_error *err);

#endif
