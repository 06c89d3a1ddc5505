/* Making and freeing communicators, in NCCL's order: net plugin, bootstrap with
 * all-gather 0, peer information (1), topology (2), profiler, ring, ring information
 * (3).
 */
#include "config.h"

#include "replay/hostccl/comm.h"

#include "replay/board.h"
#include "replay/hostccl/board_watch.h"
#include "replay/hostccl/engine.h"
#include "replay/hostccl/exchange.h"
#include "replay/hostccl/fork.h"
#include "replay/hostccl/result.h"
#include "runtime/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct {
    pthread_mutex_t lock;
    ncclComm_t first; /* of all; under lock */
} comms = {.lock = PTHREAD_MUTEX_INITIALIZER};

bool hostccl_comm_is_valid(const struct ncclComm *comm)
{
    return comm && comm->magic == HOSTCCL_COMM_MAGIC && !hostccl_fork_is_child();
}

ncclResult_t hostccl_comm_fail(ncclComm_t comm, const struct crystal_error *err)
{
    ncclResult_t result = hostccl_fail_error(err);
    int none = ncclSuccess, making = ncclInProgress;

    if (!atomic_compare_exchange_strong(&comm->async_result, &none, (int)result))
        (void)atomic_compare_exchange_strong(&comm->async_result, &making, (int)result);
    return result;
}

/* The job was stopped: every communicator has failed. */
static void fail_all(void)
{
    struct crystal_error err = {0};

    (void)hostccl_board_is_aborted(&err);
    pthread_mutex_lock(&comms.lock);
    for (ncclComm_t comm = comms.first; comm; comm = comm->next_all) {
        (void)hostccl_comm_fail(comm, &err);
        atomic_store(&comm->abort, true);
    }
    pthread_mutex_unlock(&comms.lock);
    hostccl_engine_notify();
}

static void list_add(ncclComm_t comm)
{
    pthread_mutex_lock(&comms.lock);
    comm->next_all = comms.first;
    if (comms.first)
        comms.first->prev_all = comm;
    comms.first = comm;
    pthread_mutex_unlock(&comms.lock);
}

static void list_remove(ncclComm_t comm)
{
    pthread_mutex_lock(&comms.lock);
    if (comm->prev_all)
        comm->prev_all->next_all = comm->next_all;
    else
        comms.first = comm->next_all;
    if (comm->next_all)
        comm->next_all->prev_all = comm->prev_all;
    pthread_mutex_unlock(&comms.lock);
}

static int open_net(ncclComm_t comm, const ncclConfig_t *config,
                    struct crystal_error *err)
{
    ncclNetCommConfig_v11_t net_config = {.trafficClass = NCCL_CONFIG_UNDEF_INT};
    int device_count = 0;
    ncclResult_t result;

    if (hostccl_board_is_aborted(err)) /* from now on we would be told */
        return -ECONNABORTED;
    comm->plugin = hostccl_plugin_get(err);
    if (!comm->plugin)
        return -ENOENT;
    if (config && config->size > offsetof(ncclConfig_t, trafficClass))
        net_config.trafficClass = config->trafficClass;
    result = comm->plugin->net->init(&comm->net_context, comm->id, &net_config,
                                     hostccl_plugin_log, hostccl_profile_callback);
    if (result != ncclSuccess)
        return crystal_error_set(err, EIO, "the net plugin does not start (%s)",
                                 hostccl_result_text(result));
    result = comm->plugin->net->devices(&device_count);
    if (result != ncclSuccess || device_count < 1)
        return crystal_error_set(err, ENODEV, "the net plugin has no device");
    comm->net_device = comm->device % device_count;
    return 0;
}

static ncclComm_t make_shell(ncclResult_t state, struct crystal_error *err)
{
    const char *local = getenv("LOCAL_RANK");
    ncclComm_t comm = calloc(1, sizeof *comm);

    if (comm && hostccl_ring_is_ll()) {
        comm->proto = CRYSTAL_PROTO_LL;
        comm->room = malloc(2 * (size_t)crystal_form_step_bytes(CRYSTAL_PROTO_LL));
    }
    if (!comm || (comm->proto && !comm->room)) {
        free(comm);
        (void)crystal_error_set(err, ENOMEM, "out of memory");
        return NULL;
    }
    comm->magic = HOSTCCL_COMM_MAGIC;
    comm->device = local ? atoi(local) & 0xffff : 0;
    comm->last_launch = &comm->launches;
    atomic_store(&comm->async_result, (int)state);
    (void)pthread_mutex_init(&comm->lock, NULL); /* cannot fail with defaults */
    list_add(comm);
    return comm;
}

