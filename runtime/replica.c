/* The arithmetic of replicas. See replica.h. Coordinates come from a rank's number,
 * fastest dimension first, ep either a dimension of its own or inside dp. */
#include "config.h"

#include "runtime/replica.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void crystal_replica_init(struct crystal_replica *ret,
                          const struct crystal_layout *layout)
{
    const struct crystal_grid *grid = &layout->grid;
    uint32_t stride = 1;

    *ret = (struct crystal_replica){1, 1};
    if (layout->live_mode == CRYSTAL_LIVE_ALL ||
        layout->live_count == layout->lrank_count)
        return;
    for (uint32_t i = 0; i < grid->count; i++) {
        if (strcmp(grid->dim[i].name, "dp") == 0) {
            *ret = (struct crystal_replica){stride, grid->dim[i].size};
            return;
        }
        if (strcmp(grid->dim[i].name, "ep") != 0 || grid->ep_inside <= 1)
            stride *= grid->dim[i].size;
    }
}

uint32_t crystal_replica_of(const struct crystal_replica *replica, uint32_t lrank)
{
    return lrank / replica->stride % replica->size;
}

int crystal_replica_span(const struct crystal_replica *replica, const uint32_t *members,
                         uint32_t nranks, struct crystal_replica_span *ret)
{
    struct crystal_replica_span span = {.step = 1};
    unsigned char *has = calloc(replica->size, 1);
    uint32_t last = 0;

    if (!has)
        return -ENOMEM;
    for (uint32_t k = 0; k < nranks; k++)
        has[crystal_replica_of(replica, members[k])] = 1;
    for (uint32_t d = 0; d < replica->size; d++) {
        if (!has[d])
            continue;
        if (span.count == 0)
            span.first = d;
        else if (span.count == 1)
            span.step = d - last;
        else if (d - last != span.step) {
            span.count = 0;
            break;
        }
        span.count++;
        last = d;
    }
    free(has);
    *ret = span;
    return 0;
}

uint32_t crystal_replica_behind(const struct crystal_replica *replica,
                                const struct crystal_replica_span *span, uint32_t lrank,
                                uint32_t from, uint32_t to)
{
    uint32_t dp = crystal_replica_of(replica, lrank), distance, place;

    if (span->count < 2)
        return lrank;
    distance = (crystal_replica_of(replica, from) - span->first) / span->step +
               span->count -
               (crystal_replica_of(replica, to) - span->first) / span->step;
    place =
        ((dp - span->first) / span->step + 2 * span->count - distance) % span->count;
    return lrank + (span->first + place * span->step) * replica->stride -
           dp * replica->stride;
}
