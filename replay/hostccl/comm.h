/* A communicator. Created and destroyed by calling threads; between them the progress
 * thread owns what says so.
 */
#ifndef CRYSTAL_HOSTCCL_COMM_H
#define CRYSTAL_HOSTCCL_COMM_H

#include "replay/hostccl/bootstrap.h"
#include "replay/hostccl/conn.h"
#include "replay/hostccl/plugin.h"
#include "replay/hostccl/profile.h"
#include "replay/hostccl/task.h"
#include "runtime/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define HOSTCCL_COMM_MAGIC 0x43727948436f6d6dULL
#define HOSTCCL_PREMUL_MAX 64

/* p2p connections with one peer; NULL until asked for. What the peer told comes as mail
 * for the sending [1] and the receiving [0] one, perhaps before we asked. */
struct hostccl_pair {
    struct hostccl_conn *send, *recv;
    struct hostccl_entry mail[2]; /* the driver's */
    bool has_mail[2];
};

struct ncclComm {
    uint64_t magic; /* HOSTCCL_COMM_MAGIC while it lives */
    uint32_t nranks, crank;
    uint64_t id;                         /* NCCL's commHash */
    int device;                          /* LOCAL_RANK */
    const struct hostccl_plugin *plugin; /* NULL with one rank */
    void *net_context;
    int net_device;
    struct hostccl_bootstrap *bootstrap;
    struct hostccl_profile profile;
    atomic_bool abort; /* ends every wait of the bootstrap */
    /* ncclResult_t; ncclInProgress while a non-blocking one is made; the first failure
     * stays */
    atomic_int async_result;
    pthread_t maker; /* that makes it */
    bool has_maker;
    uint32_t split_count;
    struct ncclComm *prev_all, *next_all; /* of all of this process; comm.c's lock */

    pthread_mutex_t lock; /* of what follows */
    struct hostccl_redop premul[HOSTCCL_PREMUL_MAX];
    uint8_t premul_dtype[HOSTCCL_PREMUL_MAX];
    bool premul_used[HOSTCCL_PREMUL_MAX];

    struct hostccl_conn *ring_next, *ring_prev;
    /* Neighbours in the tree, 0 the parent, then the children; NULL: none, or no tree
     * is wanted. Connections with a neighbour in the ring are the ring's. */
    struct {
        struct hostccl_conn *send, *recv;
    } tree[1 + CRYSTAL_TREE_ARITY];
    bool has_tree;
    /* of ring collectives: CRYSTAL_PROTO_LL where NCCL_PROTO says so; then, the
     * driver's, room for two messages unpacked */
    enum crystal_proto proto;
    char *room;
    /* [nranks]: pointers set by calling threads before the launch that needs them */
    struct hostccl_pair *peers;

    /* the driver's */
    struct hostccl_launch *launches, **last_launch;
    struct hostccl_conn *busy, **last_busy; /* the latter only with a busy one */
    struct ncclComm *next_active;
    bool is_active;
    uint32_t draining_count; /* launches that are over with messages still under way */
    bool is_aborting;        /* under the engine's lock */
};

/* A communicator in the state ncclInProgress: the shell of one that another thread
 * makes. NULL on failure. */
ncclComm_t hostccl_comm_shell(struct crystal_error *err);
/* Waits for that thread, where there is one. */
void hostccl_comm_join(ncclComm_t comm);

/* Creates a communicator of nranks (1 and more), blocking until all are there. config
 * may be NULL. On failure *ret_comm stays as it is. With a shell that becomes the
 * communicator, or has failed in the end, and ret_comm is not used; so for the others.
 */
ncclResult_t hostccl_comm_create(ncclComm_t shell, ncclComm_t *ret_comm,
                                 uint32_t nranks, uint32_t crank,
                                 const ncclUniqueId *ids, uint32_t id_count,
                                 const ncclConfig_t *config);
/* The same from parent; a colour below 0 gives NULL. */
ncclResult_t hostccl_comm_split(ncclComm_t shell, ncclComm_t parent, int color, int key,
                                ncclComm_t *ret_comm, const ncclConfig_t *config);
/* The same of those that are not excluded ([nranks]), this rank among them. The
 * excluded ones take no part and may be gone. */
ncclResult_t hostccl_comm_shrink(ncclComm_t shell, ncclComm_t parent,
                                 const bool *is_excluded, ncclComm_t *ret_comm,
                                 const ncclConfig_t *config);
/* Frees; the driver has let go. */
void hostccl_comm_destroy(ncclComm_t comm);
bool hostccl_comm_is_valid(const struct ncclComm *comm);
/* Remembers the first failure and keeps its sentence. */
ncclResult_t hostccl_comm_fail(ncclComm_t comm, const struct crystal_error *err);

/* Connects to the neighbours in the ring, then in the tree; both block. */
int hostccl_connect_ring(ncclComm_t comm, struct crystal_error *err);
int hostccl_connect_tree(ncclComm_t comm, struct crystal_error *err);
/* Asks the peers of tasks (sends and receives) for connections that are not there yet;
 * does not wait for them. */
int hostccl_connect_p2p(ncclComm_t comm, const struct hostccl_task *tasks,
                        struct crystal_error *err);
/* Progress thread: drives a connection that is not READY. 1 moved, 0 not, negative
 * failed. */
int hostccl_connect_progress(struct hostccl_conn *conn, struct crystal_error *err);

/* Waits a second at most until the peers of p2p connections have answered that they are
 * connected: a bootstrap that is closed before would fail them. */
void hostccl_connect_settle(ncclComm_t comm);

/* Progress thread: conn has something to do. */
void hostccl_comm_busy(ncclComm_t comm, struct hostccl_conn *conn);

#endif