ncclComm_t hostccl_comm_shell(struct crystal_error *err)
{
    return make_shell(ncclInProgress, err);
}

void hostccl_comm_join(ncclComm_t comm)
{
    if (comm->has_maker)
        (void)pthread_join(comm->maker, NULL);
    comm->has_maker = false;
}

/* Gives the shell, or a new communicator, its size and name. */
static ncclComm_t allocate(ncclComm_t shell, uint32_t nranks, uint32_t crank,
                           uint64_t id, struct crystal_error *err)
{
    struct hostccl_pair *peers = calloc(nranks, sizeof *peers);
    ncclComm_t comm = shell ? shell : peers ? make_shell(ncclSuccess, err) : NULL;

    if (!comm || !peers) {
        free(peers);
        (void)crystal_error_set(err, ENOMEM, "out of memory");
        return NULL;
    }
    comm->peers = peers;
    comm->nranks = nranks;
    comm->crank = crank;
    comm->id = id;
    return comm;
}

/* After the bootstrap: what NCCL does to set up its transports. More than one rank. */
static int finish(ncclComm_t comm, const ncclConfig_t *config,
                  struct crystal_error *err)
{
    const char *name = config && config->size > offsetof(ncclConfig_t, commName)
                           ? config->commName
                           : NULL;
    int result = hostccl_exchange_info(comm, err);

    if (!result)
        result = hostccl_exchange_topology(comm, err);
    if (result)
        return result;
    hostccl_profile_init(&comm->profile, comm->plugin->profiler, comm->id, name,
                         comm->nranks, comm->crank);
    result = hostccl_connect_ring(comm, err);
    if (!result)
        result = hostccl_exchange_ring_info(comm, err);
    if (!result && hostccl_tree_is_wanted())
        result = hostccl_connect_tree(comm, err);
    return result;
}

/* Ends the making of comm, or of the shell that it is to be. */
static ncclResult_t give(ncclComm_t shell, ncclComm_t comm, int result,
                         struct crystal_error *err, ncclComm_t *ret_comm)
{
    int making = ncclInProgress;

    if (result) {
        (void)hostccl_board_is_aborted(err); /* then that is why */
        if (shell)
            return hostccl_comm_fail(shell, err);
        ncclResult_t code = hostccl_fail_error(err);

        hostccl_comm_destroy(comm);
        return code;
    }
    crystal_log(CRYSTAL_LOG_DEBUG, "hostccl", "communicator %016llx: rank %u of %u",
                (unsigned long long)comm->id, comm->crank, comm->nranks);
    if (shell)
        (void)atomic_compare_exchange_strong(&shell->async_result, &making,
                                             ncclSuccess); /* else it has failed */
    else
        *ret_comm = comm;
    return ncclSuccess;
}

ncclResult_t hostccl_comm_create(ncclComm_t shell, ncclComm_t *ret_comm,
                                 uint32_t nranks, uint32_t crank,
                                 const ncclUniqueId *ids, uint32_t id_count,
                                 const ncclConfig_t *config)
{
    struct crystal_error err = {0};
    ncclComm_t comm =
        allocate(shell, nranks, crank, crystal_nccl_hash(&ids[0], sizeof ids[0]), &err);
    int result = comm ? hostccl_engine_start(&err) : -ENOMEM;

    if (!result && nranks > 1)
        result = hostccl_board_watch(fail_all, &err);
    if (!result && nranks > 1)
        result = open_net(comm, config, &err);
    if (!result) {
        comm->bootstrap = hostccl_bootstrap_create(
            ids, id_count, nranks, crank, &comm->abort, hostccl_engine_notify, &err);
        result = comm->bootstrap ? 0 : -EIO;
    }
    if (!result && nranks > 1)
        result = finish(comm, config, &err);
    if (result)
        crystal_error_prefix(&err, "hostccl: rank %u of %u", crank, nranks);
    return give(shell, comm, result, &err, ret_comm);
}

/* The members of the new communicator in order of key, then of rank. */
static uint32_t pick_members(const int32_t *keys_and_colors, uint32_t n, int color,
                             uint32_t *cranks)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = 0;

        if (keys_and_colors[2 * i + 1] != color)
            continue;
        while (at < count && keys_and_colors[2 * cranks[at]] <= keys_and_colors[2 * i])
            at++;
        memmove(&cranks[at + 1], &cranks[at], (count - at) * sizeof *cranks);
        cranks[at] = i;
        count++;
    }
    return count;
}

/* The communicator `id` of these members of parent, this rank among them. *ret_comm is
 * set as soon as there is something to destroy. */
