/* Shared memory of a connection. See net_share.h. Places count on and on; a place
 * modulo the ring's size is where it lies, and the end of the ring is left out where a
 * piece does not fit in front of it. */
#include "config.h"

#include "replay/net_share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHARE_PREFIX "crystal-"

#define SLOTS 64U

struct slot {
    _Atomic uint64_t filled; /* number of the message or piece + 1, written last */
    struct crystal_share_message message;
    uint64_t zero[2];
};
_Static_assert(sizeof(struct slot) == 64, "drawn in net_share.h");

struct answer {
    _Atomic uint64_t filled;
    _Atomic uint64_t ns;
};

struct ring {
    _Atomic uint64_t taken; /* the receiver's */
    _Atomic uint64_t opened;
    _Atomic uint64_t received;
    _Atomic uint64_t receiver_sleeps; /* it sets it, whoever wakes it clears it */
    unsigned char pad[32];
    _Atomic uint64_t sender_sleeps;
    unsigned char sender_pad[56];
    struct slot slots[SLOTS];
    struct answer answers[SLOTS];
    unsigned char to_page[8192 - 128 - SLOTS * 80];
    unsigned char data[CRYSTAL_SHARE_BYTES];
};
_Static_assert(offsetof(struct ring, slots) == 128 &&
                   offsetof(struct ring, answers) == 4224 &&
                   offsetof(struct ring, data) == 8192,
               "drawn in net_share.h");

struct crystal_share {
    struct ring *ring;
    uint64_t next;     /* sender: the next place */
    uint64_t number;   /* of the next message or piece to send or to receive */
    uint64_t received; /* sender: what the receiver was last seen to have */
    uint64_t answer;   /* number of the next answer */
    char path[64];     /* sender; else empty */
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

unsigned char *crystal_share_payload(struct crystal_share *share)
{
    return share->ring->data;
}

int crystal_share_send(struct crystal_share *share,
                       const struct crystal_share_message *message)
{
    struct slot *slot = &share->ring->slots[share->number % SLOTS];

    if (share->number - share->received >= SLOTS)
        share->received =
            atomic_load_explicit(&share->ring->received, memory_order_acquire);
    if (share->number - share->received >= SLOTS)
        return 0;
    slot->message = *message;
    atomic_store_explicit(&slot->filled, ++share->number, memory_order_release);
    return 1;
}

int crystal_share_receive(struct crystal_share *share,
                          struct crystal_share_message *ret)
{
    struct slot *slot = &share->ring->slots[share->number % SLOTS];

    if (atomic_load_explicit(&slot->filled, memory_order_acquire) != share->number + 1)
        return 0;
    *ret = slot->message;
    atomic_store_explicit(&share->ring->received, ++share->number,
                          memory_order_release);
    return 1;
}

unsigned char *crystal_share_at(const struct crystal_share *share, uint64_t at,
                                uint64_t bytes)
{
    const uint64_t in_ring = at % CRYSTAL_SHARE_BYTES;

    return bytes <= CRYSTAL_SHARE_BYTES - in_ring ? share->ring->data + in_ring : NULL;
}

void crystal_share_taken(struct crystal_share *share, uint64_t at, uint64_t bytes)
{
    atomic_store_explicit(&share->ring->taken, at + bytes, memory_order_release);
}

void crystal_share_answer(struct crystal_share *share, uint64_t ns)
{
    struct answer *answer = &share->ring->answers[share->answer % SLOTS];

    atomic_store_explicit(&answer->ns, ns, memory_order_relaxed);
    atomic_store_explicit(&answer->filled, ++share->answer, memory_order_release);
}

int crystal_share_answered(struct crystal_share *share, uint64_t *ret_ns)
{
    struct answer *answer = &share->ring->answers[share->answer % SLOTS];

    if (atomic_load_explicit(&answer->filled, memory_order_acquire) !=
        share->answer + 1)
        return 0;
    *ret_ns = atomic_load_explicit(&answer->ns, memory_order_relaxed);
    share->answer++;
    return 1;
}

static _Atomic uint64_t *own_sleeps(const struct crystal_share *share)
{
    return share->path[0] ? &share->ring->sender_sleeps : &share->ring->receiver_sleeps;
}

int crystal_share_sleeps(const struct crystal_share *share)
{
    return atomic_load_explicit(own_sleeps(share), memory_order_relaxed) != 0;
}

void crystal_share_sleep(struct crystal_share *share)
{
    atomic_store(own_sleeps(share), 1);
    atomic_thread_fence(memory_order_seq_cst); /* before it looks once more */
}

int crystal_share_wakes(struct crystal_share *share)
{
    _Atomic uint64_t *sleeps =
        share->path[0] ? &share->ring->receiver_sleeps : &share->ring->sender_sleeps;

    atomic_thread_fence(memory_order_seq_cst); /* behind what it has done */
    return atomic_load_explicit(sleeps, memory_order_relaxed) &&
           atomic_exchange(sleeps, 0);
}
