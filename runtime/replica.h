/* Replicas: what the ranks of a job that differ only in their data-parallel coordinate
 * have to do with each other. With live=replica one of them runs, dp = 0, and stands
 * for the others; where a rank keeps its distance to another one, it keeps it in
 * replicas. Pure functions.
 */
#ifndef CRYSTAL_REPLICA_H
#define CRYSTAL_REPLICA_H

#include "runtime/layout.h"

#include <stdint.h>

/* dp coordinate of a rank: lrank / stride % size. */
struct crystal_replica {
    uint32_t stride;
    uint32_t size; /* 1 where every rank is live or there is no dp */
};
void crystal_replica_init(struct crystal_replica *ret,
                          const struct crystal_layout *layout);
uint32_t crystal_replica_of(const struct crystal_replica *replica, uint32_t lrank);

/* The dp coordinates of a communicator's members are first + i * step, i < count;
 * count 0 where they are not evenly spaced. */
struct crystal_replica_span {
    uint32_t first, step, count;
};
/* Returns 0 or -ENOMEM. members are lranks, each within the job. */
int crystal_replica_span(const struct crystal_replica *replica, const uint32_t *members,
                         uint32_t nranks, struct crystal_replica_span *ret);

/* The lrank as far behind `lrank` in the span as `from` is behind `to`: so that `from`
 * does to lrank what `to` does to the result. Only dp coordinates count. lrank itself
 * where the span has less than two replicas. */
uint32_t crystal_replica_behind(const struct crystal_replica *replica,
                                const struct crystal_replica_span *span, uint32_t lrank,
                                uint32_t from, uint32_t to);

#endif
