/* The job directory: opening, locking, naming its files. See jobdir.h for the list. */
#include "config.h"

#include "runtime/jobdir.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct crystal_jobdir {
    char path[PATH_MAX];
    int lock_fd; /* -1: not locked by us */
};

static int check_owner(const char *what, const char *path, struct crystal_error *err)
{
    struct stat st;

    if (stat(path, &st) < 0)
        return crystal_error_set(err, errno, "%s %s: %s", what, path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return crystal_error_set(err, ENOTDIR, "%s %s: not a directory", what, path);
    if (st.st_uid != geteuid())
        return crystal_error_set(err, EACCES,
                                 "%s %s: belongs to another user; give one of your own",
                                 what, path);
    if (st.st_mode & 022)
        return crystal_error_set(
            err, EACCES, "%s %s: others can write to it; chmod 700 it", what, path);
    return 0;
}

int crystal_jobdir_check_name(const char *what, const char *path,
                              struct crystal_error *err)
{
    const char *end = strchr(path, '\n');

    if (!end)
        return 0;
    return crystal_error_set(err, EINVAL,
                             "%s: the path has a line break behind '%.*s'; give a "
                             "directory without one",
                             what, (int)(end - path), path);
}

int crystal_jobdir_private(const char *what, const char *path, int create,
                           char ret[PATH_MAX], struct crystal_error *err)
{
    if ((create && mkdir(path, 0700) < 0 && errno != EEXIST) || !realpath(path, ret))
        return crystal_error_set(err, errno, "%s %s: %s", what, path, strerror(errno));
    return check_owner(what, ret, err);
}

struct crystal_jobdir *crystal_jobdir_open(const char *path, int create,
                                           struct crystal_error *err)
{
    struct crystal_jobdir *dir = calloc(1, sizeof *dir);

    if (!dir) {
        (void)crystal_error_set(err, ENOMEM, "job directory: out of memory");
        return NULL;
    }
    dir->lock_fd = -1;
    if (crystal_jobdir_private("job directory", path, create, dir->path, err) ||
        crystal_jobdir_check_name("job directory", dir->path, err)) {
        free(dir);
        return NULL;
    }
    return dir;
}

void crystal_jobdir_close(struct crystal_jobdir *dir)
{
    if (!dir)
        return;
    if (dir->lock_fd >= 0)
        (void)close(dir->lock_fd); /* releases the lock */
    free(dir);
}

const char *crystal_jobdir_path(const struct crystal_jobdir *dir)
{
    return dir->path;
}

/* "process 123 on n1, job 7 (restart 1)" */
static ssize_t name_holder(char *out, size_t out_bytes, const char *host)
{
    const char *job = getenv("SLURM_JOB_ID"), *restart = getenv("SLURM_RESTART_COUNT");

    if (!job)
        return snprintf(out, out_bytes, "process %d on %s\n", (int)getpid(), host);
    return snprintf(out, out_bytes, "process %d on %s, job %.16s (restart %.8s)\n",
                    (int)getpid(), host, job, restart ? restart : "0");
}

int crystal_jobdir_lock(struct crystal_jobdir *dir, struct crystal_error *err)
{
    char file[PATH_MAX], holder[128] = "";
    char host[64] = "?";
    ssize_t got;
    int fd, code;

    code = crystal_jobdir_file(dir, file, sizeof file, err, "lock");
    if (code)
        return code;
    fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return crystal_error_set(err, errno, "%s: %s", file, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        code = errno;
        got = read(fd, holder, sizeof holder - 1);
        if (got > 0)
            holder[strcspn(holder, "\n")] = 0;
        (void)close(fd);
        return crystal_error_set(
            err, EBUSY,
            code == EWOULDBLOCK
                ? "job directory %s is in use by %s; wait for it or give another "
                  "--crystal-job-dir"
                : "job directory %s cannot be locked (%s)",
            dir->path,
            code == EWOULDBLOCK ? (holder[0] ? holder : "another job")
                                : strerror(code));
    }
    (void)gethostname(host, sizeof host - 1); /* only for the sentence above */
    got = name_holder(holder, sizeof holder, host);
    if (ftruncate(fd, 0) < 0 || pwrite(fd, holder, (size_t)got, 0) != got) {
        code = errno ? errno : EIO;
        (void)close(fd);
        return crystal_error_set(err, code, "%s: %s", file, strerror(code));
    }
    dir->lock_fd = fd;
    return 0;
}

int crystal_jobdir_file(const struct crystal_jobdir *dir, char *out, size_t out_bytes,
                        struct crystal_error *err, const char *format, ...)
{
    va_list args;
    int base, more;

    base = snprintf(out, out_bytes, "%s/", dir->path);
    if (base >= 0 && (size_t)base < out_bytes) {
        va_start(args, format);
        more = vsnprintf(out + base, out_bytes - (size_t)base, format, args);
        va_end(args);
        if (more >= 0 && (size_t)base + (size_t)more < out_bytes)
            return 0;
    }
    return crystal_error_set(err, ENAMETOOLONG, "job directory %s: path too long",
                             dir->path);
}

int crystal_jobdir_mkdir(const struct crystal_jobdir *dir, const char *name,
                         struct crystal_error *err)
{
    char path[PATH_MAX];
    int code = crystal_jobdir_file(dir, path, sizeof path, err, "%s", name);

    if (!code && mkdir(path, 0700) < 0 && errno != EEXIST)
        code = crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
    return code;
}
