/* DIR/coord: the lines key=value in which a coordinator says where it is (jobdir.h). */
#ifndef CRYSTAL_COORD_FILE_H
#define CRYSTAL_COORD_FILE_H

#include "runtime/error.h"

#include <stddef.h>

/* The value of key. -ENOENT where the file, or a line of that key that fits, is not
 * there; what else keeps it from being read. */
int crystal_coord_file_value(const char *path, const char *key, char *value,
                             size_t value_bytes, struct crystal_error *err);

#endif
