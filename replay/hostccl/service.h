/* The one thread that serves bootstrap sockets: roots, to which ranks check in, and
 * mailboxes, to which ranks send each other messages. It starts with the first of them
 * and ends with hostccl_service_stop. Functions are thread-safe.
 */
#ifndef CRYSTAL_HOSTCCL_SERVICE_H
#define CRYSTAL_HOSTCCL_SERVICE_H

#include "replay/hostccl/wire.h"
#include "runtime/error.h"

#include <stddef.h>

/* Serves a root on listen_fd (taken over, closed when every rank has been answered). */
int hostccl_service_root(int listen_fd, uint64_t magic, struct crystal_error *err);

struct hostccl_mailbox;

/* Receives messages on listen_fd (taken over). NULL on failure. notify (may be NULL) is
 * called from the service thread after each message. */
struct hostccl_mailbox *hostccl_mailbox_create(int listen_fd, uint64_t magic,
                                               void (*notify)(void),
                                               struct crystal_error *err);
/* Drops what nobody took. NULL is fine. */
void hostccl_mailbox_destroy(struct hostccl_mailbox *box);

/* Takes the oldest message of this sender and tag into data: 1 there was one (its size
 * in *ret_bytes), 0 none yet, -EMSGSIZE it has more than max bytes (and is dropped). */
int hostccl_mailbox_take(struct hostccl_mailbox *box, int32_t crank, int32_t tag,
                         void *data, uint32_t max, uint32_t *ret_bytes);
/* The same, but waits up to 100 ms for it. */
int hostccl_mailbox_wait(struct hostccl_mailbox *box, int32_t crank, int32_t tag,
                         void *data, uint32_t max, uint32_t *ret_bytes);

/* Calls fn from the service's thread every period_ns from now on. One such function per
 * process. */
int hostccl_service_every(uint64_t period_ns, void (*fn)(void),
                          struct crystal_error *err);

/* Ends the thread and closes all roots. Mailboxes must be gone. */
void hostccl_service_stop(void);

#endif
