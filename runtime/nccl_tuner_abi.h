/* NCCL's TUNER plugin ABI, version 5, as facts of NCCL 2.28.9
 * (src/include/plugin/tuner/tuner_v5.h). A plugin exports one object named
 * ncclTunerPlugin_v5; NCCL looks for it in NCCL_TUNER_PLUGIN's library, else in that of
 * NCCL_NET_PLUGIN.
 */
#ifndef CRYSTAL_NCCL_TUNER_ABI_H
#define CRYSTAL_NCCL_TUNER_ABI_H

#include "runtime/nccl_net_abi.h"

/* of a cost table: what NCCL does not use */
#define NCCL_ALGO_PROTO_IGNORE (-1.0F)

enum nccl_tuner_algorithm {
    NCCL_TUNER_TREE = 0,
    NCCL_TUNER_RING = 1,
    NCCL_TUNER_COLLNET_DIRECT = 2,
    NCCL_TUNER_COLLNET_CHAIN = 3,
    NCCL_TUNER_NVLS = 4,
    NCCL_TUNER_NVLS_TREE = 5,
    NCCL_TUNER_PAT = 6,
    NCCL_TUNER_ALGORITHMS = 7
};

typedef struct {
    const char *name;
    /* nvl_domains and constants: structures that we leave alone */
    ncclResult_t (*init)(void **ctx, uint64_t comm_id, size_t nranks, size_t nnodes,
                         ncclDebugLogger_t log, void *nvl_domains, void *constants);
    /* costs: float [algorithms][protocols], times of this function */
    ncclResult_t (*getCollInfo)(void *ctx, int func, size_t bytes, int pipe_ops,
                                float **costs, int algorithms, int protocols,
                                int reg_buffer, int *channels);
    ncclResult_t (*finalize)(void *ctx);
} ncclTuner_v5_t;

#endif
