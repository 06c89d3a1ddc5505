/* Shared memory for payload. See net_share.h. Places count on and on; a place modulo
 * the ring's size is where it lies, and the end of the ring is left out where a message
 * does not fit in front of it. */
#include "config.h"

#include "replay/net_share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHARE_PREFIX "crystal-"

struct ring {
    _Atomic uint64_t taken; /* places before this are free again; the receiver writes */
    _Atomic uint64_t opened; /* by the receiver, which then removes the file */
    unsigned char pad[48];
    unsigned char data[CRYSTAL_SHARE_BYTES];
};

struct crystal_share {
    struct ring *ring;
    uint64_t next; /* sender: the next place */
    char path[64]; /* sender; else empty */
};

static int path_make(char *path, size_t bytes, const char *name)
{
    return snprintf(path, bytes, "/dev/shm/%s", name) < (int)bytes ? 0 : -1;
}

static struct crystal_share *share_map(int fd, const char *path,
                                       struct crystal_error *err)
{
    struct crystal_share *share = calloc(1, sizeof *share);
    void *map = share ? mmap(NULL, sizeof(struct ring), PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_POPULATE, fd, 0)
                      : MAP_FAILED;

    if (map == MAP_FAILED) {
        (void)crystal_error_set(err, ENOMEM, "'%s': cannot map it", path);
        free(share);
        return NULL;
    }
    share->ring = map;
    return share;
}

struct crystal_share *crystal_share_create(char ret_name[CRYSTAL_SHARE_NAME],
                                           struct crystal_error *err)
{
    struct crystal_share *share = NULL;
    unsigned char random[7];
    char path[64];
    int fd, code;

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        (void)crystal_error_set(err, EIO, "shared memory: no random numbers");
        return NULL;
    }
    memcpy(ret_name, SHARE_PREFIX, sizeof SHARE_PREFIX);
    for (size_t i = 0; i < sizeof random; i++)
        (void)snprintf(ret_name + sizeof SHARE_PREFIX - 1 + 2 * i, 3, "%02x",
                       random[i]);
    (void)path_make(path, sizeof path, ret_name); /* it fits */
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        (void)crystal_error_set(err, errno, "'%s': %s", path, strerror(errno));
        return NULL;
    }
    code =
        posix_fallocate(fd, 0, sizeof(struct ring)); /* or a touch ends the process */
    if (code)
        (void)crystal_error_set(err, code, "'%s': %s; make /dev/shm larger", path,
                                strerror(code));
    else
        share = share_map(fd, path, err);
    (void)close(fd); /* the mapping stays */
    if (share)
        memcpy(share->path, path, sizeof path);
    else
        (void)unlink(path);
    return share;
}

static int name_is_right(const char name[CRYSTAL_SHARE_NAME])
{
    const size_t prefix = sizeof SHARE_PREFIX - 1;

    return memchr(name, 0, CRYSTAL_SHARE_NAME) &&
           strncmp(name, SHARE_PREFIX, prefix) == 0 &&
           strspn(name + prefix, "0123456789abcdef") == strlen(name + prefix);
}

struct crystal_share *crystal_share_open(const char name[CRYSTAL_SHARE_NAME],
                                         struct crystal_error *err)
{
    struct crystal_share *share;
    struct stat stat;
    char path[64];
    int fd;

    if (!name_is_right(name) || path_make(path, sizeof path, name)) {
        (void)crystal_error_set(err, EPROTO, "a peer's shared memory has no name");
        return NULL;
    }
    fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        (void)crystal_error_set(
            err, errno,
            "'%s': %s; unset CRYSTAL_SHARE where ranks do not share "
            "/dev/shm",
            path, strerror(errno));
        return NULL;
    }
    if (fstat(fd, &stat) < 0 || !S_ISREG(stat.st_mode) || stat.st_uid != geteuid() ||
        stat.st_size != (off_t)sizeof(struct ring)) {
        (void)crystal_error_set(err, EPROTO, "'%s' is no shared memory of ours", path);
        share = NULL;
    } else {
        share = share_map(fd, path, err);
        if (share)
            atomic_store(&share->ring->opened, 1);
        (void)unlink(path); /* both have it; a crash leaves nothing */
    }
    (void)close(fd);
    return share;
}

void crystal_share_destroy(struct crystal_share *share, int is_peer_gone)
{
    if (!share)
        return;
    if (share->path[0] && is_peer_gone && !atomic_load(&share->ring->opened))
        (void)unlink(share->path);
    (void)munmap(share->ring, sizeof *share->ring);
    free(share);
}

unsigned char *crystal_share_place(struct crystal_share *share, uint64_t bytes,
                                   uint64_t *ret_at)
{
    const uint64_t used =
        atomic_load_explicit(&share->ring->taken, memory_order_acquire);
    uint64_t at = share->next, in_ring = at % CRYSTAL_SHARE_BYTES;

    if (in_ring && (in_ring + bytes > CRYSTAL_SHARE_BYTES || used == at))
        at += CRYSTAL_SHARE_BYTES - in_ring; /* an empty one: what is in the cache */
    if (used > share->next ||
        (used != share->next && at + bytes - used > CRYSTAL_SHARE_BYTES))
        return NULL;
    share->next = at + bytes;
    *ret_at = at;
    return share->ring->data + at % CRYSTAL_SHARE_BYTES;
}

const unsigned char *crystal_share_at(const struct crystal_share *share, uint64_t at,
                                      uint64_t bytes)
{
    const uint64_t in_ring = at % CRYSTAL_SHARE_BYTES;

    return bytes <= CRYSTAL_SHARE_BYTES - in_ring ? share->ring->data + in_ring : NULL;
}

void crystal_share_taken(struct crystal_share *share, uint64_t at, uint64_t bytes)
{
    atomic_store_explicit(&share->ring->taken, at + bytes, memory_order_release);
}
