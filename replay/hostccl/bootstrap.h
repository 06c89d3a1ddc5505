/* The bootstrap of one communicator as NCCL 2.28.9 does it: check-in at the root, a
 * ring for all-gathers in both directions, and messages from rank to rank.
 *
 * One thread at a time per bootstrap, except for send and poll, which any thread may
 * call. Blocking functions end with -ECANCELED where *abort is set.
 */
#ifndef CRYSTAL_HOSTCCL_BOOTSTRAP_H
#define CRYSTAL_HOSTCCL_BOOTSTRAP_H

#include "replay/hostccl/wire.h"
#include "runtime/error.h"

#include <stdatomic.h>
#include <stdint.h>

struct hostccl_bootstrap;

/* Makes an id and starts its root in this process. */
int hostccl_bootstrap_id(ncclUniqueId *ret_id, struct crystal_error *err);

/* Checks in at the roots of ids [id_count], builds the ring, gathers everybody's
 * addresses (all-gather 0). abort and notify (called after each message, from another
 * thread) are borrowed until destroy. NULL on failure. */
struct hostccl_bootstrap *
hostccl_bootstrap_create(const ncclUniqueId *ids, uint32_t id_count, uint32_t nranks,
                         uint32_t crank, const atomic_bool *abort, void (*notify)(void),
                         struct crystal_error *err);
/* The same for a communicator split from parent: cranks[nranks] are the members' ranks
 * there. */
struct hostccl_bootstrap *
hostccl_bootstrap_split(struct hostccl_bootstrap *parent, uint64_t magic,
                        uint32_t nranks, uint32_t crank, const uint32_t *cranks,
                        const atomic_bool *abort, void (*notify)(void),
                        struct crystal_error *err);
void hostccl_bootstrap_destroy(struct hostccl_bootstrap *b);

/* slices has nranks times bytes; this rank's own slice is in place. */
int hostccl_bootstrap_gather(struct hostccl_bootstrap *b, void *slices, uint32_t bytes,
                             struct crystal_error *err);

int hostccl_bootstrap_send(struct hostccl_bootstrap *b, uint32_t crank, int32_t tag,
                           const void *data, uint32_t bytes, struct crystal_error *err);
/* Waits for a message of at most max bytes; *ret_bytes is what it had. */
int hostccl_bootstrap_recv(struct hostccl_bootstrap *b, uint32_t crank, int32_t tag,
                           void *data, uint32_t max, uint32_t *ret_bytes,
                           struct crystal_error *err);
/* For whoever waits in another way: fails where *abort is set or a neighbour in the
 * ring has been gone for two seconds. *broken_ns is 0 at first. */
int hostccl_bootstrap_check(struct hostccl_bootstrap *b, uint64_t *broken_ns,
                            struct crystal_error *err);
/* 1: taken, 0: not there yet, negative: longer than max. */
int hostccl_bootstrap_poll(struct hostccl_bootstrap *b, uint32_t crank, int32_t tag,
                           void *data, uint32_t max, uint32_t *ret_bytes);

#endif
