/* Telling of an NCCL that is used around us: opened by its path (ctypes, cupy, vLLM) or
 * linked statically, it is the real one, whose communicators would wait for ranks that
 * never come, and which nothing sees. In capture the environment names this object as
 * NCCL's net plugin and its net as the only one allowed (NCCL_NET); the real library so
 * comes here before any communicator of its own is made, and is refused. Our own NCCL
 * API never loads it.
 *
 * The table is that of NET v11; v10 and v8 begin with the same two fields, of which
 * NCCL calls nothing behind an init that fails.
 */
#include "config.h"

#include "capture/recorder.h"

#include "runtime/env.h"
#include "runtime/log.h"
#include "runtime/nccl_net_abi.h"

#include <errno.h>

#define EXPORT __attribute__((visibility("default")))

static ncclResult_t refuse(void)
{
    struct crystal_error err = {0};

    (void)crystal_error_set(&err, ENOTSUP,
                            "recorder: the program makes a communicator with an NCCL "
                            "that is linked into it or opened by its path, around "
                            "libcrystal-nccl.so; let it use NCCL's functions as "
                            "linked, or leave that library (cupy, nccl4py, vLLM's "
                            "pynccl) out");
    recorder_fail(&err);
    crystal_log(CRYSTAL_LOG_ERROR, "bypass", "%s", err.text);
    return ncclInvalidUsage;
}

static ncclResult_t refuse_v11(void **ctx, uint64_t comm_id,
                               ncclNetCommConfig_v11_t *config, ncclDebugLogger_t log,
                               ncclProfilerCallback_t profile)
{
    (void)ctx;
    (void)comm_id;
    (void)config;
    (void)log;
    (void)profile;
    return refuse();
}

/* v10 and older: their init takes less. */
static ncclResult_t refuse_v10(ncclDebugLogger_t log, ncclProfilerCallback_t profile)
{
    (void)log;
    (void)profile;
    return refuse();
}

struct old_net {
    const char *name;
    ncclResult_t (*init)(ncclDebugLogger_t log, ncclProfilerCallback_t profile);
    void *others[32];
};

EXPORT extern const ncclNet_v11_t ncclNetPlugin_v11;
EXPORT extern const struct old_net ncclNetPlugin_v10, ncclNetPlugin_v8;
const ncclNet_v11_t ncclNetPlugin_v11 = {.name = CRYSTAL_BYPASS_NET,
                                         .init = refuse_v11};
const struct old_net ncclNetPlugin_v10 = {.name = CRYSTAL_BYPASS_NET,
                                          .init = refuse_v10};
const struct old_net ncclNetPlugin_v8 = {.name = CRYSTAL_BYPASS_NET,
                                         .init = refuse_v10};
