/* Groups: what a thread calls between ncclGroupStart and ncclGroupEnd is begun at the
 * end. Every call is in a group, be it one of its own. State is the thread's.
 */
#ifndef CRYSTAL_HOSTCCL_GROUP_H
#define CRYSTAL_HOSTCCL_GROUP_H

#include "replay/hostccl/task.h"
#include "runtime/nccl_abi.h"

void hostccl_group_start(void);
/* result: of the call that ends its group; a failure drops everything in the group. */
ncclResult_t hostccl_group_end(ncclResult_t result);
/* Is there a group to end? */
bool hostccl_group_is_open(void);

/* Adds what model describes (its comm, func, dtype, count, send, recv, redop, peer and
 * stream). name: the call. */
ncclResult_t hostccl_group_add(const struct hostccl_task *model, const char *name);

/* A communicator to make at the end of the group. */
struct hostccl_job {
    struct hostccl_job *next;
    ncclComm_t *ret_comm;
    ncclComm_t parent; /* split or shrink, else NULL */
    int color, key;
    bool *is_excluded; /* [parent's nranks]: shrink; owned */
    uint32_t nranks, crank, id_count;
    ncclUniqueId *ids; /* owned, freed with the job */
    ncclConfig_t *config;
    ncclConfig_t own_config; /* its copy where the maker outlives the call */
    ncclComm_t shell;        /* of a non-blocking communicator, else NULL */
    ncclResult_t result;
};
/* Takes the job over. */
ncclResult_t hostccl_group_add_job(struct hostccl_job *job);

#endif
