/* Finding our libraries: build tree first, so that a build is tried without installing;
 * then the installation that the running program belongs to, which may have been copied
 * below another root (make install DESTDIR=); then the place given at configure time.
 */
#include "config.h"

#include "runtime/library.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Is dir/name readable? Then its path is in out. */
static int is_here(const char *dir, size_t dir_bytes, const char *rest,
                   const char *name, char *out, size_t out_bytes)
{
    int length = snprintf(out, out_bytes, "%.*s%s/%s", (int)dir_bytes, dir, rest, name);

    return length > 0 && (size_t)length < out_bytes && access(out, R_OK) == 0;
}

int crystal_library_path(const char *name, char *out, size_t out_bytes,
                         struct crystal_error *err)
{
    static const char bindir[] = CRYSTAL_BINDIR;
    const size_t bindir_bytes = sizeof bindir - 1;
    char exe[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", exe, sizeof exe - 1);

    if (length > 0) {
        const char *slash;
        size_t bytes;

        exe[length] = 0;
        slash = strrchr(exe, '/');
        bytes = slash ? (size_t)(slash - exe) : 0;
        if (is_here(exe, bytes, "/.libs", name, out, out_bytes))
            return 0;
        if (bytes > bindir_bytes &&
            memcmp(exe + bytes - bindir_bytes, bindir, bindir_bytes) == 0 &&
            is_here(exe, bytes - bindir_bytes, CRYSTAL_LIBDIR, name, out, out_bytes))
            return 0;
    }
    if (is_here("", 0, CRYSTAL_LIBDIR, name, out, out_bytes))
        return 0;
    return crystal_error_set(err, ENOENT,
                             "%s is neither in %s nor beside scrystal; make install",
                             name, CRYSTAL_LIBDIR);
}
