/* A client's connection to the coordinator. One struct per process; every function
 * blocks until its answer is there, may be called from any thread, one call at a time
 * per ticket; results arrive in their own reader thread, so that several tickets can be
 * outstanding. When the coordinator stops the stage (STOP) or goes away, all calls
 * return -ECANCELED with its sentence from then on.
 */
#ifndef CRYSTAL_COORD_CLIENT_H
#define CRYSTAL_COORD_CLIENT_H

#include "runtime/error.h"
#include "runtime/message.h"

#include <stddef.h>
#include <stdint.h>

struct crystal_client;

/* Reads host and port from coord_file and the token from token_file (see env.h). Waits
 * up to 30 s for the coordinator to appear. NULL on failure. */
struct crystal_client *crystal_client_open(const char *coord_file,
                                           const char *token_file,
                                           enum crystal_role role, uint32_t lrank,
                                           struct crystal_msg_welcome *ret_welcome,
                                           struct crystal_error *err);
/* Tells the coordinator that this client leaves on purpose, ends the reader thread and
 * frees c. NULL is fine. A process that ends without closing counts as dead, except
 * after a hint that was answered with stop. */
void crystal_client_close(struct crystal_client *c);

int crystal_client_comm_init(struct crystal_client *c,
                             const struct crystal_msg_comm_init *init,
                             uint32_t *ret_comm, char *ret_name, size_t name_bytes,
                             struct crystal_error *err);

/* One operation of a deposit: op describes it, send is read before the call returns,
 * recv (recv_bytes long, may be NULL where 0) is written before wait returns. */
struct crystal_client_op {
    struct crystal_msg_op op;
    const void *send;
    void *recv;
};
/* Deposits the operations of one call or one group. Returns at once with a ticket. */
int crystal_client_post(struct crystal_client *c, const struct crystal_client_op *ops,
                        uint32_t op_count, uint32_t *ret_ticket,
                        struct crystal_error *err);
/* Waits for the results of a ticket; the ticket is then gone. */
int crystal_client_wait(struct crystal_client *c, uint32_t ticket,
                        struct crystal_error *err);
/* Tells the coordinator that the process can do nothing before the results of the
 * ticket, as wait does by itself; for one that polls. */
void crystal_client_blocked(struct crystal_client *c, uint32_t ticket);
/* From now on a wait only tells that where is_blocked says so: it is asked every 300 ms
 * of the wait, in the waiting thread. Before the first wait. */
void crystal_client_ask_blocked(struct crystal_client *c, int (*is_blocked)(void));
/* 1 = results are there (wait will not block), 0 = not yet, negative = stopped. */
int crystal_client_poll(struct crystal_client *c, uint32_t ticket);

/* Tells how many iterations this rank has ended; ret_stop = 1: it has done enough. */
int crystal_client_hint(struct crystal_client *c, uint64_t iterations, int *ret_stop,
                        struct crystal_error *err);
/* Agent and control calls. */
int crystal_client_begin(struct crystal_client *c, uint32_t stage,
                         struct crystal_error *err);
/* Capture of a list begins, or goes on, with this rank by itself. */
int crystal_client_begin_rank(struct crystal_client *c, uint32_t lrank,
                              struct crystal_error *err);
/* Plan begins anew, with the ranks of this target node instead of the sandbox. */
int crystal_client_begin_slice(struct crystal_client *c, uint32_t target_node,
                               struct crystal_error *err);
/* For a stage on several nodes: tells where this node's service is, waits for all
 * agents of the stage, and gives everybody's place. nodes has own->node_count. */
int crystal_client_nodes(struct crystal_client *c, const struct crystal_msg_node *own,
                         struct crystal_msg_node *nodes, struct crystal_error *err);
/* The nodes of a stage wait for each other, as often as they like: tells that this one
 * has come and returns at once with a ticket, for crystal_client_poll ... */
int crystal_client_meet(struct crystal_client *c, const struct crystal_msg_meet *own,
                        uint32_t *ret_ticket, struct crystal_error *err);
/* ... and waits until all have: what node 0 has told. The ticket is then gone. */
int crystal_client_met(struct crystal_client *c, uint32_t ticket, uint32_t *ret_value,
                       struct crystal_error *err);
int crystal_client_finish(struct crystal_client *c, struct crystal_error *err);
int crystal_client_fail(struct crystal_client *c, const char *sentence);
/* Agent: called from the reader thread for COMM_ID and COMM_FORGE. For forge (forge =
 * 1) the callback fills msg->id; members has msg->member_count entries. Return 0 or a
 * negative errno (the stage is then stopped with the sentence in err). Setting another
 * (or NULL) waits until the old one is not running; not to be done from inside it. */
typedef int (*crystal_client_comm_id_fn)(void *context, int forge,
                                         struct crystal_msg_comm_id *msg,
                                         const char *name, const uint32_t *members,
                                         struct crystal_error *err);
void crystal_client_on_comm_id(struct crystal_client *c, crystal_client_comm_id_fn fn,
                               void *context);

/* Blocks until the coordinator ends this client's stage, at most timeout_ms (negative:
 * for ever). 0 = it did so because the job is over: finish well; -ETIMEDOUT = it goes
 * on; -ECANCELED = stop with the sentence in err. */
int crystal_client_wait_stop(struct crystal_client *c, int timeout_ms,
                             struct crystal_error *err);
/* Once that has said -ECANCELED: the rank whose connection the coordinator has lost,
 * where it stopped the stage for that; else UINT32_MAX. */
uint32_t crystal_client_lost(struct crystal_client *c);

#endif
