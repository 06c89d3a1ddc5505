/* Room for messages. See net_room.h. Sizes have four steps to every doubling; memory
 * comes in slabs, each cut into pieces of one size. */
#include "config.h"

#include "replay/net_room.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LEAST_SHIFT 10U /* the smallest size is 1 KiB */
#define SLAB_BYTES  (UINT64_C(2) << 20)
#define PER_SLAB    4U /* pieces of small sizes, at least */
#define KINDS       (4U * 32U)

struct slab {
    struct slab *next;
    void *memory;
    struct crystal_room *pieces;
};

struct crystal_rooms {
    crystal_room_memory_fn told;
    void *user;
    pthread_mutex_t lock; /* everything below */
    struct slab *slabs;
    struct crystal_room *free[KINDS];
    uint64_t bytes;
    struct crystal_room *zeros; /* one owner is here; NULL: none yet */
};

/* Which size holds so many bytes: (4 + kind % 4) / 4 of 2^(10 + kind / 4). */
static unsigned kind_of(uint64_t bytes, uint64_t *ret_size)
{
    unsigned shift = LEAST_SHIFT, quarter;

    if (bytes > UINT64_C(1) << LEAST_SHIFT)
        shift = 63U - (unsigned)__builtin_clzll(bytes - 1);
    quarter = bytes > UINT64_C(1) << shift
                  ? (unsigned)(((bytes - 1) >> (shift - 2)) & 3) + 1
                  : 0;
    *ret_size = (4 + (uint64_t)quarter) << (shift - 2);
    return 4 * (shift - LEAST_SHIFT) + quarter;
}

struct crystal_rooms *crystal_rooms_create(crystal_room_memory_fn told, void *user)
{
    struct crystal_rooms *rooms = calloc(1, sizeof *rooms);

    if (!rooms)
        return NULL;
    (void)pthread_mutex_init(&rooms->lock, NULL); /* cannot fail on Linux */
    rooms->told = told;
    rooms->user = user;
    return rooms;
}

void crystal_rooms_destroy(struct crystal_rooms *rooms)
{
    if (!rooms)
        return;
    while (rooms->slabs) {
        struct slab *slab = rooms->slabs;

        rooms->slabs = slab->next;
        free(slab->memory);
        free(slab->pieces);
        free(slab);
    }
    (void)pthread_mutex_destroy(&rooms->lock);
    free(rooms);
}

uint64_t crystal_rooms_bytes(struct crystal_rooms *rooms)
{
    uint64_t bytes;

    (void)pthread_mutex_lock(&rooms->lock);
    bytes = rooms->bytes;
    (void)pthread_mutex_unlock(&rooms->lock);
    return bytes;
}

/* More pieces of one size; under the lock. */
static int slab_add(struct crystal_rooms *rooms, unsigned kind, uint64_t size)
{
    const uint64_t least = size > SLAB_BYTES ? size : PER_SLAB * size;
    const uint64_t bytes = (least + SLAB_BYTES - 1) / SLAB_BYTES * SLAB_BYTES;
    const uint64_t count = bytes / size;
    struct slab *slab = calloc(1, sizeof *slab);

    if (!slab)
        return -1;
    slab->pieces = calloc(count, sizeof *slab->pieces);
    slab->memory = slab->pieces ? aligned_alloc(SLAB_BYTES, bytes) : NULL;
    if (!slab->memory) {
        free(slab->pieces);
        free(slab);
        return -1;
    }
    (void)madvise(slab->memory, bytes, MADV_HUGEPAGE); /* only faster */
    slab->next = rooms->slabs;
    rooms->slabs = slab;
    rooms->bytes += bytes;
    if (rooms->told)
        rooms->told(rooms->user, slab->memory, bytes);
    for (uint64_t i = count; i-- > 0;) {
        slab->pieces[i].data = (unsigned char *)slab->memory + i * size;
        slab->pieces[i].bytes = size;
        slab->pieces[i].kind = kind;
        slab->pieces[i].rooms = rooms;
        slab->pieces[i].next = rooms->free[kind];
        rooms->free[kind] = &slab->pieces[i];
    }
    return 0;
}

struct crystal_room *crystal_room_take(struct crystal_rooms *rooms, uint64_t bytes)
{
    uint64_t size;
    const unsigned kind = kind_of(bytes, &size);
    struct crystal_room *room = NULL;

    if (kind >= KINDS)
        return NULL;
    (void)pthread_mutex_lock(&rooms->lock);
    if (rooms->free[kind] || slab_add(rooms, kind, size) == 0) {
        room = rooms->free[kind];
        rooms->free[kind] = room->next;
        room->next = NULL;
        atomic_store_explicit(&room->owners, 1, memory_order_relaxed);
    }
    (void)pthread_mutex_unlock(&rooms->lock);
    return room;
}

struct crystal_room *crystal_room_zeros(struct crystal_rooms *rooms, uint64_t bytes)
{
    struct crystal_room *room, *old = NULL;

    (void)pthread_mutex_lock(&rooms->lock);
    room = rooms->zeros && rooms->zeros->bytes >= bytes
               ? crystal_room_share(rooms->zeros)
               : NULL;
    (void)pthread_mutex_unlock(&rooms->lock);
    if (room)
        return room;
    room = crystal_room_take(rooms, bytes);
    if (!room)
        return NULL;
    memset(room->data, 0, room->bytes);
    (void)crystal_room_share(room);
    (void)pthread_mutex_lock(&rooms->lock);
    old = rooms->zeros;
    rooms->zeros = room;
    (void)pthread_mutex_unlock(&rooms->lock);
    crystal_room_give(old);
    return room;
}

struct crystal_room *crystal_room_share(struct crystal_room *room)
{
    (void)atomic_fetch_add(&room->owners, 1);
    return room;
}

void crystal_room_give(struct crystal_room *room)
{
    struct crystal_rooms *rooms;

    if (!room || atomic_fetch_sub(&room->owners, 1) > 1)
        return;
    rooms = room->rooms;
    (void)pthread_mutex_lock(&rooms->lock);
    room->next = rooms->free[room->kind];
    rooms->free[room->kind] = room;
    (void)pthread_mutex_unlock(&rooms->lock);
}
