/* What the files of the board share. See board.h. */
#ifndef CRYSTAL_BOARD_INTERNAL_H
#define CRYSTAL_BOARD_INTERNAL_H

#include "replay/board.h"

#include <pthread.h>
#include <stdint.h>

#define CRYSTAL_BOARD_ALIGN      64U
#define CRYSTAL_BOARD_LRANKS_MAX (1U << 24)

struct crystal_board {
    unsigned char *base;
    uint64_t bytes;
    uint64_t comms_offset;
    uint32_t comm_capacity;
    int is_creator;
    pthread_mutex_t add_lock; /* whatever takes of the heap */
    char directory[4096];
    char path[4096];
};

static inline uint64_t crystal_board_align(uint64_t value)
{
    return (value + CRYSTAL_BOARD_ALIGN - 1) & ~(uint64_t)(CRYSTAL_BOARD_ALIGN - 1);
}

/* Heap bytes of one communicator. */
uint64_t crystal_board_comm_bytes(uint32_t nranks, uint32_t pairs);
/* Agent, with add_lock held: bytes of the heap are free; -ENOSPC with a sentence that
 * names the communicator. */
int crystal_board_heap_check(struct crystal_board *board, const char *name,
                             uint64_t bytes, struct crystal_error *err);
/* The offset of bytes that stay zero until used; the caller has checked that they are
 * there. */
uint64_t crystal_board_heap_take(struct crystal_board *board, uint64_t bytes);
/* A range of count elements lies inside the board and is aligned for 64-bit words. */
int crystal_board_is_inside(const struct crystal_board *board, uint64_t offset,
                            uint64_t count, uint64_t element_bytes);

#endif
