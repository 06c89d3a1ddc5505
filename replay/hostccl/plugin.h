/* The NET and PROFILER plugins below: loaded once per process, never unloaded. */
#ifndef CRYSTAL_HOSTCCL_PLUGIN_H
#define CRYSTAL_HOSTCCL_PLUGIN_H

#include "runtime/error.h"
#include "runtime/nccl_profiler_abi.h"

struct hostccl_plugin {
    const ncclNet_v11_t *net;
    const ncclProfiler_v5_t *profiler; /* NULL: none */
    /* Waits until a transfer may have progressed, at most max_ns; wake ends that. With
     * 0 it does not wait, and the next tests try everything. Never NULL: plugins
     * without them get short sleeps. */
    void (*wait)(uint64_t max_ns);
    void (*wake)(void);
    void (*more)(int more); /* the next isend is followed by another at once */
};

/* Loads what NCCL_NET_PLUGIN (a path, or NAME of libnccl-net-NAME.so) and
 * NCCL_PROFILER_PLUGIN name; the first call decides. NULL on failure. Borrowed. */
const struct hostccl_plugin *hostccl_plugin_get(struct crystal_error *err);
/* The same without loading: NULL before the first get. */
const struct hostccl_plugin *hostccl_plugin_loaded(void);

/* The logger that NCCL hands to its plugins. */
void hostccl_plugin_log(int level, unsigned long flags, const char *file, int line,
                        const char *format, ...) __attribute__((format(printf, 5, 6)));

#endif
