/* What the service's parts share: the loop's ports and guests, and orders by which
 * other threads have things done. Everything here belongs to the service's thread.
 */
#ifndef CRYSTAL_HOSTCCL_SERVICE_INTERNAL_H
#define CRYSTAL_HOSTCCL_SERVICE_INTERNAL_H

#include "replay/hostccl/service.h"
#include "replay/hostccl/wire.h"
#include "runtime/loop.h"

#include <stdbool.h>

#define HOSTCCL_GUEST_MAX (64U << 10) /* bytes of a connection's message */

struct hostccl_guest;

/* Something that listens. */
struct hostccl_port {
    struct crystal_watch watch;
    uint64_t magic;
    /* Looks at what a guest has sent behind its handshake. 0: read on, guest->want says
     * how far; 1: complete; negative: not ours. */
    int (*parse)(struct hostccl_guest *guest);
    /* Takes the complete message and closes the guest. */
    void (*finish)(struct hostccl_guest *guest);
};

/* An accepted connection whose message is not complete. */
struct hostccl_guest {
    struct crystal_watch watch;
    struct hostccl_guest *next;
    struct hostccl_port *port;
    uint32_t have;
    uint32_t want; /* at which the message is looked at again */
    char *bytes;   /* [HOSTCCL_GUEST_MAX], the handshake first */
};

struct hostccl_order {
    struct hostccl_order *next;
    void (*run)(struct hostccl_order *order);
    void *object;
    int result;
    struct crystal_error err;
    bool is_done;
};

/* Has run(object) done by the thread, which it starts where needed, and waits for it.
 * Other threads. */
int hostccl_service_do(void (*run)(struct hostccl_order *order), void *object,
                       struct crystal_error *err);

/* Begins to accept guests on port->watch.fd. */
int hostccl_port_start(struct hostccl_port *port, struct crystal_error *err);
/* Stops, and closes the port and its guests. */
void hostccl_port_close(struct hostccl_port *port);
void hostccl_guest_close(struct hostccl_guest *guest);

/* Closes all roots: the thread ends. */
void hostccl_roots_close(void);

#endif
