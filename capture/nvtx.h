/* NVTX ranges as iteration marks: libcrystal-nccl.so is the tool behind NVTX where
 * CRYSTAL_ITERATION_RANGE names a range and NVTX_INJECTION64_PATH this library. An
 * iteration begins where a range of that name begins, pushed or started, in whatever
 * domain and thread; a '*' at the name's end stands for anything. Nothing else of NVTX
 * is looked at.
 */
#ifndef CRYSTAL_CAPTURE_NVTX_H
#define CRYSTAL_CAPTURE_NVTX_H

#include "capture/nvtx_abi.h"

/* Has a range of that name begun in this process? Thread-safe. */
int nvtx_has_begun(void);
/* A range is named, and this library is NVTX's tool (asked), or NVTX has, or will have,
 * another one (hidden). */
int nvtx_is_asked(void);
int nvtx_is_hidden(void);

/* What NVTX calls, for each of its copies in the process: 1, or 0 where no range is
 * named, so that NVTX goes on without a tool. */
int InitializeInjectionNvtx2(nvtx_get_table *get_table);

#endif
