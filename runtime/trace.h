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
 * computation. Frozen: version 2; version 1, which is read, too, has no WORK records.
 */
#ifndef CRYSTAL_TRACE_H
#define CRYSTAL_TRACE_H

#include "runtime/error.h"
#include "runtime/filehead.h"
#include "runtime/nccl_abi.h"
#include "runtime/op.h"

#include <stdint.h>

#define CRYSTAL_TRACE_MAGIC   "CRYTRACE"
#define CRYSTAL_TRACE_VERSION 2

_Static_assert(sizeof(struct crystal_op) == 32, "frozen");
_Static_assert(sizeof(struct crystal_op_ext) == 32, "frozen");

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
