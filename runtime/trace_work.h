/* The device's work of a trace, at its place. */
#ifndef CRYSTAL_TRACE_WORK_H
#define CRYSTAL_TRACE_WORK_H

#include "runtime/error.h"
#include "runtime/trace.h"

/* A recorder learns of the device's work late, so its WORK records stand behind those
 * they belong to. Replaces them: one KERNEL record for each stream, of all its kernels,
 * copies and memsets (but the recorder's own), right behind the host's record after
 * which they were issued; its t_ns is when that one ended. Records that others name by
 * index (DONE) keep their names. A trace without WORK stays as it is. -EINVAL where a
 * WORK record names what is not there. */
int crystal_trace_place_work(struct crystal_trace *trace, struct crystal_error *err);

#endif
