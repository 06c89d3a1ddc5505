/* Pacing of messages. See wire.h for the rule. */
#include "config.h"

#include "replay/wire.h"

uint64_t crystal_wire_occupy_ns(const struct crystal_wire *wire, uint64_t bytes)
{
    const uint64_t rate = wire->bytes_per_s;
    __extension__ unsigned __int128 ns = bytes;

    if (!rate)
        return 0;
    if (bytes < UINT32_MAX && rate < UINT64_MAX / 2) /* several times as fast */
        return (bytes * 1000000000U + rate - 1) / rate;
    ns = (ns * 1000000000U + wire->bytes_per_s - 1) / wire->bytes_per_s;
    return ns > UINT64_MAX / 4 ? UINT64_MAX / 4 : (uint64_t)ns;
}

uint64_t crystal_nic_take(struct crystal_nic *nic, uint64_t now_ns, uint64_t occupy_ns)
{
    uint64_t free_ns = atomic_load_explicit(&nic->free_ns, memory_order_relaxed), start;

    do {
        start = free_ns > now_ns ? free_ns : now_ns;
    } while (!atomic_compare_exchange_weak_explicit(
        &nic->free_ns, &free_ns, start + occupy_ns, memory_order_relaxed,
        memory_order_relaxed));
    return start;
}

uint64_t crystal_link_take(struct crystal_link *link, uint64_t ready_ns,
                           uint64_t occupy_ns)
{
    uint64_t end_ns;

    (void)pthread_mutex_lock(&link->lock);
    end_ns = crystal_ingress_take(&link->ingress, ready_ns, occupy_ns);
    (void)pthread_mutex_unlock(&link->lock);
    return end_ns;
}
