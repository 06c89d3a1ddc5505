/* The modelled wire: how long a message occupies its sender's NIC and when it arrives.
 * The same rule holds for connections between real ranks and for virtual ranks.
 *
 * A message of b bytes occupies the NIC for b / bytes_per_s and arrives latency_ns
 * after its last byte has left. Rendezvous: it does not leave before the receiver has
 * posted a buffer for it. bytes_per_s = 0 means that a message occupies nothing.
 */
#ifndef CRYSTAL_WIRE_H
#define CRYSTAL_WIRE_H

#include "runtime/ingress.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

struct crystal_wire {
    uint64_t bytes_per_s;
    uint64_t latency_ns;
    uint64_t overhead_ns; /* software cost per hop between virtual ranks */
};

/* One NIC: when it will have sent what was given to it. Any thread. */
struct crystal_nic {
    _Atomic uint64_t free_ns;
};

/* What a process takes in (runtime/ingress.h). Thread-safe. */
struct crystal_link {
    pthread_mutex_t lock; /* as PTHREAD_MUTEX_INITIALIZER leaves it */
    struct crystal_ingress ingress;
};

/* A message whose first byte could come at ready_ns takes occupy_ns of the link.
 * Returns when its last byte is there. */
uint64_t crystal_link_take(struct crystal_link *link, uint64_t ready_ns,
                           uint64_t occupy_ns);

/* How long bytes occupy a NIC, rounded up to a nanosecond. */
uint64_t crystal_wire_occupy_ns(const struct crystal_wire *wire, uint64_t bytes);

static inline int crystal_wire_is_paced(const struct crystal_wire *wire)
{
    return wire->bytes_per_s != 0 || wire->latency_ns != 0;
}

/* Queues a message that is ready at now_ns; returns when its first byte leaves. */
uint64_t crystal_nic_take(struct crystal_nic *nic, uint64_t now_ns, uint64_t occupy_ns);

#endif
