/* Which contributions of a rank are kept in its payload file.
 *
 * Everything, where the job asks for it (--crystal-payload=all). Else what may steer
 * control flow: integers, bytes and bools up to KEEP_CONTROL_BYTES, of every call; and
 * of what somebody receives as it is (send, broadcast, all-to-all, scatter) the first
 * payload of each shape, which stands in for all later ones: one for each communicator,
 * function, peer, datatype and count, up to KEEP_FIRST_BYTES each, KEEP_FIRST_TOTAL and
 * KEEP_FIRST_SHAPES in all. Not thread-safe: the caller's lock.
 */
#ifndef CRYSTAL_KEEP_H
#define CRYSTAL_KEEP_H

#include <stdint.h>

#define KEEP_CONTROL_BYTES (UINT64_C(1) << 20)
#define KEEP_FIRST_BYTES   (UINT64_C(64) << 20)
#define KEEP_FIRST_TOTAL   (UINT64_C(256) << 20)
#define KEEP_FIRST_SHAPES  1024 /* a power of two; 3/4 of them are used */

struct recorder_call;

struct keep_shape {
    uint64_t count;
    uint32_t peer;
    uint16_t comm;
    uint8_t func; /* CRYSTAL_FUNC_NONE: free */
    uint8_t dtype;
};

/* Zero it for control payloads. */
struct keep {
    int is_all;
    uint32_t shape_count;
    uint64_t first_bytes; /* of first payloads so far */
    struct keep_shape shapes[KEEP_FIRST_SHAPES];
};

/* How many of the send_bytes of this call are to be kept: all or 0. Remembers it. */
uint64_t keep_bytes(struct keep *k, const struct recorder_call *call,
                    uint64_t send_bytes);

#endif
