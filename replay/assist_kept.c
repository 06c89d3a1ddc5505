/* See assist_kept.h. */
#include "config.h"

#include "replay/assist_kept.h"

#include "runtime/filehead.h"

#include <stdlib.h>
#include <string.h>

static struct assist_kept **bucket(struct assist_kept_table *table,
                                   const struct crystal_assist_key *key)
{
    return &table->buckets[crystal_hash(key, sizeof *key) % ASSIST_KEPT_BUCKETS];
}

struct assist_kept *assist_kept_create(const struct crystal_assist_source *source,
                                       uint64_t bytes)
{
    struct assist_kept *kept = malloc(sizeof *kept + bytes);

    if (kept) {
        kept->source = *source;
        kept->bytes = bytes;
    }
    return kept;
}

void assist_kept_put(struct assist_kept_table *table, struct assist_kept *kept)
{
    struct assist_kept **at = bucket(table, &kept->source.key);

    kept->next = *at;
    *at = kept;
}

struct assist_kept *assist_kept_take(struct assist_kept_table *table,
                                     const struct crystal_assist_key *key)
{
    struct assist_kept **at = bucket(table, key), *kept;

    while (*at && memcmp(&(*at)->source.key, key, sizeof *key) != 0)
        at = &(*at)->next;
    kept = *at;
    if (kept)
        *at = kept->next;
    return kept;
}

void assist_kept_fini(struct assist_kept_table *table)
{
    for (unsigned i = 0; i < ASSIST_KEPT_BUCKETS; i++)
        while (table->buckets[i]) {
            struct assist_kept *kept = table->buckets[i];

            table->buckets[i] = kept->next;
            free(kept);
        }
}
