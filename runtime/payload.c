/* Payload files: room is reserved when an operation is issued and filled when its input
 * is ready, so writes come in any order; what was never filled reads as zeros. See
 * payload.h.
 */
#include "config.h"

#include "runtime/payload.h"

#include "runtime/infile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct crystal_payload_writer {
    int fd;
    _Atomic uint64_t body_bytes; /* reserved so far; relaxed, a counter */
    _Atomic int error;           /* first errno; relaxed, read at close */
    char path[4096];             /* for sentences */
};

int crystal_payload_path(const char *directory, uint64_t lrank, char *out,
                         size_t out_bytes, struct crystal_error *err)
{
    struct stat st;
    int bytes = snprintf(out, out_bytes, "%s/" CRYSTAL_PAYLOAD_SPILL, directory);
    /* a link to nowhere counts: what lies there is missing, not elsewhere */
    int is_spilled = bytes < (int)out_bytes && lstat(out, &st) == 0;

    bytes = snprintf(out, out_bytes, "%s%s/%" PRIu64 ".payload", directory,
                     is_spilled ? "/" CRYSTAL_PAYLOAD_SPILL : "", lrank);
    if (bytes < (int)out_bytes)
        return 0;
    return crystal_error_set(err, ENAMETOOLONG, "%s: path too long", directory);
}

struct crystal_payload_writer *crystal_payload_create(const char *path, uint64_t lrank,
                                                      uint64_t fingerprint,
                                                      struct crystal_error *err)
{
    struct crystal_payload_writer *w;
    struct crystal_filehead head;

    if (strlen(path) >= sizeof w->path) {
        (void)crystal_error_set(err, ENAMETOOLONG, "%s: path too long", path);
        return NULL;
    }
    w = calloc(1, sizeof *w);
    if (!w) {
        (void)crystal_error_set(err, ENOMEM, "%s: out of memory", path);
        return NULL;
    }
    memcpy(w->path, path, strlen(path) + 1);
    (void)unlink(path); /* readers of an old file keep it; open reports what matters */
    w->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (w->fd < 0) {
        (void)crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
        free(w);
        return NULL;
    }
    crystal_filehead_init(&head, CRYSTAL_PAYLOAD_MAGIC, CRYSTAL_PAYLOAD_VERSION, 0,
                          fingerprint, lrank);
    if (pwrite(w->fd, &head, sizeof head, 0) != (ssize_t)sizeof head) {
        int code = errno ? errno : EIO;

        (void)crystal_error_set(err, code, "%s: %s", path, strerror(code));
        (void)close(w->fd); /* the write has failed already */
        free(w);
        return NULL;
    }
    return w;
}

uint64_t crystal_payload_reserve(struct crystal_payload_writer *w, uint64_t count)
{
    return atomic_fetch_add_explicit(&w->body_bytes, count, memory_order_relaxed);
}

int crystal_payload_write(struct crystal_payload_writer *w, uint64_t offset,
                          const void *bytes, uint64_t count, struct crystal_error *err)
{
    const char *next = bytes;
    uint64_t at = sizeof(struct crystal_filehead) + offset;

    while (count) {
        ssize_t done = pwrite(w->fd, next, count, (off_t)at);
        int code;

        if (done > 0) {
            next += done;
            at += (uint64_t)done;
            count -= (uint64_t)done;
            continue;
        }
        if (done < 0 && errno == EINTR)
            continue;
        code = done < 0 ? errno : EIO;
        atomic_store_explicit(&w->error, code, memory_order_relaxed);
        return crystal_error_set(err, code, "%s: %s", w->path, strerror(code));
    }
    return 0;
}

int crystal_payload_close(struct crystal_payload_writer *w, struct crystal_error *err)
{
    uint64_t body_bytes;
    int code;

    if (!w)
        return 0;
    code = atomic_load_explicit(&w->error, memory_order_relaxed);
    body_bytes = atomic_load_explicit(&w->body_bytes, memory_order_relaxed);
    /* room at the end that was never filled is there, too */
    if (ftruncate(w->fd, (off_t)(sizeof(struct crystal_filehead) + body_bytes)) < 0 &&
        !code)
        code = errno;
    if (close(w->fd) < 0 && !code)
        code = errno;
    if (code)
        (void)crystal_error_set(err, code, "%s: %s", w->path, strerror(code));
    free(w);
    return -code;
}

int crystal_payload_seal(const char *path, struct crystal_error *err)
{
    struct crystal_filehead head;
    uint64_t bytes;
    int code, fd = crystal_infile_update(path, &bytes, err);

    if (fd < 0)
        return fd;
    memset(&head, 0, sizeof head);
    if (pread(fd, &head, sizeof head, 0) < 0) {
        code = crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
        goto out;
    }
    code = crystal_filehead_check(&head, CRYSTAL_PAYLOAD_MAGIC, CRYSTAL_PAYLOAD_VERSION,
                                  bytes, path, err);
    if (code || head.file_bytes)
        goto out;
    head.file_bytes = bytes;
    code = crystal_file_hash(fd, sizeof head, bytes, path, &head.body_hash, err);
    if (code)
        goto out;
    if (pwrite(fd, &head, sizeof head, 0) != (ssize_t)sizeof head || fsync(fd) < 0)
        code = crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
out:
    (void)close(fd); /* synced above, or failed already */
    return code;
}
