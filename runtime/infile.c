/* See infile.h. O_NONBLOCK makes open return at once for a FIFO without a writer; on a
 * regular file it has no effect (open(2)). */
#include "config.h"

#include "runtime/infile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int regular_open(const char *path, int flags, uint64_t *ret_bytes,
                        struct crystal_error *err)
{
    struct stat st;
    int code, fd = open(path, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0)
        return crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) < 0)
        code = crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        code = crystal_error_set(err, S_ISDIR(st.st_mode) ? EISDIR : EINVAL,
                                 "%s: not a regular file; name a file that can be "
                                 "read from its beginning",
                                 path);
    else
        code = 0;
    if (code) {
        (void)close(fd); /* nothing was read */
        return code;
    }
    if (ret_bytes)
        *ret_bytes = (uint64_t)st.st_size;
    return fd;
}

int crystal_infile_open(const char *path, uint64_t *ret_bytes,
                        struct crystal_error *err)
{
    return regular_open(path, O_RDONLY, ret_bytes, err);
}

int crystal_infile_update(const char *path, uint64_t *ret_bytes,
                          struct crystal_error *err)
{
    return regular_open(path, O_RDWR | O_NOFOLLOW, ret_bytes, err);
}

int crystal_infile_read(const char *path, size_t most, char **ret, size_t *ret_bytes,
                        struct crystal_error *err)
{
    uint64_t bytes;
    char *text;
    ssize_t got;
    int code = 0, fd = crystal_infile_open(path, &bytes, err);

    if (fd < 0)
        return fd;
    text = bytes > most ? NULL : malloc((size_t)bytes + 1);
    got = text ? pread(fd, text, (size_t)bytes, 0) : 0; /* in one piece */
    if (bytes > most)
        code =
            crystal_error_set(err, EFBIG, "%s: larger than %zu MiB", path, most >> 20);
    else if (!text)
        code = crystal_error_set(err, ENOMEM, "%s: out of memory", path);
    else if (got < 0)
        code = crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
    (void)close(fd); /* read-only */
    if (code) {
        free(text);
        return code;
    }
    *ret = text;
    *ret_bytes = (size_t)got;
    return 0;
}

FILE *crystal_infile_stream(const char *path, struct crystal_error *err)
{
    int fd = crystal_infile_open(path, NULL, err);
    FILE *stream = fd < 0 ? NULL : fdopen(fd, "r");

    if (fd >= 0 && !stream) {
        (void)crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
        (void)close(fd); /* nothing was read */
    }
    return stream;
}
