/* Room for messages on their way between the ends of this process. Room is reused:
 * fresh memory costs a page fault for every 4 KiB, which for messages of NCCL's size
 * takes longer than to copy them. It stays until the end, as much as was ever on its
 * way at once. Thread-safe.
 */
#ifndef CRYSTAL_NET_ROOM_H
#define CRYSTAL_NET_ROOM_H

#include <stdatomic.h>
#include <stdint.h>

struct crystal_rooms;

/* One piece, aligned to 64 bytes. */
struct crystal_room {
    unsigned char *data;
    uint64_t bytes; /* its size: what was asked for, at most a quarter and 1 KiB more */
    unsigned kind;
    _Atomic unsigned owners;
    struct crystal_rooms *rooms;
    struct crystal_room *next; /* free ones */
};

/* Told of new memory, in the thread that needed it; bytes is a multiple of 2 MiB. */
typedef void (*crystal_room_memory_fn)(void *user, void *memory, uint64_t bytes);

/* NULL: out of memory. told may be NULL. */
struct crystal_rooms *crystal_rooms_create(crystal_room_memory_fn told, void *user);
/* NULL is fine. What was not given back is gone, too. */
void crystal_rooms_destroy(struct crystal_rooms *rooms);

/* NULL: out of memory. */
struct crystal_room *crystal_room_take(struct crystal_rooms *rooms, uint64_t bytes);
/* One more owner: the bytes stay until each has given the room back. */
struct crystal_room *crystal_room_share(struct crystal_room *room);
void crystal_room_give(struct crystal_room *room); /* NULL is fine */

/* At least so many zeros, which nobody writes to; the caller becomes an owner. NULL:
 * out of memory. */
struct crystal_room *crystal_room_zeros(struct crystal_rooms *rooms, uint64_t bytes);

/* Bytes of memory in use, for tests. */
uint64_t crystal_rooms_bytes(struct crystal_rooms *rooms);

#endif
