/* job.profile for those who make and use it: writing, and whether it fits a graph. The
 * public half is profile.h. */
#ifndef CRYSTAL_PROFILE_FILE_H
#define CRYSTAL_PROFILE_FILE_H

#include "runtime/graph.h"
#include "runtime/profile.h"
#include "runtime/program.h"
#include "runtime/transfer.h"

/* What is written; all borrowed. ops of all reps in one row. */
struct crystal_profile_image {
    struct crystal_profile_head head;
    const struct crystal_profile_rep *reps;
    const struct crystal_profile_op *ops;
    const struct crystal_profile_iteration *iterations;
    uint64_t parent_hash, fingerprint;
};
int crystal_profile_write(const char *path, const struct crystal_profile_image *image,
                          struct crystal_error *err);

/* Has each operation a cost of its own, measured on a GPU? Then the head has none. */
static inline int crystal_profile_has_costs(const struct crystal_profile_head *h)
{
    return h->overhead_origin == CRYSTAL_ORIGIN_MEASURED && !h->overhead_sample_count;
}

struct crystal_transfer_wire crystal_profile_wire(const struct crystal_profile *p);

/* Was it made for this graph? programs by representative, as compiled from it. -ESTALE
 * with the stage to run again where not. */
int crystal_profile_check(const struct crystal_profile *p,
                          const struct crystal_graph *g,
                          struct crystal_program *const *programs,
                          struct crystal_error *err);

/* Adds what it tells of algorithm, protocol, the cost of software and how long work of
 * the device lasts to the programs that it was checked for. */
void crystal_profile_tell(const struct crystal_profile *p,
                          struct crystal_program *const *programs);

#endif
