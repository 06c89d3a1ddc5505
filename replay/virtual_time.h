/* When messages reach a real rank that stands behind virtual ones. Pure arithmetic.
 *
 * A run of k virtual ranks stands between real rank a and real rank b of a chain of
 * ranks: a -> v[k-1] -> ... -> v[1] -> v[0] -> b. Every rank has one NIC, which a
 * message occupies for s = bytes / bandwidth; it arrives latency + overhead after that,
 * so one hop takes h = s + latency + overhead. A rank sends once it has arrived at the
 * operation and has received what the message depends on:
 *   ring   (all-reduce, all-gather, reduce-scatter): the first message of each slice
 *          depends on nothing, message g on the one received `slices` before it; the
 *          first one of a later loop on all of the loop before
 *   chain  (broadcast, reduce): message g on the message g that was received
 * With A[j] the time at which v[j] is ready to begin, T[i] the time at which a's
 * message i began to leave, x[j] the first message at b that v[j] started, S(i, g) =
 * the sum of s over messages i .. g-1, message g reaches b at the largest of A[j] +
 * S(x[j], g) + (j+1) h       for each v[j] that x[j] <= g T[g - k slices] + (k+1) h for
 * a message that came from a the arrival of message g-1 + s    the last link carries
 * one at a time At first v[j] is ready when it has arrived. In every later loop it is
 * ready when it has sent and received all of the loop before, which the same rule
 * tells: see loop_ready in the source. That is the event order of all ranks in one
 * formula, O(1) per message as long as few message sizes occur. Exact where the sizes
 * repeat from step to step; where the chunks at the end of a tensor differ it may be
 * off by those differences.
 */
#ifndef CRYSTAL_VIRTUAL_TIME_H
#define CRYSTAL_VIRTUAL_TIME_H

#include "runtime/ring_schedule.h"
#include "replay/wire.h"

#include <stdint.h>

#define CRYSTAL_VT_NONE UINT64_MAX

/* How an operation passes through a run of virtual ranks to real rank crank. */
struct crystal_vt_path {
    uint32_t run;    /* k */
    uint32_t reach;  /* v[0] .. v[reach-1] pass messages on to b */
    int has_sender;  /* a's messages reach b */
    int is_ring;     /* else chain */
    uint32_t slices; /* messages per chunk step */
    uint64_t steps;  /* chunk steps per loop */
};
void crystal_vt_path(const struct crystal_ring_op *op, uint32_t crank, uint32_t run,
                     struct crystal_vt_path *ret);

/* What the time of message g needs of a: the index of its message that becomes g, or of
 * the last two that a virtual rank had to wait for before it started g;
 * CRYSTAL_VT_NONE where there is none. */
void crystal_vt_needs(const struct crystal_vt_path *path, uint64_t g,
                      uint64_t *ret_sent, uint64_t *ret_edge);

/* How many of a's messages matter to b, which receives `received`: the first ones. */
uint64_t crystal_vt_sent_count(const struct crystal_vt_path *path, uint64_t received);

struct crystal_vt_rank {
    int64_t start_ns;  /* ready for the present loop */
    int64_t offset_ns; /* start - S(first of the loop, x[j]) */
    int64_t suffix_ns; /* from the loop before: what the ranks behind it allow */
};

struct crystal_vt_best {
    uint64_t occupy_ns; /* s this is for */
    uint32_t joined;    /* virtual ranks counted so far */
    int64_t most_ns;    /* of offset[j] + (j+1) h */
};

/* One operation on one channel. */
struct crystal_vt {
    struct crystal_vt_path path;
    const struct crystal_wire *wire; /* borrowed */
    struct crystal_vt_rank *ranks;   /* caller's room for path.reach of them */
    uint32_t joined;                 /* in the present loop */
    uint64_t index;                  /* of the next message */
    int64_t sum_ns;                  /* S(first of the loop, index) */
    uint64_t last_ns;                /* arrival of the message before */
    uint64_t slice_ns[2];            /* s of the last message of each slice */
    uint64_t before_ns[2];           /* the same at the end of the loop before */
    unsigned best_count, best_oldest;
    struct crystal_vt_best best[4];
};

void crystal_vt_init(struct crystal_vt *vt, const struct crystal_vt_path *path,
                     const struct crystal_wire *wire, struct crystal_vt_rank *ranks);

/* Arrival of v[distance] at the operation; 0 or 1 = long ago. */
typedef uint64_t (*crystal_vt_arrive_fn)(const void *user, uint32_t distance);

struct crystal_vt_sent {
    uint64_t start_ns; /* when the first byte left a's NIC */
    uint64_t bytes;
};

/* The arrival of the next message, of `bytes`, at b. sent and edge are what
 * crystal_vt_needs named, else NULL. *ret_free_ns: the same had all virtual ranks
 * arrived long ago. */
uint64_t crystal_vt_next(struct crystal_vt *vt, uint64_t bytes,
                         crystal_vt_arrive_fn arrive, const void *user,
                         const struct crystal_vt_sent *sent,
                         const struct crystal_vt_sent *edge, uint64_t *ret_free_ns);

/* A message on its last hop to a receiver that may come late (rendezvous): it leaves
 * when it could, when the buffer was posted and when the link is free; *link_free_ns is
 * kept between messages. Returns when it is there. */
uint64_t crystal_vt_deliver(const struct crystal_wire *wire, uint64_t arrive_ns,
                            uint64_t posted_ns, uint64_t bytes, uint64_t *link_free_ns);

/* One hop of a virtual rank's message: s + latency + overhead. */
uint64_t crystal_vt_hop_ns(const struct crystal_wire *wire, uint64_t bytes);

#endif
