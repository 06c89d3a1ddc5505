/* The run record of this process (replay/run_record.h): appended from any thread,
 * written to the file by a thread of its own within 200 ms.
 */
#ifndef CRYSTAL_RUN_WRITER_H
#define CRYSTAL_RUN_WRITER_H

#include "replay/run_record.h"
#include "runtime/error.h"

struct crystal_run_writer;

/* Creates directory/LRANK.run; the file lasts as long as the process. NULL on failure.
 * There is no destroy: what is buffered is written at exit. */
struct crystal_run_writer *crystal_run_writer_create(const char *directory,
                                                     uint32_t lrank,
                                                     uint64_t fingerprint,
                                                     struct crystal_error *err);
/* Copies the record. Never blocks on the disk; a full buffer counts a loss. */
void crystal_run_append(struct crystal_run_writer *writer,
                        const struct crystal_run_record *record);
/* Writes what is buffered now. */
int crystal_run_flush(struct crystal_run_writer *writer, struct crystal_error *err);
/* Records that found no room so far. */
uint64_t crystal_run_lost(struct crystal_run_writer *writer);

#endif
