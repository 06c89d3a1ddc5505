/* See exchange.h. Every rank says that it is alone on its node (its ring begins and
 * ends with itself): on host memory all traffic goes through the net plugin.
 */
#include "config.h"

#include "replay/hostccl/exchange.h"

#include "replay/board.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GIB (1ULL << 30)

/* graph patterns of NCCL */
#define PATTERN_RING 4
#define PATTERN_TREE 3  /* all through one rank: there is one */
#define PATH_NET     10 /* farthest kind of path: through the network */

/* The host's identity as NCCL sees it: NCCL_HOSTID, or host name and boot id. */
static uint64_t host_hash(void)
{
    char text[512] = "";
    const char *id = getenv("NCCL_HOSTID");
    size_t length;
    FILE *file;

    if (id)
        return crystal_nccl_hash(id, strlen(id));
    (void)gethostname(text, sizeof text - 64); /* may stay empty */
    text[sizeof text - 64] = 0;
    length = strlen(text);
    file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file) {
        if (!fgets(text + length, (int)(sizeof text - length), file))
            text[length] = 0;
        (void)fclose(file);
        length += strcspn(text + length, "\n");
    }
    return crystal_nccl_hash(text, length);
}

static uint64_t pid_hash(void)
{
    char text[128];
    int n = snprintf(text, sizeof text, "%ld", (long)getpid());
    ssize_t more = readlink("/proc/self/ns/pid", text + n, sizeof text - 1 - (size_t)n);

    return crystal_nccl_hash(text, (size_t)n + (more > 0 ? (size_t)more : 0));
}

static struct hostccl_peer_info own_info(const struct ncclComm *comm)
{
    struct stat shm = {0};
    struct hostccl_peer_info info = {.crank = (int32_t)comm->crank,
                                     .device = comm->device,
                                     .nvml_device = comm->device,
                                     .host_hash = host_hash() + comm->id,
                                     .pid_hash = pid_hash() + comm->id,
                                     .bus_id = (comm->device + 1) * 0x1000LL,
                                     .compute_capability = 0,
                                     .version = NCCL_VERSION_CODE};
    uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES);

    if (stat("/dev/shm", &shm) == 0)
        info.shm_device = shm.st_dev;
    info.memory_bytes =
        (pages * (uint64_t)sysconf(_SC_PAGESIZE) + 4 * GIB - 1) / (4 * GIB) * 4 * GIB;
    return info;
}

int hostccl_exchange_info(ncclComm_t comm, struct crystal_error *err)
{
    struct hostccl_peer_info *all = calloc(comm->nranks, sizeof *all);
    int result;

    if (!all)
        return crystal_error_set(err, ENOMEM, "out of memory");
    all[comm->crank] = own_info(comm);
    result = hostccl_bootstrap_gather(comm->bootstrap, all, sizeof *all, err);
    for (uint32_t i = 0; !result && i < comm->nranks; i++)
        if (all[i].version != NCCL_VERSION_CODE || all[i].crank != (int32_t)i)
            result = crystal_error_set(
                err, EPROTO,
                "rank %u says that it is rank %d with NCCL %d, this is NCCL %d; use "
                "the same library everywhere",
                i, all[i].crank, all[i].version, NCCL_VERSION_CODE);
    free(all);
    return result;
}

static void fill_topology(const struct ncclComm *comm, struct hostccl_topology *t)
{
    int32_t crank = (int32_t)comm->crank;

    for (int a = 0; a < HOSTCCL_ALGORITHMS; a++) { /* 0 tree, 1 ring, 6 PAT */
        if (a != 0 && a != 1 && a != 6)
            continue;
        t->graphs[a] =
            (struct hostccl_graph_info){.pattern = a == 1 ? PATTERN_RING : PATTERN_TREE,
                                        .channel_count = 1,
                                        .same_channels = 1,
                                        .bw_intra = 1,
                                        .bw_inter = 1,
                                        .type_intra = 0,
                                        .type_inter = PATH_NET};
    }
    for (int c = 0; c < HOSTCCL_CHANNELS_MAX; c++) {
        t->ring_prev[c] = t->ring_next[c] = -1; /* none on this node */
        t->tree_to_child0[c] = t->tree_to_child1[c] = -1;
        t->nvls_heads[c] = -1;
        t->ring_recv[c] = t->ring_send[c] = t->tree_to_parent[c] = c ? 0 : crank;
    }
    t->tree_to_child0[0] = t->tree_to_child1[0] = crank;
}

int hostccl_exchange_topology(ncclComm_t comm, struct crystal_error *err)
{
    struct hostccl_topology *all = calloc(comm->nranks, sizeof *all);
    int result;

    if (!all)
        return crystal_error_set(err, ENOMEM, "out of memory");
    fill_topology(comm, &all[comm->crank]);
    result = hostccl_bootstrap_gather(comm->bootstrap, all, sizeof *all, err);
    for (uint32_t i = 0; !result && i < comm->nranks; i++)
        if (all[i].graphs[1].channel_count < 1)
            result = crystal_error_set(err, EPROTO, "rank %u has no ring", i);
    free(all);
    return result;
}

int hostccl_exchange_ring_info(ncclComm_t comm, struct crystal_error *err)
{
    uint8_t *all = calloc(comm->nranks, 2);
    int result;

    if (!all)
        return crystal_error_set(err, ENOMEM, "out of memory");
    result = hostccl_bootstrap_gather(comm->bootstrap, all, 2, err);
    free(all);
    return result;
}
