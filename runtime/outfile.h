/* Writing a file: every file that a command leaves is written by these. The bytes go
 * to a temporary name beside it, which is renamed when all of them are on the disk, so
 * that a reader sees the old file or the whole new one. A symbolic link is followed:
 * the file that it names is replaced, with the permissions that it had.
 *
 * What is not a regular file is never replaced: /dev/null, a pipe or a terminal is
 * written through where the caller allows it, anything else is an error. Not
 * thread-safe for the same path.
 */
#ifndef CRYSTAL_OUTFILE_H
#define CRYSTAL_OUTFILE_H

#include "runtime/error.h"

#include <limits.h>
#include <stdio.h>

enum crystal_outfile_kind {
    CRYSTAL_OUTFILE_PRIVATE, /* of a job directory: a regular file of mode 0600 */
    CRYSTAL_OUTFILE_SHOWN,   /* named by the user: mode 0666 less the umask, or what
                                can be written through */
};

struct crystal_outfile {
    FILE *stream;             /* write here; owned */
    char path[PATH_MAX];      /* links resolved */
    char temporary[PATH_MAX]; /* "": written through */
};

/* Returns 0 or a negative errno with the sentence, and then there is nothing to close.
 * Waits for nobody: a FIFO without a reader is an error. */
int crystal_outfile_open(struct crystal_outfile *f, const char *path,
                         enum crystal_outfile_kind kind, struct crystal_error *err);

/* Ends the file. Where code is not 0, or a write has failed, the old file stays.
 * Returns code, or what failed here with the sentence. */
int crystal_outfile_close(struct crystal_outfile *f, int code,
                          struct crystal_error *err);

#endif
