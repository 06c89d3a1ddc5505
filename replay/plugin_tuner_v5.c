/* ncclTunerPlugin_v5: NCCL's TUNER interface. NCCL's own choice stands, except for what
 * virtual ranks cannot do: a tree with real ranks on several nodes that have several
 * ranks of the communicator each, PAT with several real ranks, collective networks and
 * NVLink multicast across nodes. All real members see the same board, so that all leave
 * out the same. Where NCCL_ALGO leaves nothing else, nothing is left out, and the
 * message that cannot be made says so.
 */
#include "config.h"

#include "replay/net.h"
#include "runtime/log.h"
#include "runtime/nccl_tuner_abi.h"

#include <errno.h>
#include <stdlib.h>

struct tuner {
    struct crystal_net_module *module;
    uint64_t comm_id;
    int is_possible[NCCL_TUNER_ALGORITHMS]; /* once that of the ring is set */
    int told[NCCL_TUNER_ALGORITHMS];        /* a warning, once */
};

static const char *const names[NCCL_TUNER_ALGORITHMS] = {"a tree",
                                                         "a ring",
                                                         "a collective network",
                                                         "a collective network",
                                                         "NVLink SHARP",
                                                         "an NVLS tree",
                                                         "PAT"};

static ncclResult_t tuner_init(void **ctx, uint64_t comm_id, size_t nranks,
                               size_t nnodes, ncclDebugLogger_t log, void *nvl_domains,
                               void *constants)
{
    struct crystal_net_module *module = crystal_net_module_get(NULL);
    struct tuner *tuner;

    (void)nranks;
    (void)nnodes;
    (void)log;
    (void)nvl_domains;
    (void)constants;
    if (!module)
        return ncclInvalidUsage; /* logged by the module */
    tuner = calloc(1, sizeof *tuner);
    if (!tuner)
        return ncclSystemError;
    tuner->module = module;
    tuner->comm_id = comm_id;
    *ctx = tuner;
    return ncclSuccess;
}

static ncclResult_t tuner_finalize(void *ctx)
{
    free(ctx);
    return ncclSuccess;
}

/* How the members of a communicator lie on nodes. */
struct spread {
    int real_nodes;  /* with real members; 2: or more */
    int has_several; /* a node has several members */
};

/* 0, or -ENOMEM. */
static int spread_of(struct crystal_board *board, const struct crystal_board_comm *comm,
                     struct spread *ret)
{
    const struct crystal_board_header *head = crystal_board_header(board);
    const uint32_t *members = crystal_board_members(board, comm);
    const uint8_t *is_real = crystal_board_is_real(board, comm);
    const uint32_t per_node =
        comm->alone || !head->ranks_per_node ? 1 : head->ranks_per_node;
    uint8_t *is_known = calloc(head->lrank_count / per_node + 1, 1);
    uint32_t real_node = UINT32_MAX;

    *ret = (struct spread){0};
    if (!is_known)
        return -ENOMEM;
    for (uint32_t i = 0; members && is_real && i < comm->nranks; i++) {
        uint32_t node = members[i] / per_node;

        ret->has_several |= is_known[node];
        is_known[node] = 1;
        if (!is_real[i] || node == real_node)
            continue;
        ret->real_nodes = real_node == UINT32_MAX ? 1 : 2;
        real_node = node;
    }
    free(is_known);
    return 0;
}

/* Finds out once what virtual ranks can do. */
static int find_possible(struct tuner *tuner, struct crystal_board *board,
                         const struct crystal_board_comm *comm)
{
    struct spread spread;

    if (tuner->is_possible[NCCL_TUNER_RING])
        return 0;
    if (spread_of(board, comm, &spread))
        return -ENOMEM;
    tuner->is_possible[NCCL_TUNER_RING] = 1;
    tuner->is_possible[NCCL_TUNER_TREE] = spread.real_nodes < 2 || !spread.has_several;
    tuner->is_possible[NCCL_TUNER_PAT] = comm->real_count == 1;
    return 0;
}

static int is_offered(const float *costs, int protocols)
{
    int i = 0;

    while (i < protocols && costs[i] < 0)
        i++;
    return i < protocols;
}

static ncclResult_t tuner_info(void *ctx, int func, size_t bytes, int pipe_ops,
                               float **costs, int algorithms, int protocols,
                               int reg_buffer, int *channels)
{
    struct tuner *tuner = ctx;
    struct crystal_board *board = tuner->module->board;
    const struct crystal_board_comm *comm =
        board ? crystal_board_comm_find(board, tuner->comm_id) : NULL;
    float *table = (float *)(void *)costs; /* that is what NCCL gives */
    int left = 0;

    (void)func;
    (void)bytes;
    (void)pipe_ops;
    (void)reg_buffer;
    (void)channels;
    if (!comm || algorithms > NCCL_TUNER_ALGORITHMS)
        return ncclSuccess;
    if (find_possible(tuner, board, comm))
        return ncclSystemError;
    for (int a = 0; a < algorithms; a++)
        left += is_offered(table + (size_t)a * (size_t)protocols, protocols) &&
                tuner->is_possible[a];
    for (int a = 0; a < algorithms && left; a++) {
        float *row = table + (size_t)a * (size_t)protocols;

        if (!is_offered(row, protocols) || tuner->is_possible[a])
            continue;
        for (int p = 0; p < protocols; p++)
            row[p] = NCCL_ALGO_PROTO_IGNORE;
        if (!tuner->told[a]++)
            crystal_log(CRYSTAL_LOG_WARNING, "net",
                        "communicator '%s': %s is not there for its virtual ranks, "
                        "using what NCCL takes next",
                        comm->name, names[a]);
    }
    return ncclSuccess;
}

__attribute__((visibility("default"))) const ncclTuner_v5_t ncclTunerPlugin_v5 = {
    .name = "Crystal",
    .init = tuner_init,
    .getCollInfo = tuner_info,
    .finalize = tuner_finalize,
};
