/* Opening a file to read it. Only regular files: a FIFO, a terminal or a device where a
 * file is expected would keep a command waiting for ever. Thread-safe.
 */
#ifndef CRYSTAL_INFILE_H
#define CRYSTAL_INFILE_H

#include "runtime/error.h"

#include <stdint.h>
#include <stdio.h>

/* A descriptor for reading, close-on-exec, or a negative errno with the sentence. Never
 * waits. ret_bytes may be NULL. The caller closes it. */
int crystal_infile_open(const char *path, uint64_t *ret_bytes,
                        struct crystal_error *err);

/* The same for reading and writing in place; a symbolic link is an error. */
int crystal_infile_update(const char *path, uint64_t *ret_bytes,
                          struct crystal_error *err);

/* All of a file of at most `most` bytes; what is cut off meanwhile is not read. *ret is
 * the caller's to free. Negative errno with the sentence. */
int crystal_infile_read(const char *path, size_t most, char **ret, size_t *ret_bytes,
                        struct crystal_error *err);

/* For reading, as a stream, NULL with the sentence. */
FILE *crystal_infile_stream(const char *path, struct crystal_error *err);

#endif
