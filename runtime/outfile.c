/* See outfile.h. */
#include "config.h"

#include "runtime/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int failed(const char *path, int code, struct crystal_error *err)
{
    return crystal_error_set(err, code, "%s: %s", path, strerror(code));
}

static int stream_make(struct crystal_outfile *f, int fd, struct crystal_error *err)
{
    int code;

    f->stream = fdopen(fd, "w");
    if (f->stream)
        return 0;
    code = errno;
    (void)close(fd); /* empty so far */
    if (f->temporary[0])
        (void)unlink(f->temporary);
    return failed(f->path, code, err);
}

/* Standard output and error may be files: another descriptor of them would write from
 * their beginning, over what is there. */
static int is_already_open(const struct stat *st, int *ret_fd)
{
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
        struct stat other;

        if (fstat(fd, &other) == 0 && other.st_dev == st->st_dev &&
            other.st_ino == st->st_ino) {
            *ret_fd = fd;
            return 1;
        }
    }
    return 0;
}

static int through_open(struct crystal_outfile *f, int open_fd,
                        struct crystal_error *err)
{
    int flags, fd;

    if (open_fd >= 0) {
        (void)fflush(stdout); /* its errors stay with it */
        fd = fcntl(open_fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    } else { /* NONBLOCK: a FIFO without a reader is an error at once */
        fd = open(f->path, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (fd < 0 && errno == ENXIO)
            return crystal_error_set(err, ENXIO, "%s: nobody reads this pipe", f->path);
        flags = fd < 0 ? -1 : fcntl(fd, F_GETFL);
        if (flags >= 0)
            (void)fcntl(fd, F_SETFL, flags & ~O_NONBLOCK); /* cannot fail */
    }
    return fd < 0 ? failed(f->path, errno, err) : stream_make(f, fd, err);
}

/* A leftover of a killed process may have the name. */
static int temporary_open(struct crystal_outfile *f, mode_t mode,
                          struct crystal_error *err)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    int fd;

    if (snprintf(f->temporary, sizeof f->temporary, "%s.%d.tmp", f->path,
                 (int)getpid()) >= (int)sizeof f->temporary)
        return failed(f->path, ENAMETOOLONG, err);
    fd = open(f->temporary, flags, mode);
    if (fd < 0 && errno == EEXIST && unlink(f->temporary) == 0)
        fd = open(f->temporary, flags, mode);
    return fd < 0 ? failed(f->path, errno, err) : stream_make(f, fd, err);
}

static int path_resolve(struct crystal_outfile *f, const char *path,
                        struct crystal_error *err)
{
    struct stat st;

    if (lstat(path, &st) == 0 && S_ISLNK(st.st_mode)) {
        if (!realpath(path, f->path))
            return crystal_error_set(err, errno,
                                     "%s: a link to a file that cannot be found: %s",
                                     path, strerror(errno));
        return 0;
    }
    return snprintf(f->path, sizeof f->path, "%s", path) >= (int)sizeof f->path
               ? failed(path, ENAMETOOLONG, err)
               : 0;
}

int crystal_outfile_open(struct crystal_outfile *f, const char *path,
                         enum crystal_outfile_kind kind, struct crystal_error *err)
{
    const int is_shown = kind == CRYSTAL_OUTFILE_SHOWN;
    struct stat st;
    int open_fd = -1, is_there, code;

    memset(f, 0, sizeof *f);
    if (!*path)
        return crystal_error_set(err, EINVAL,
                                 "the name of a file to write is empty; give one");
    is_there = stat(path, &st) == 0;
    if (is_there && is_shown &&
        (is_already_open(&st, &open_fd) || S_ISFIFO(st.st_mode) ||
         S_ISCHR(st.st_mode))) {
        (void)snprintf(f->path, sizeof f->path, "%s", path); /* it was found by it */
        return through_open(f, open_fd, err);
    }
    if (is_there && !S_ISREG(st.st_mode))
        return crystal_error_set(err, S_ISDIR(st.st_mode) ? EISDIR : EINVAL,
                                 "%s: not a regular file; it is not replaced, name "
                                 "another file",
                                 path);
    code = path_resolve(f, path, err);
    if (!code)
        code = temporary_open(f, is_shown ? 0666 : 0600, err);
    if (!code && is_there && fchmod(fileno(f->stream), st.st_mode & 0777) < 0)
        return crystal_outfile_close(f, failed(path, errno, err), err);
    return code;
}

int crystal_outfile_close(struct crystal_outfile *f, int code,
                          struct crystal_error *err)
{
    int bad = 0;

    errno = 0;
    if (fflush(f->stream) || ferror(f->stream))
        bad = errno ? errno : EIO; /* 0: an earlier write, forgotten by now */
    if (!code && !bad && f->temporary[0] && fsync(fileno(f->stream)) < 0)
        bad = errno;
    if (fclose(f->stream) && !bad)
        bad = errno;
    f->stream = NULL;
    if (!code && !bad && f->temporary[0] && rename(f->temporary, f->path) < 0)
        bad = errno;
    if (f->temporary[0] && (code || bad))
        (void)unlink(f->temporary); /* best effort, the error is already known */
    return code || !bad ? code : failed(f->path, bad, err);
}
