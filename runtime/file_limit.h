/* How many files this process may have open: every rank of a stage is a connection or
 * more, and most systems allow more than they give at first.
 */
#ifndef CRYSTAL_FILE_LIMIT_H
#define CRYSTAL_FILE_LIMIT_H

#include "runtime/error.h"

#include <stdint.h>

#define CRYSTAL_FILE_LIMIT_LEAST 128 /* below it not even a small job works */

/* Raises the limit as far as it may be raised, for this process and those that it
 * starts. 0, or -EMFILE with the way out where that is less than the least. */
int crystal_file_limit_raise(struct crystal_error *err);

/* "; allow more of them (ulimit -n)" where code says that there were too many, else "".
 */
const char *crystal_file_limit_hint(int code);

#endif
