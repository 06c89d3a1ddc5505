/* Contributions for ranks that do not run while one rank is captured by itself
 * (--crystal-live=LIST): what the ranks captured before it have kept in ranks/.
 */
#ifndef CRYSTAL_INJECT_H
#define CRYSTAL_INJECT_H

#include "runtime/blob.h"
#include "runtime/error.h"

#include <stddef.h>
#include <stdint.h>

struct crystal_inject;

/* NULL = out of memory. */
struct crystal_inject *crystal_inject_create(void);
void crystal_inject_destroy(struct crystal_inject *inject);

/* Reads job_dir/ranks/LRANK.trace and .payload, which are sealed; once per rank. */
int crystal_inject_add(struct crystal_inject *inject, const char *job_dir,
                       uint32_t lrank, struct crystal_error *err);

/* What lrank put into the seq-th collective of the communicator of that name, at least
 * `bytes`; an empty slice where it was not captured or that not kept. With a reference.
 */
struct crystal_slice crystal_inject_coll(const struct crystal_inject *inject,
                                         uint32_t lrank, const char *name, uint64_t seq,
                                         uint64_t bytes);
/* What it sent to crank `to` the seq-th time, exactly `bytes`; else the first thing of
 * that size that it sent there; else an empty slice. With a reference. */
struct crystal_slice crystal_inject_send(const struct crystal_inject *inject,
                                         uint32_t lrank, const char *name, uint32_t to,
                                         uint64_t seq, uint64_t bytes);

#endif
