/* Pacing of messages. See wire.h for the rule. */
#include "config.h"

#include "replay/wire.h"

#include <string.h>

uint64_t crystal_wire_occupy_ns(const struct crystal_wire *wire, uint64_t bytes)
{
    __extension__ unsigned __int128 ns = bytes;

    if (!wire->bytes_per_s)
        return 0;
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

/* Puts a span at i; the oldest one goes where there is no room. */
static void span_insert(struct crystal_link *link, unsigned i, uint64_t from_ns,
                        uint64_t to_ns)
{
    if (link->count == CRYSTAL_LINK_SPANS) {
        if (i == 0)
            return; /* older than all that is known */
        memmove(&link->spans[0], &link->spans[1],
                (CRYSTAL_LINK_SPANS - 1) * sizeof link->spans[0]);
        link->count--;
        i--;
    }
    memmove(&link->spans[i + 1], &link->spans[i],
            (link->count - i) * sizeof link->spans[0]);
    link->spans[i] = (struct crystal_link_span){from_ns, to_ns};
    link->count++;
}

uint64_t crystal_link_take(struct crystal_link *link, uint64_t ready_ns,
                           uint64_t occupy_ns)
{
    uint64_t at_ns = ready_ns, from_ns = ready_ns;
    unsigned first, last;

    if (!occupy_ns)
        return ready_ns;
    (void)pthread_mutex_lock(&link->lock);
    for (first = link->count; first > 0 && link->spans[first - 1].to_ns >= ready_ns;)
        first--;
    /* all gaps from ready_ns to the end are filled: one span in place of many */
    for (last = first; last < link->count; last++) {
        const struct crystal_link_span *s = &link->spans[last];

        if (s->from_ns > at_ns + occupy_ns)
            break;
        if (s->from_ns > at_ns)
            occupy_ns -= s->from_ns - at_ns;
        else if (last == first)
            from_ns = s->from_ns;
        at_ns = s->to_ns > at_ns ? s->to_ns : at_ns;
        if (!occupy_ns) { /* it ended where this one begins */
            at_ns = s->from_ns;
            break;
        }
    }
    at_ns += occupy_ns;
    if (last < link->count && link->spans[last].from_ns == at_ns) {
        uint64_t to_ns = link->spans[last].to_ns;

        memmove(&link->spans[first], &link->spans[last + 1],
                (link->count - last - 1) * sizeof link->spans[0]);
        link->count -= last + 1 - first;
        span_insert(link, first, from_ns, to_ns);
    } else {
        memmove(&link->spans[first], &link->spans[last],
                (link->count - last) * sizeof link->spans[0]);
        link->count -= last - first;
        span_insert(link, first, from_ns, at_ns);
    }
    (void)pthread_mutex_unlock(&link->lock);
    return at_ns;
}
