/* Messages of real ranks that an assistant keeps until a virtual rank passes them on.
 * Used by the server's thread only.
 */
#ifndef CRYSTAL_ASSIST_KEPT_H
#define CRYSTAL_ASSIST_KEPT_H

#include "replay/assist_message.h"

#include <stdint.h>

#define ASSIST_KEPT_BUCKETS 1024U

struct assist_kept {
    struct assist_kept *next;
    struct crystal_assist_source source; /* its TAKE's: key, protocol, data */
    uint64_t bytes;
    unsigned char data[]; /* as on the wire */
};

struct assist_kept_table {
    struct assist_kept *buckets[ASSIST_KEPT_BUCKETS];
};

/* NULL: out of memory. The caller frees it, or puts it. */
struct assist_kept *assist_kept_create(const struct crystal_assist_source *source,
                                       uint64_t bytes);
/* The table is the owner from here on. */
void assist_kept_put(struct assist_kept_table *table, struct assist_kept *kept);
/* Taken out of the table: the caller frees it. NULL: there is none. */
struct assist_kept *assist_kept_take(struct assist_kept_table *table,
                                     const struct crystal_assist_key *key);
/* Frees all that are left. */
void assist_kept_fini(struct assist_kept_table *table);

#endif
