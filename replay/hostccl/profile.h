/* NCCL's profiler events, in NCCL's order and with its parents:
 *
 *   group API > collective or p2p API > Coll or P2p > ProxyOp > ProxyStep > NetPlugin
 *
 * API events are made by the calling thread, the others by the driver. A
 * communicator without a profiler has profile->plugin NULL: every function then does
 * nothing. Which events are wanted is the mask that the plugin gave at init.
 */
#ifndef CRYSTAL_HOSTCCL_PROFILE_H
#define CRYSTAL_HOSTCCL_PROFILE_H

#include "runtime/nccl_profiler_abi.h"

struct hostccl_task;

struct hostccl_profile {
    const ncclProfiler_v5_t *plugin;
    void *context;
    int mask;
    int crank;
    int pid;
    uint64_t seq[11]; /* by enum crystal_func: collectives begun */
};

/* What isend and irecv get as phandle. */
struct hostccl_phandle {
    const struct hostccl_profile *profile;
    void *step; /* event, or NULL */
};

void hostccl_profile_init(struct hostccl_profile *profile,
                          const ncclProfiler_v5_t *plugin, uint64_t comm_id,
                          const char *name, uint32_t nranks, uint32_t crank);
void hostccl_profile_fini(struct hostccl_profile *profile);

void *hostccl_profile_group_start(const struct hostccl_profile *profile, int depth);
/* The call that makes task; name as the program called it ("AllReduce", "Send"). */
void *hostccl_profile_api_start(const struct hostccl_profile *profile, void *group,
                                const struct hostccl_task *task, const char *name);
/* Work begins. Returns the Coll or P2p event. */
void *hostccl_profile_task_start(struct hostccl_profile *profile,
                                 const struct hostccl_task *task);
void *hostccl_profile_op_start(const struct hostccl_profile *profile, void *task_event,
                               uint32_t peer, int is_send, uint64_t message_count,
                               uint32_t chunk_bytes);
void *hostccl_profile_step_start(const struct hostccl_profile *profile, void *op_event,
                                 uint64_t index);
/* Ends any of them; NULL is fine. */
void hostccl_profile_stop(const struct hostccl_profile *profile, void *event);

/* What net plugins get: NetPlugin events below the step of the phandle. */
ncclResult_t hostccl_profile_callback(void **event, int type, void *phandle, int64_t id,
                                      void *data);

const char *hostccl_func_name(unsigned func);
const char *hostccl_dtype_name(unsigned dtype);

#endif
