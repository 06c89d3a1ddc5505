/* A graph for other tools: Chakra execution traces (MLCommons, et_def.proto), which
 * ASTRA-sim and others read, and the trace events of a predicted iteration, which
 * Perfetto shows.
 */
#ifndef CRYSTAL_GRAPH_EXPORT_H
#define CRYSTAL_GRAPH_EXPORT_H

#include "runtime/error.h"
#include "runtime/predict_run.h"

#include <stdint.h>
#include <stdio.h>

/* One rank's iteration as a Chakra trace: a GlobalMetadata message, then Node messages,
 * each behind its length as a varint. Nodes depend on what their stream, their
 * communicator, events and the host make them wait for. Kernels are compute nodes;
 * without kernels the host's computation is. Durations are whole microseconds, as the
 * format has them. Sizes are the bytes that a rank puts in. Communicators are process
 * groups named by their number, from 1 on: ASTRA-sim takes 0 for all ranks. Returns 0
 * or -errno. */
int crystal_export_chakra(FILE *out, const struct crystal_predict *p, uint32_t lrank,
                          struct crystal_error *err);
/* The members of the process groups, as ASTRA-sim reads them: {"1": [0, 1], ...}. */
void crystal_export_groups(FILE *out, const struct crystal_graph *g);

/* What these ranks do in a prediction (with spans) as JSON trace events: a process for
 * each rank, a thread for each stream. */
int crystal_export_events(FILE *out, const struct crystal_prediction *pr,
                          const uint32_t *lranks, uint32_t count,
                          struct crystal_error *err);

#endif
