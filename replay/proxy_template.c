/* Where the ring of a communicator passes from real to virtual ranks, and which real
 * rank is the template of each virtual one.
 *
 * A template has to be known in time. In step s of an all-gather every rank passes on
 * the slices at ring distance s from it, so the slice of a real rank reaches us in the
 * step that is its distance from the nearer end of its run of real ranks (its reach),
 * and a virtual rank's slice is wanted first in the step that is its distance from the
 * nearest real rank, less one. With reach <= that step for every template, no step of
 * any run waits for a later one of another. The ends of a run have reach 0, so there is
 * always a template; the preferred one is the real rank with the same local rank that
 * has the smallest reach.
 */
#include "config.h"

#include "replay/proxy_internal.h"

#include <errno.h>
#include <stdlib.h>

static uint32_t local_of(const struct proxy_comm *comm, uint32_t crank)
{
    return comm->members[crank] % comm->proxy->layout->ranks_per_node;
}

/* Real members in crank order, each with its distance from the nearer end of its run,
 * and the links at the ends. Some member is virtual. */
static void find_runs(struct proxy_comm *comm)
{
    const bool is_one_way = comm->layout->is_one_way;
    const uint32_t n = comm->nranks;
    /* slices that an all-gather sends to the next rank, and to the previous one */
    const uint32_t forth = is_one_way ? n - 1 : n / 2, back = n - 1 - forth;
    uint32_t real = 0, first_virtual = 0, begin;

    for (uint32_t i = 0; i < n; i++)
        if (comm->is_real[i]) {
            comm->templates[i] = real;
            comm->reals[real++].crank = i;
        }
    while (comm->is_real[first_virtual])
        first_virtual++;
    for (uint32_t i = 1; i < n; i++) {
        uint32_t length = 0;

        begin = (first_virtual + i) % n;
        if (!comm->is_real[begin])
            continue;
        while (comm->is_real[(begin + length) % n])
            length++;
        for (uint32_t k = 0; k < length; k++)
            comm->reals[comm->templates[(begin + k) % n]].reach =
                k < length - 1 - k && !is_one_way ? k : length - 1 - k;
        comm->links[comm->link_count++] = (struct proxy_link){
            .real = comm->templates[begin], .in_count = back, .out_count = forth};
        comm->links[comm->link_count++] =
            (struct proxy_link){.real = comm->templates[(begin + length - 1) % n],
                                .is_next = true,
                                .in_count = forth,
                                .out_count = back};
        i += length - 1;
    }
}

/* The step in which each virtual rank's slice is wanted first, by crank: by the next
 * real rank, or by the previous one. */
static void find_wanted(const struct proxy_comm *comm, uint32_t *wanted)
{
    uint32_t n = comm->nranks, distance = 0;

    for (uint32_t i = 0; i < 2 * n; i++) { /* twice round, so that the seam is right */
        distance = comm->is_real[i % n] ? 0 : distance + 1;
        wanted[i % n] = comm->layout->is_one_way ? n : distance;
    }
    distance = 0;
    for (uint32_t i = 2 * n; i-- > 0;) {
        distance = comm->is_real[i % n] ? 0 : distance + 1;
        if (distance < wanted[i % n])
            wanted[i % n] = distance;
    }
    for (uint32_t i = 0; i < n; i++)
        if (!comm->is_real[i])
            wanted[i]--;
}

int proxy_comm_choose_templates(struct proxy_comm *comm)
{
    uint32_t per_node = comm->proxy->layout->ranks_per_node, n = comm->nranks;
    uint32_t *by_local = malloc(4 * (size_t)per_node);
    uint32_t end = 0; /* the first real member at an end of its run */

    if (!by_local)
        return -ENOMEM;
    find_runs(comm);
    while (comm->reals[end].reach)
        end++;
    for (uint32_t l = 0; l < per_node; l++)
        by_local[l] = PROXY_NONE;
    for (uint32_t r = 0; r < comm->real_count; r++) {
        uint32_t *best = &by_local[local_of(comm, comm->reals[r].crank)];

        if (*best == PROXY_NONE || comm->reals[r].reach < comm->reals[*best].reach)
            *best = r;
    }
    find_wanted(comm, comm->wanted);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t real = by_local[local_of(comm, i)];

        if (comm->is_real[i])
            continue;
        comm->templates[i] =
            real != PROXY_NONE && comm->reals[real].reach <= comm->wanted[i] ? real
                                                                             : end;
    }
    free(by_local);
    return 0;
}
