/* Which clock and network a process has, and how far the clock of another node is from
 * ours, from messages there and back.
 */
#ifndef CRYSTAL_NODE_CLOCK_H
#define CRYSTAL_NODE_CLOCK_H

#include <stdint.h>

#define CRYSTAL_CLOCK_ROUND 8 /* messages of one measurement */

/* A number that is equal in processes of this machine (boot) that are in the same
 * namespace: "time" (CLOCK_MONOTONIC) or "net". Where the kernel does not tell, a
 * random one: equal to nobody's. */
uint64_t crystal_namespace_id(const char *name);

/* A measurement: of CRYSTAL_CLOCK_ROUND messages the one that was under way shortest
 * counts, so that the error is at most half its way. All zero at first. */
struct crystal_clock {
    uint32_t count;
    uint64_t best_ns; /* there and back */
    int64_t offset_ns;
};
/* One message: sent and received by our clock, answered by the other's. 1: the
 * measurement is complete, *ret_offset_ns is to be added to our time for theirs, and
 * the next one begins. */
int crystal_clock_add(struct crystal_clock *clock, uint64_t sent_ns, uint64_t other_ns,
                      uint64_t received_ns, int64_t *ret_offset_ns);

#endif
