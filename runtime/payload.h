/* LRANK.payload beside a trace, or in spill_dir: what one live rank contributed to its
 * operations, for those that are kept. File: crystal_filehead (magic "CRYPAYLD"), then
 * the bytes themselves; a trace's PAYLOAD records say which operation owns which of
 * them. Read with crystal_file_map once it is sealed. Frozen: version 1.
 */
#ifndef CRYSTAL_PAYLOAD_H
#define CRYSTAL_PAYLOAD_H

#include "runtime/error.h"
#include "runtime/filehead.h"

#include <stddef.h>
#include <stdint.h>

#define CRYSTAL_PAYLOAD_MAGIC   "CRYPAYLD"
#define CRYSTAL_PAYLOAD_VERSION 1

/* The path of a rank's payload among the traces of directory: in directory/spill, a
 * link that capture makes where crystal.yaml has a spill_dir, else beside its trace.
 * -ENAMETOOLONG. */
int crystal_payload_path(const char *directory, uint64_t lrank, char *out,
                         size_t out_bytes, struct crystal_error *err);
#define CRYSTAL_PAYLOAD_SPILL "spill"

struct crystal_payload_writer;

/* Creates path (mode 0600, an old file is replaced). NULL on failure. */
struct crystal_payload_writer *crystal_payload_create(const char *path, uint64_t lrank,
                                                      uint64_t fingerprint,
                                                      struct crystal_error *err);
/* Takes room for count bytes; returns their offset in the body. Thread-safe. */
uint64_t crystal_payload_reserve(struct crystal_payload_writer *w, uint64_t count);
/* Fills room that was reserved. Thread-safe. The first error is remembered and
 * returned by close. */
int crystal_payload_write(struct crystal_payload_writer *w, uint64_t offset,
                          const void *bytes, uint64_t count, struct crystal_error *err);
/* Closes and frees; the file stays unsealed. NULL is fine. */
int crystal_payload_close(struct crystal_payload_writer *w, struct crystal_error *err);

/* Completes the header. Idempotent. */
int crystal_payload_seal(const char *path, struct crystal_error *err);

#endif
