/* The clock of all times in Crystal: CLOCK_MONOTONIC, the same for all processes of a
 * host. Links nothing.
 */
#ifndef CRYSTAL_CLOCK_H
#define CRYSTAL_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t crystal_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail for this clock */
    return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

#endif