static int make_child(ncclComm_t shell, ncclComm_t parent, uint64_t id,
                      const uint32_t *cranks, uint32_t count, ncclComm_t *ret_comm,
                      const ncclConfig_t *config, struct crystal_error *err)
{
    uint32_t crank = 0;
    ncclComm_t comm;
    int result = 0;

    while (cranks[crank] != parent->crank)
        crank++;
    comm = allocate(shell, count, crank, id, err);
    if (!comm)
        return -ENOMEM;
    *ret_comm = comm;
    if (count > 1)
        result = open_net(comm, config, err);
    if (result)
        return result;
    comm->bootstrap =
        hostccl_bootstrap_split(parent->bootstrap, comm->id, count, crank, cranks,
                                &comm->abort, hostccl_engine_notify, err);
    if (!comm->bootstrap)
        return -EIO;
    return count > 1 ? finish(comm, config, err) : 0;
}

static int make_split(ncclComm_t shell, ncclComm_t parent, int color, int key,
                      uint32_t *cranks, ncclComm_t *ret_comm,
                      const ncclConfig_t *config, struct crystal_error *err)
{
    uint32_t n = parent->nranks, count;
    int32_t *all = calloc(n, 2 * sizeof *all);
    int result;

    if (!all)
        return crystal_error_set(err, ENOMEM, "out of memory");
    all[2 * parent->crank] = key;
    all[2 * parent->crank + 1] = color;
    result = hostccl_bootstrap_gather(parent->bootstrap, all, 8, err);
    count = result || color < 0 ? 0 : pick_members(all, n, color, cranks);
    free(all);
    if (result || color < 0)
        return result;
    return make_child(shell, parent,
                      crystal_nccl_hash_split(parent->id, parent->split_count, color),
                      cranks, count, ret_comm, config, err);
}

ncclResult_t hostccl_comm_split(ncclComm_t shell, ncclComm_t parent, int color, int key,
                                ncclComm_t *ret_comm, const ncclConfig_t *config)
{
    struct crystal_error err = {0};
    uint32_t *cranks = calloc(parent->nranks + 1, sizeof *cranks);
    ncclComm_t comm = NULL;
    int result;

    if (!cranks)
        return hostccl_fail(ncclSystemError, "out of memory");
    parent->split_count++;
    result = make_split(shell, parent, color, key, cranks, &comm, config, &err);
    free(cranks);
    if (result)
        crystal_error_prefix(&err, "hostccl: split of a communicator");
    if (!comm && !result) {
        *ret_comm = NULL;
        return ncclSuccess;
    }
    return give(shell, comm, result, &err, ret_comm);
}

ncclResult_t hostccl_comm_shrink(ncclComm_t shell, ncclComm_t parent,
                                 const bool *is_excluded, ncclComm_t *ret_comm,
                                 const ncclConfig_t *config)
{
    struct crystal_error err = {0};
    uint32_t *cranks = calloc(parent->nranks, sizeof *cranks), count = 0;
    ncclComm_t comm = NULL;
    int result;

    if (!cranks)
        return hostccl_fail(ncclSystemError, "out of memory");
    for (uint32_t i = 0; i < parent->nranks; i++)
        if (!is_excluded[i])
            cranks[count++] = i;
    /* NCCL names it like split number 0 with colour 0 */
    result = make_child(shell, parent, crystal_nccl_hash_split(parent->id, 0, 0),
                        cranks, count, &comm, config, &err);
    free(cranks);
    if (result)
        crystal_error_prefix(&err, "hostccl: shrinking a communicator");
    return give(shell, comm, result, &err, ret_comm);
}

void hostccl_comm_destroy(ncclComm_t comm)
{
    if (!comm)
        return;
    for (uint32_t i = 0; i < comm->nranks; i++) {
        hostccl_conn_destroy(comm->peers[i].send);
        hostccl_conn_destroy(comm->peers[i].recv);
    }
    for (int i = 0; i <= CRYSTAL_TREE_ARITY; i++) {
        if (comm->tree[i].send != comm->ring_next)
            hostccl_conn_destroy(comm->tree[i].send);
        if (comm->tree[i].recv != comm->ring_prev)
            hostccl_conn_destroy(comm->tree[i].recv);
    }
    hostccl_conn_destroy(comm->ring_next);
    hostccl_conn_destroy(comm->ring_prev);
    hostccl_profile_fini(&comm->profile);
    hostccl_bootstrap_destroy(comm->bootstrap);
    if (comm->plugin && comm->net_context)
        (void)comm->plugin->net->finalize(comm->net_context); /* nothing to be done */
    list_remove(comm);
    comm->magic = 0;
    free(comm->peers);
    free(comm->room);
    (void)pthread_mutex_destroy(&comm->lock);
    free(comm);
}
