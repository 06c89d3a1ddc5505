/* The two implementations behind the entry points of libcrystal-nccl.so: park_X hands
 * operations to the coordinator (capture), pass_X to another library (plan). Both
 * record what they are given.
 */
#ifndef CRYSTAL_ENTRY_H
#define CRYSTAL_ENTRY_H

#include "runtime/crystal_stream.h"
#include "runtime/nccl_abi.h"
#include "runtime/op.h"

#define NCCL_API(type, name, proto, args) \
    type park_##name proto;               \
    type pass_##name proto;
#include "runtime/nccl_api.def"
#undef NCCL_API

#define STREAM_API(type, name, proto, args) \
    type park_##name proto;                 \
    type pass_##name proto;
#include "capture/stream_api.def"
#undef STREAM_API

/* An iteration ends, or begins; the process may end here. */
void park_iteration_hint(enum crystal_hint hint);
void pass_iteration_hint(enum crystal_hint hint);
/* The process ends: nothing is issued any more. */
void park_finish(int stopped);
void pass_finish(int stopped);

/* The NVTX range that iterations begin with has begun (capture/nvtx.c). */
void entry_range_begins(void);

/* 1 once somebody has asked for streams on host memory, as contrib/pytorch's backend
 * does when it loads the library. */
int entry_is_host_memory(void);

/* Return address of the running entry point in the program, for diagnoses. */
extern _Thread_local uintptr_t entry_call_site;

#endif
