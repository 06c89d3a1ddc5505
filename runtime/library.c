/* Finding our libraries: build tree first, so that a build is tried without installing.
 */
#include "config.h"

#include "runtime/library.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int crystal_library_path(const char *name, char *out, size_t out_bytes,
                         struct crystal_error *err)
{
    char exe[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", exe, sizeof exe - 1);
    char *slash;

    if (length > 0) {
        exe[length] = 0;
        slash = strrchr(exe, '/');
        if (slash)
            *slash = 0;
        if (snprintf(out, out_bytes, "%s/.libs/%s", exe, name) < (int)out_bytes &&
            access(out, R_OK) == 0)
            return 0;
    }
    if (snprintf(out, out_bytes, "%s/%s", CRYSTAL_LIBDIR, name) < (int)out_bytes &&
        access(out, R_OK) == 0)
        return 0;
    return crystal_error_set(err, ENOENT,
                             "%s is neither in %s nor beside scrystal; make install",
                             name, CRYSTAL_LIBDIR);
}
