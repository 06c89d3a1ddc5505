/* See space.h. Asking statvfs would miss quotas and reserved blocks. */
#include "config.h"

#include "runtime/space.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PROBE_BYTES = 64 * 1024, PIECE_BYTES = 4096 };

static int write_probe(int fd)
{
    char piece[PIECE_BYTES];

    memset(piece, 0, sizeof piece);
    for (int written = 0; written < PROBE_BYTES;) {
        ssize_t done = write(fd, piece, sizeof piece);

        if (done < 0 && errno != EINTR)
            return errno;
        written += done > 0 ? (int)done : 0;
    }
    return fsync(fd) < 0 ? errno : 0; /* a network file system tells it late */
}

int crystal_space_check(const char *dir, struct crystal_error *err)
{
    char path[PATH_MAX];
    int fd, code;

    if (snprintf(path, sizeof path, "%s/.space.%d", dir, (int)getpid()) >=
        (int)sizeof path)
        return 0;
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    code = fd < 0 ? errno : write_probe(fd);
    if (fd >= 0) {
        if (close(fd) < 0 && !code)
            code = errno;
        (void)unlink(path); /* 64 KiB stay where even this fails */
    }
    if (code != ENOSPC && code != EDQUOT)
        return 0;
    return crystal_error_set(err, code,
                             "no space left in %s%s; free some or use another "
                             "directory",
                             dir, code == EDQUOT ? " (quota)" : "");
}
