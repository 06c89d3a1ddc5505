/* Whether a directory still takes data: what a full file system or quota causes is told
 * as such, since the first fault that it leads to (a rank that dies, a log without an
 * end) often does not say it.
 */
#ifndef CRYSTAL_SPACE_H
#define CRYSTAL_SPACE_H

#include "runtime/error.h"

/* Writes 64 KiB into dir and removes them. -ENOSPC or -EDQUOT and a sentence where they
 * do not fit, else 0: other faults are for who meets them. */
int crystal_space_check(const char *dir, struct crystal_error *err);

#endif
