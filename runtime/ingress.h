/* What a NIC takes in: at most the wire's bandwidth in all, whatever the number of
 * senders, channels and communicators. The plugin paces real messages by this rule, the
 * timeline those between virtual ranks.
 *
 * A message takes what is left over of the times that messages before it have taken, in
 * pieces if need be; so one that comes late leaves the time before it to others. Zeroed
 * memory is a NIC that has taken nothing. Not thread-safe.
 */
#ifndef CRYSTAL_INGRESS_H
#define CRYSTAL_INGRESS_H

#include <stdint.h>

/* So many times are remembered; the oldest one goes where there is no room. */
#define CRYSTAL_INGRESS_SPANS 128

struct crystal_ingress {
    uint32_t count;
    struct crystal_ingress_span {
        uint64_t from_ns, to_ns;
    } spans[CRYSTAL_INGRESS_SPANS]; /* taken; in order, apart from each other */
};

/* A message whose first byte could come at ready_ns takes occupy_ns. Returns when its
 * last byte is there. */
uint64_t crystal_ingress_take(struct crystal_ingress *in, uint64_t ready_ns,
                              uint64_t occupy_ns);

#endif
