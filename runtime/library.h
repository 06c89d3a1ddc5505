/* Where Crystal's own shared libraries are. */
#ifndef CRYSTAL_LIBRARY_H
#define CRYSTAL_LIBRARY_H

#include "runtime/error.h"

#include <stddef.h>

/* The absolute path of name ("libcrystal-nccl.so") into out: in the build tree where
 * the running scrystal comes from one (beside it in .libs), else where it was
 * installed, below the same root (DESTDIR) as scrystal if it is there. -ENOENT with the
 * places that were looked at. */
int crystal_library_path(const char *name, char *out, size_t out_bytes,
                         struct crystal_error *err);

#endif
