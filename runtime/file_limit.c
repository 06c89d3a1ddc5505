/* See file_limit.h. */
#include "config.h"

#include "runtime/file_limit.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>

int crystal_file_limit_raise(struct crystal_error *err)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 0; /* then what is needed says so */
    if (limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &limit) < 0 &&
            getrlimit(RLIMIT_NOFILE, &limit) < 0)
            return 0;
    }
    return limit.rlim_cur >= CRYSTAL_FILE_LIMIT_LEAST
               ? 0
               : crystal_error_set(
                     err, EMFILE,
                     "only %llu files can be open (ulimit -n), a stage "
                     "needs %d and a large job some thousands; allow more",
                     (unsigned long long)limit.rlim_cur, CRYSTAL_FILE_LIMIT_LEAST);
}

const char *crystal_file_limit_hint(int code)
{
    return abs(code) == EMFILE ? "; allow more of them (ulimit -n)" : "";
}
