/* What the test programs over the NCCL API on host memory share: the library's entry
 * points, process groups as torch.distributed makes them, a few small helpers.
 *
 * A program takes RANK and WORLD_SIZE from the environment, loads CRYSTAL_NCCL_LIBRARY
 * and gets unique ids through the store at MASTER_PORT of this host, under PyTorch's
 * keys, or through files, or (one rank) nowhere. Any failure ends it with one sentence
 * on standard error and exit code 1. One thread.
 */
#ifndef CRYSTAL_TEST_NCCL_PROGRAM_H
#define CRYSTAL_TEST_NCCL_PROGRAM_H

#include "runtime/crystal_stream.h"
#include "runtime/nccl_abi.h"

#include <stdint.h>

extern struct nccl_api {
#define NCCL_API(type, name, proto, args) type(*name) proto;
#include "runtime/nccl_api.def"
#undef NCCL_API
    ncclResult_t (*stream_create)(ncclStream_t *);
    ncclResult_t (*stream_synchronize)(ncclStream_t);
    ncclResult_t (*stream_wait_event)(ncclStream_t, crystal_event_t);
    ncclResult_t (*event_create)(crystal_event_t *);
    ncclResult_t (*event_destroy)(crystal_event_t);
    ncclResult_t (*event_record)(crystal_event_t, ncclStream_t);
    ncclResult_t (*event_synchronize)(crystal_event_t);
    ncclResult_t (*event_query)(crystal_event_t);
    void (*hint)(void);
} nccl;

struct group {
    ncclComm_t comm; /* NULL: this rank is no member */
    int size, crank;
};

extern int rank, world_size;

#define OK(call) ok(nccl.call, #call)

void ok(ncclResult_t result, const char *what);
void die(const char *what) __attribute__((noreturn));

/* Reads RANK and WORLD_SIZE, loads the library, connects to the store. id_dir: a
 * directory for files with unique ids instead of the store, or NULL. */
void program_begin(const char *id_dir);

/* The group of ranks first, first + stride, ... (size of them). Every rank calls this
 * for every group in the same order, as with torch.distributed.new_group; it changes
 * *ret only where this rank is a member. */
void make_group(int first, int stride, int size, struct group *ret);

/* Waits for a key of the store, as PyTorch's clients do. */
void wait_for_key(const char *key);

/* Zeroed; the caller frees. */
float *floats(int count);
void sleep_us(double us);
uint64_t now_us(void);

#endif
