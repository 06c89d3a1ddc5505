/* A YAML file as a flat list of "key = value" with places. Nested mappings become
 * dotted keys ("wire.latency"), the elements of a sequence of scalars repeat "key[]";
 * a mapping or sequence that holds nothing is its key with an empty value.
 * What configuration and layout files need, and no more: anchors, tags, several
 * documents and mappings inside sequences are refused with line and column.
 */
#ifndef CRYSTAL_YAML_MAP_H
#define CRYSTAL_YAML_MAP_H

#include "runtime/error.h"

#include <stddef.h>
#include <stdint.h>

struct crystal_yaml_item {
    char *key;   /* owned */
    char *value; /* owned, without quotes */
    uint32_t line;
    uint32_t column;
};

struct crystal_yaml_map {
    struct crystal_yaml_item *items; /* in file order */
    size_t item_count;
};

#define CRYSTAL_YAML_BYTES_MAX (16U << 20) /* of a file */
#define CRYSTAL_YAML_KEYS_MAX  4096U /* of a file, elements of lists beside them */

/* Reads path. Malformed text, a key given twice, too many keys or too deep nesting is
 * an error "path:line:column: ...". ret is filled on success; caller: fini. */
int crystal_yaml_read(const char *path, struct crystal_yaml_map *ret,
                      struct crystal_error *err);
/* The same from memory; name stands for the path in sentences. */
int crystal_yaml_parse(const char *name, const char *text, size_t text_bytes,
                       struct crystal_yaml_map *ret, struct crystal_error *err);
void crystal_yaml_fini(struct crystal_yaml_map *map);

/* The item with this key, or NULL; borrowed. */
const struct crystal_yaml_item *crystal_yaml_get(const struct crystal_yaml_map *map,
                                                 const char *key);

#endif
