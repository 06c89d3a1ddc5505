/* ranks/LRANK.trace: what one live rank did, operation by operation.
 *
 * File: crystal_filehead (magic "CRYTRACE", version CRYSTAL_TRACE_VERSION), then
 * blocks: 0  4 "TBLK" as bytes      4  4 bytes of records in this block (multiple of
 * 32) 8  8 XXH3-64 of them     16    the records A rank killed at any moment leaves
 * whole blocks; a reader stops at the first bad one and says how many records it has.
 * The agent seals: it cuts the file behind the last good block and sets file_bytes and
 * body_hash in the header.
 *
 * A record is 32 bytes. Times are CLOCK_MONOTONIC ns minus the trace's start, which is
 * record 0 (CRYSTAL_OP_START: value = absolute ns). "Host" is the thread that issues;
 * records stand in the order of issue. The time between one record's end (return time
 * where the call blocks, else its t_ns) and the next record's t_ns is the program's own
 * computation. Frozen: version 1.
 */
#ifndef CRYSTAL_TRACE_H
#define CRYSTAL_TRACE_H

#include "runtime/error.h"
#include "runtime/filehead.h"
#include "runtime/nccl_abi.h"

#include <stdint.h>

#define CRYSTAL_TRACE_MAGIC   "CRYTRACE"
#define CRYSTAL_TRACE_VERSION 1

enum crystal_op_kind {
    CRYSTAL_OP_START = 1,  /* value = CLOCK_MONOTONIC ns, aux = pid */
    CRYSTAL_OP_COMM = 2,   /* a communicator: comm = its index from now on,
                              peer = own crank, value = nranks; EXT records follow:
                              its name (store key of its id), zero-filled */
    CRYSTAL_OP_COLL = 3,   /* func, dtype, comm, stream, aux = redop, peer = root,
                              value = count in elements as the API got it */
    CRYSTAL_OP_SEND = 4,   /* func, dtype, comm, stream, peer = crank, value = count */
    CRYSTAL_OP_RECV = 5,   /* the same */
    CRYSTAL_OP_GROUP = 6,  /* aux = 1 start, 0 end of the outermost ncclGroup */
    CRYSTAL_OP_RECORD = 7, /* event record: peer = event index, stream */
    CRYSTAL_OP_WAIT = 8,   /* host waited for event peer; value = time of return */
    CRYSTAL_OP_SWAIT = 9,  /* stream waits for event peer */
    CRYSTAL_OP_SYNC = 10,  /* host waited for stream; value = time of return */
    CRYSTAL_OP_HINT = 11,  /* crystal_iteration_hint; value = how many so far */
    CRYSTAL_OP_PAYLOAD = 12, /* what this rank contributed to the communication record
                               before it: value = offset in ranks/LRANK.payload body,
                               peer = bytes */
    CRYSTAL_OP_DONE = 13,  /* communication finished: peer = record index, value = when
                              its work began (ns), t_ns = when it ended */
    CRYSTAL_OP_FREE = 14,  /* communicator comm is gone */
    CRYSTAL_OP_ALLOC = 15, /* value = bytes; aux = 1 for free */
    CRYSTAL_OP_LOST = 16,  /* value = records lost before this one */
    CRYSTAL_OP_END = 17,   /* aux = 0 program ended, 1 stopped at its iterations;
                              value = peak resident memory in bytes */
    CRYSTAL_OP_EXT = 127   /* 31 bytes of data that belong to the record before */
};

struct crystal_op {
    uint8_t kind;    /* enum crystal_op_kind */
    uint8_t func;    /* enum crystal_func */
    uint8_t dtype;   /* ncclDataType_t */
    uint8_t flags;   /* CRYSTAL_OP_FLAG_* */
    uint16_t stream; /* index in order of first use, 0 = null stream */
    uint16_t comm;   /* index of the COMM record, in order */
    uint32_t aux;    /* by kind */
    uint32_t peer;   /* by kind */
    uint64_t value;  /* by kind */
    uint64_t t_ns;   /* time of issue, see above */
};
_Static_assert(sizeof(struct crystal_op) == 32, "frozen");

struct crystal_op_ext {
    uint8_t kind;
    uint8_t data[31];
};
_Static_assert(sizeof(struct crystal_op_ext) == 32, "frozen");

#define CRYSTAL_OP_FLAG_IN_PLACE 0x01
#define CRYSTAL_OP_FLAG_BARRIER  0x02 /* contents do not matter (hint of the caller) */

/* --- writing: one thread at a time per writer; no allocation in append --- */

struct crystal_trace_writer;

/* Creates path (mode 0600) with header and START record. Returns NULL on failure. */
struct crystal_trace_writer *crystal_trace_create(const char *path, uint64_t lrank,
                                                  uint64_t fingerprint,
                                                  struct crystal_error *err);
/* CLOCK_MONOTONIC ns to which the t_ns of records is relative. */
uint64_t crystal_trace_start_ns(const struct crystal_trace_writer *w);
/* Appends; full buffers, and buffers whose records span 200 ms, go to the file as one
 * block. Cost: tens of ns. A failed write is remembered and returned by flush and
 * close; records after it are counted lost. */
void crystal_trace_append(struct crystal_trace_writer *w, const struct crystal_op *op);
int crystal_trace_flush(struct crystal_trace_writer *w, struct crystal_error *err);
/* Number of records appended so far (= index of the next one). */
uint64_t crystal_trace_count(const struct crystal_trace_writer *w);
/* Flushes and frees; the file stays unsealed (the agent seals it). NULL is fine. */
int crystal_trace_close(struct crystal_trace_writer *w, struct crystal_error *err);

/* --- sealing and reading --- */

/* Cuts behind the last good block and completes the header. Idempotent. */
int crystal_trace_seal(const char *path, struct crystal_error *err);

struct crystal_trace {
    struct crystal_filehead head;
    struct crystal_op *ops; /* owned */
    uint64_t op_count;
};
/* Reads a sealed or unsealed trace; every block is checked. Unsealed with no good block
 * is an error that names the rank's log. Caller: crystal_trace_fini. */
int crystal_trace_read(const char *path, struct crystal_trace *ret_trace,
                       struct crystal_error *err);
void crystal_trace_fini(struct crystal_trace *trace);

#endif
