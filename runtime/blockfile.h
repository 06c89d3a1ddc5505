/* Files of fixed-size records that are appended while a process runs and that survive
 * its death: traces (runtime/trace.h) and run records (replay/run_record.h).
 *
 *   file:  crystal_filehead (64 bytes), then blocks without gaps
 *   block: offset bytes
 *               0     4 "TBLK"
 *               4     4 bytes of records in this block, a multiple of the record size
 *               8     8 XXH3-64 of them
 *              16       the records
 *
 * A block reaches the file in one write, so a process killed at any moment leaves whole
 * blocks and at most one torn one, behind which nothing is read. Integers are in the
 * writer's byte order.
 */
#ifndef CRYSTAL_BLOCKFILE_H
#define CRYSTAL_BLOCKFILE_H

#include "runtime/error.h"
#include "runtime/filehead.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes of records in a full block; a record size must divide it. */
#define CRYSTAL_BLOCK_RECORD_BYTES 65536U

/* What a file is: its magic (8 characters), version and record size. */
struct crystal_blockfile_kind {
    const char *magic;
    uint32_t version;
    uint32_t record_bytes;
    uint32_t oldest_version; /* that can be read, too; 0: none */
};

struct crystal_block_writer;

/* Creates path (mode 0600, an old file is replaced) with the header alone. kind is
 * borrowed until close. One thread at a time per writer. NULL on failure. */
struct crystal_block_writer *
crystal_block_create(const char *path, const struct crystal_blockfile_kind *kind,
                     uint64_t lrank, uint64_t fingerprint, struct crystal_error *err);
/* Copies one record; a full buffer goes to the file. No allocation. After a failed
 * write records are dropped and counted lost until crystal_block_retry. */
void crystal_block_append(struct crystal_block_writer *w, const void *record);
/* Records that fit before the next write. */
uint32_t crystal_block_room(const struct crystal_block_writer *w);
/* Records given to append so far, lost ones included; and the lost ones. */
uint64_t crystal_block_count(const struct crystal_block_writer *w);
uint64_t crystal_block_lost(const struct crystal_block_writer *w);
/* Writes what is buffered. Returns the first error since create. */
int crystal_block_flush(struct crystal_block_writer *w, struct crystal_error *err);
/* Lets append try again after a failed write; the error stays remembered. */
void crystal_block_retry(struct crystal_block_writer *w);
/* Flushes, closes and frees; the file stays unsealed. NULL is fine. */
int crystal_block_close(struct crystal_block_writer *w, struct crystal_error *err);

/* Cuts path behind its last good block and completes the header. Idempotent. -ENODATA
 * where there is no good block. */
int crystal_block_seal(const char *path, const struct crystal_blockfile_kind *kind,
                       struct crystal_error *err);

/* Reads a sealed file, or an unsealed one up to its last good block (-ENODATA if there
 * is none). *ret_records is malloc'ed; the caller frees it. */
int crystal_block_read(const char *path, const struct crystal_blockfile_kind *kind,
                       struct crystal_filehead *ret_head, void **ret_records,
                       uint64_t *ret_count, struct crystal_error *err);

#endif
