/* Reading and writing the files of a job directory. See filehead.h for the bytes. */
#include "config.h"

#include "runtime/filehead.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

_Static_assert(sizeof(struct crystal_filehead) == 64, "frozen");

uint64_t crystal_hash(const void *bytes, size_t count)
{
    uint64_t hash = XXH3_64bits(bytes, count);

    return hash ? hash : 1;
}

void crystal_filehead_init(struct crystal_filehead *h, const char *magic,
                           uint32_t version, uint64_t parent_hash, uint64_t fingerprint,
                           uint64_t lrank)
{
    memset(h, 0, sizeof *h);
    memcpy(h->magic, magic, sizeof h->magic);
    h->version = version;
    h->byte_order = CRYSTAL_BYTE_ORDER;
    h->parent_hash = parent_hash;
    h->fingerprint = fingerprint;
    h->lrank = lrank;
}

int crystal_filehead_check(const struct crystal_filehead *h, const char *magic,
                           uint32_t version, uint64_t have_bytes, const char *path,
                           struct crystal_error *err)
{
    if (have_bytes < sizeof *h)
        return crystal_error_set(err, EINVAL,
                                 "%s: only %llu bytes, the header has 64; "
                                 "run the stage that writes it again",
                                 path, (unsigned long long)have_bytes);
    if (memcmp(h->magic, magic, sizeof h->magic) != 0)
        return crystal_error_set(err, EINVAL, "%s: not a %.8s file", path, magic);
    if (h->byte_order != CRYSTAL_BYTE_ORDER)
        return crystal_error_set(err, EINVAL,
                                 "%s: written on a machine of other byte order; "
                                 "run the stage again here",
                                 path);
    if (h->version != version)
        return crystal_error_set(err, EINVAL,
                                 "%s: format version %u, this crystal reads %u; "
                                 "run the stage again",
                                 path, h->version, version);
    if (h->file_bytes && h->file_bytes != have_bytes)
        return crystal_error_set(err, EINVAL,
                                 "%s: %llu bytes, should have %llu; "
                                 "run the stage that writes it again",
                                 path, (unsigned long long)have_bytes,
                                 (unsigned long long)h->file_bytes);
    return 0;
}

static int write_all(int fd, const void *bytes, size_t count)
{
    const char *next = bytes;

    while (count) {
        ssize_t done = write(fd, next, count);

        if (done < 0) {
            if (errno == EINTR)
                continue;
            return -errno;
        }
        next += done;
        count -= (size_t)done;
    }
    return 0;
}

int crystal_file_write(const char *path, struct crystal_filehead *h, const void *body,
                       size_t body_bytes, struct crystal_error *err)
{
    char temporary[4096];
    int fd, code;

    if (snprintf(temporary, sizeof temporary, "%s.tmp", path) >= (int)sizeof temporary)
        return crystal_error_set(err, ENAMETOOLONG, "%s: path too long", path);
    h->file_bytes = sizeof *h + body_bytes;
    h->body_hash = crystal_hash(body, body_bytes);
    fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return crystal_error_set(err, errno, "%s: %s", temporary, strerror(errno));
    code = write_all(fd, h, sizeof *h);
    if (!code)
        code = write_all(fd, body, body_bytes);
    if (!code && fsync(fd) < 0)
        code = -errno;
    if (close(fd) < 0 && !code)
        code = -errno;
    if (!code && rename(temporary, path) < 0)
        code = -errno;
    if (code) {
        (void)unlink(temporary); /* best effort, the error is already known */
        return crystal_error_set(err, -code, "%s: %s", path, strerror(-code));
    }
    return 0;
}

int crystal_file_map(const char *path, const char *magic, uint32_t version,
                     struct crystal_file_view *ret_view, struct crystal_error *err)
{
    struct crystal_file_view view;
    struct stat st;
    void *map;
    int code, fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) < 0) {
        code = crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
        goto err_close;
    }
    if (!S_ISREG(st.st_mode) ||
        (uint64_t)st.st_size < sizeof(struct crystal_filehead)) {
        code = crystal_error_set(err, EINVAL,
                                 "%s: too short to be a %.8s file; "
                                 "run the stage that writes it again",
                                 path, magic);
        goto err_close;
    }
    map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
        code = crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
        goto err_close;
    }
    view.head = map;
    view.body = (const char *)map + sizeof *view.head;
    view.body_bytes = (size_t)st.st_size - sizeof *view.head;
    code = crystal_filehead_check(view.head, magic, version, (uint64_t)st.st_size, path,
                                  err);
    if (!code && !view.head->file_bytes)
        code = crystal_error_set(
            err, EINVAL, "%s: never finished; run the stage that writes it again",
            path);
    if (!code && crystal_hash(view.body, view.body_bytes) != view.head->body_hash)
        code = crystal_error_set(err, EINVAL,
                                 "%s: contents do not match their checksum; "
                                 "run the stage that writes it again",
                                 path);
    if (code) {
        crystal_file_unmap(&view);
        goto err_close;
    }
    (void)close(fd); /* the mapping stays */
    *ret_view = view;
    return 0;

err_close:
    (void)close(fd); /* read-only, nothing to lose */
    return code;
}

void crystal_file_unmap(struct crystal_file_view *view)
{
    if (view && view->head)
        (void)munmap((void *)(uintptr_t)view->head,
                     view->body_bytes + sizeof *view->head);
    if (view)
        memset(view, 0, sizeof *view);
}
