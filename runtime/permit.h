/* Whether crystal.yaml lets somebody emulate a job of some size. Asked where the
 * options are read, and again on each node, with the node's own file: what binds users
 * is Slurm's (QOS, licences, associations), this says so early and in a sentence.
 */
#ifndef CRYSTAL_PERMIT_H
#define CRYSTAL_PERMIT_H

#include "runtime/conf.h"
#include "runtime/error.h"
#include "runtime/layout.h"

#include <stdint.h>

/* Who asks: the effective user, and where the job runs; NULL = not known yet. */
struct crystal_permit_asker {
    const char *account, *partition;
};

/* 0; -EPERM where the file does not let this user, account or partition emulate;
 * -EINVAL where the job is larger than a limit. The sentence names the key. */
int crystal_permit(const struct crystal_conf *conf,
                   const struct crystal_permit_asker *asker,
                   const struct crystal_layout *layout, struct crystal_error *err);
/* -EDQUOT where what lies in directory path is more than limits.job_dir_bytes. */
int crystal_permit_bytes(const struct crystal_conf *conf, const char *path,
                         struct crystal_error *err);

#endif
