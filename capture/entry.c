/* Entry points of libcrystal-nccl.so: nccl*, their pnccl* twins and crystal_stream.h,
 * made from the tables. Which implementation serves is decided once: with
 * CRYSTAL_PASS_LIBRARY calls pass through to that library, without it they are
 * performed by the coordinator. Nothing here exits, except where the recording has seen
 * its iterations.
 */
#include "config.h"

#include "capture/entry.h"
#include "capture/nvtx.h"
#include "capture/pass.h"
#include "capture/recorder.h"

#include "runtime/env.h"
#include "runtime/log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Thread_local uintptr_t entry_call_site;

static int passing;
static int in_use;
static int is_host_memory; /* crystal_stream_abi_version was called */
static pid_t owner;        /* the process that records */
static pthread_once_t entry_once = PTHREAD_ONCE_INIT;

static void tell_hidden(void)
{
    const char *tool = getenv(NVTX_ENV_INJECTION);

    (void)recorder_hint(recorder_get(), CRYSTAL_HINT_HIDDEN);
    crystal_log(CRYSTAL_LOG_WARNING, "recorder",
                "NVTX_INJECTION64_PATH is '%s' in this process, so that the range '%s' "
                "(capture.iteration_range) cannot be seen, using what repeats",
                tool ? tool : "", getenv(CRYSTAL_ENV_ITERATION_RANGE));
}

static void entry_start(void)
{
    const char *library = getenv(CRYSTAL_ENV_PASS_LIBRARY);

    passing = library && *library;
    owner = getpid();
    if (nvtx_is_hidden())
        tell_hidden();
    (void)recorder_get();
    __atomic_store_n(&in_use, 1, __ATOMIC_RELEASE);
}

static int is_passing(void)
{
    if (!__atomic_load_n(&in_use, __ATOMIC_ACQUIRE))
        (void)pthread_once(&entry_once, entry_start); /* valid arguments */
    return passing;
}

__attribute__((destructor)) static void entry_end(void)
{
    if (!__atomic_load_n(&in_use, __ATOMIC_ACQUIRE) || owner != getpid())
        return; /* unused, or the child of a fork */
    if (passing)
        pass_finish(0);
    else
        park_finish(0);
}

#define EXPORT __attribute__((visibility("default")))

/* A library that is called through us calls its own functions by name, too, as NCCL's
 * ncclBcast does ncclBroadcast; that comes back to us and is no call of the program's.
 */
static _Thread_local int is_inside;

#define ENTRY(type, full_name, name, proto, args, below)              \
    EXPORT type full_name proto;                                      \
    EXPORT type full_name proto                                       \
    {                                                                 \
        type returned;                                                \
                                                                      \
        if (!is_passing()) {                                          \
            entry_call_site = (uintptr_t)__builtin_return_address(0); \
            return park_##name args;                                  \
        }                                                             \
        if (is_inside)                                                \
            return below args;                                        \
        is_inside = 1;                                                \
        returned = pass_##name args;                                  \
        is_inside = 0;                                                \
        return returned;                                              \
    }

#define NCCL_API(type, name, proto, args)                      \
    ENTRY(type, nccl##name, name, proto, args, pass.nccl.name) \
    ENTRY(type, pnccl##name, name, proto, args, pass.nccl.name)
#include "runtime/nccl_api.def"
#undef NCCL_API

#define STREAM_API(type, name, proto, args) \
    ENTRY(type, crystal_##name, name, proto, args, pass.host.name)
#include "capture/stream_api.def"
#undef STREAM_API

EXPORT int crystal_stream_abi_version(void)
{
    __atomic_store_n(&is_host_memory, 1, __ATOMIC_RELAXED);
    return CRYSTAL_STREAM_ABI;
}

int entry_is_host_memory(void)
{
    return __atomic_load_n(&is_host_memory, __ATOMIC_RELAXED);
}

static void iteration_hint(enum crystal_hint hint)
{
    if (is_passing())
        pass_iteration_hint(hint);
    else
        park_iteration_hint(hint);
}

/* Once ranges say where iterations begin, nothing else does. */
EXPORT void crystal_iteration_hint(void)
{
    if (!nvtx_has_begun())
        iteration_hint(CRYSTAL_HINT_STEP);
}

void entry_range_begins(void)
{
    (void)is_passing(); /* sets the owner */
    if (owner == getpid())
        iteration_hint(CRYSTAL_HINT_RANGE);
}
