/* A growing argument vector. Adding after an allocation failed does nothing, so that a
 * caller builds a whole line and checks once with crystal_argv_is_ok.
 */
#ifndef CRYSTAL_SPANK_ARGV_H
#define CRYSTAL_SPANK_ARGV_H

#include <stdbool.h>
#include <stddef.h>

struct crystal_argv {
    char **v; /* count strings and a NULL; owned; NULL while empty */
    int count;
    int capacity;
    bool failed; /* out of memory: the vector is incomplete */
};

/* All zero is an empty vector. */
void crystal_argv_fini(struct crystal_argv *argv);
void crystal_argv_add(struct crystal_argv *argv, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Adds copies of from's strings [first, end). */
void crystal_argv_add_range(struct crystal_argv *argv, const struct crystal_argv *from,
                            int first, int end);
bool crystal_argv_is_ok(const struct crystal_argv *argv);
/* The zero-separated strings of a file such as /proc/self/cmdline. 0 or negative
 * errno. */
int crystal_argv_read(struct crystal_argv *argv, const char *path);

#endif
