/* YAML to flat keys through libyaml's event parser. See yaml_map.h for the subset. */
#include "config.h"

#include "runtime/yaml_map.h"

#include "runtime/infile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#define DEPTH_MAX     8
#define KEY_BYTES_MAX 512

struct reader {
    const char *name;
    yaml_parser_t parser;
    struct crystal_yaml_map map;
    size_t item_capacity;
    size_t keys[CRYSTAL_YAML_KEYS_MAX]; /* items that are no elements of lists */
    size_t key_count;
    struct {
        int is_sequence;
        char *key;         /* the key that waits for its value, or NULL */
        size_t prefix_len; /* of reader.prefix at this depth */
        size_t items;      /* of the map when this depth began */
    } stack[DEPTH_MAX];
    int depth;
    char prefix[KEY_BYTES_MAX];
};

static int place_error(struct reader *r, yaml_mark_t mark, struct crystal_error *err,
                       const char *what)
{
    return crystal_error_set(err, EINVAL, "%s:%zu:%zu: %s", r->name, mark.line + 1,
                             mark.column + 1, what);
}

static int has_key(const struct reader *r, const char *key)
{
    for (size_t i = 0; i < r->key_count; i++)
        if (strcmp(r->map.items[r->keys[i]].key, key) == 0)
            return 1;
    return 0;
}

static int add_item(struct reader *r, const char *key, const char *value,
                    yaml_mark_t mark, struct crystal_error *err)
{
    struct crystal_yaml_item *item;
    size_t key_len = strlen(key);
    int is_key = key_len < 2 || strcmp(key + key_len - 2, "[]") != 0;

    if (is_key && has_key(r, key)) {
        char text[KEY_BYTES_MAX + 32];

        (void)snprintf(text, sizeof text, "key '%s' is given twice", key);
        return place_error(r, mark, err, text);
    }
    if (is_key && r->key_count == CRYSTAL_YAML_KEYS_MAX) {
        char text[64];

        (void)snprintf(text, sizeof text, "more than %u keys, no file has so many",
                       CRYSTAL_YAML_KEYS_MAX);
        return place_error(r, mark, err, text);
    }
    if (r->map.item_count == r->item_capacity) {
        size_t capacity = r->item_capacity ? 2 * r->item_capacity : 32;
        struct crystal_yaml_item *items =
            realloc(r->map.items, capacity * sizeof *items);

        if (!items)
            return crystal_error_set(err, ENOMEM, "%s: out of memory", r->name);
        r->map.items = items;
        r->item_capacity = capacity;
    }
    item = &r->map.items[r->map.item_count];
    item->key = strdup(key);
    item->value = strdup(value);
    item->line = (uint32_t)mark.line + 1;
    item->column = (uint32_t)mark.column + 1;
    if (!item->key || !item->value) {
        free(item->key);
        free(item->value);
        return crystal_error_set(err, ENOMEM, "%s: out of memory", r->name);
    }
    if (is_key)
        r->keys[r->key_count++] = r->map.item_count;
    r->map.item_count++;
    return 0;
}

/* The full key of a value at the present place into out. */
static int full_key(struct reader *r, char *out, yaml_mark_t mark,
                    struct crystal_error *err)
{
    const char *last = "";
    int used;

    if (!r->stack[r->depth - 1].is_sequence)
        last = r->stack[r->depth - 1].key;
    used = snprintf(out, KEY_BYTES_MAX, "%s%s", r->prefix, last);
    if (used < 0 || used >= KEY_BYTES_MAX)
        return place_error(r, mark, err, "key too long");
    return 0;
}

static int push(struct reader *r, int is_sequence, yaml_mark_t mark,
                struct crystal_error *err)
{
    char key[KEY_BYTES_MAX];
    int used;

    if (r->depth == DEPTH_MAX)
        return place_error(r, mark, err, "nested too deeply");
    if (r->depth == 0) {
        if (is_sequence)
            return place_error(r, mark, err, "a mapping is expected, not a list");
        r->prefix[0] = 0;
    } else {
        if (r->stack[r->depth - 1].is_sequence)
            return place_error(r, mark, err, "a list may only hold plain values");
        if (!r->stack[r->depth - 1].key)
            return place_error(r, mark, err, "a key must be plain text");
        if (full_key(r, key, mark, err))
            return -EINVAL;
        used = snprintf(r->prefix, sizeof r->prefix, "%s%s", key,
                        is_sequence ? "[]" : ".");
        if (used < 0 || (size_t)used >= sizeof r->prefix)
            return place_error(r, mark, err, "key too long");
    }
    r->stack[r->depth].is_sequence = is_sequence;
    r->stack[r->depth].key = NULL;
    r->stack[r->depth].prefix_len = strlen(r->prefix);
    r->stack[r->depth].items = r->map.item_count;
    r->depth++;
    return 0;
}

static void pop(struct reader *r)
{
    r->depth--;
    free(r->stack[r->depth].key);
    r->stack[r->depth].key = NULL;
    if (r->depth > 0) {
        r->prefix[r->stack[r->depth - 1].prefix_len] = 0;
        free(r->stack[r->depth - 1].key);
        r->stack[r->depth - 1].key = NULL;
    }
}

/* The end of a mapping or list; one that holds nothing becomes its key without a value.
 */
static int leave(struct reader *r, yaml_mark_t mark, struct crystal_error *err)
{
    const int is_empty = r->stack[r->depth - 1].items == r->map.item_count;
    const size_t suffix = r->stack[r->depth - 1].is_sequence ? 2 : 1;
    char key[KEY_BYTES_MAX];

    snprintf(key, sizeof key, "%s", r->prefix);
    pop(r);
    if (!is_empty || r->depth == 0)
        return 0;
    key[strlen(key) - suffix] = '\0';
    return add_item(r, key, "", mark, err);
}

static int scalar(struct reader *r, const yaml_event_t *event,
                  struct crystal_error *err)
{
    const char *text = (const char *)event->data.scalar.value;
    char key[KEY_BYTES_MAX];
    int code;

    if (r->depth == 0)
        return event->data.scalar.length == 0
                   ? 0
                   : place_error(r, event->start_mark, err, "a mapping is expected");
    if (strlen(text) != event->data.scalar.length)
        return place_error(r, event->start_mark, err, "a zero byte stands in the text");
    if (!r->stack[r->depth - 1].is_sequence && !r->stack[r->depth - 1].key) {
        r->stack[r->depth - 1].key = strdup(text);
        return r->stack[r->depth - 1].key
                   ? 0
                   : crystal_error_set(err, ENOMEM, "%s: out of memory", r->name);
    }
    code = full_key(r, key, event->start_mark, err);
    if (!code)
        code = add_item(r, key, text, event->start_mark, err);
    if (!r->stack[r->depth - 1].is_sequence) {
        free(r->stack[r->depth - 1].key);
        r->stack[r->depth - 1].key = NULL;
    }
    return code;
}

static int handle(struct reader *r, const yaml_event_t *event, int *done,
                  struct crystal_error *err)
{
    switch (event->type) {
    case YAML_STREAM_END_EVENT:
        *done = 1;
        return 0;
    case YAML_SCALAR_EVENT:
        return scalar(r, event, err);
    case YAML_MAPPING_START_EVENT:
        return push(r, 0, event->start_mark, err);
    case YAML_SEQUENCE_START_EVENT:
        return push(r, 1, event->start_mark, err);
    case YAML_MAPPING_END_EVENT:
    case YAML_SEQUENCE_END_EVENT:
        return leave(r, event->start_mark, err);
    case YAML_ALIAS_EVENT:
        return place_error(r, event->start_mark, err, "aliases are not supported");
    default:
        return 0;
    }
}

/* Where the parser stopped. Of bytes that are no text it tells only how many are before
 * them. */
static yaml_mark_t problem_mark(const yaml_parser_t *parser, const char *text,
                                size_t text_bytes)
{
    yaml_mark_t mark = {0};

    if (parser->error != YAML_READER_ERROR)
        return parser->problem_mark;
    for (size_t i = 0; i < parser->problem_offset && i < text_bytes; i++)
        if (text[i] == '\n') {
            mark.line++;
            mark.column = 0;
        } else if (((unsigned char)text[i] & 0xc0) != 0x80) {
            mark.column++; /* a character begins */
        }
    return mark;
}

int crystal_yaml_parse(const char *name, const char *text, size_t text_bytes,
                       struct crystal_yaml_map *ret, struct crystal_error *err)
{
    struct reader r = {.name = name};
    int done = 0, code = 0;

    if (!yaml_parser_initialize(&r.parser))
        return crystal_error_set(err, ENOMEM, "%s: out of memory", name);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, text_bytes);
    while (!done && !code) {
        yaml_event_t event;

        if (!yaml_parser_parse(&r.parser, &event)) {
            code = place_error(&r, problem_mark(&r.parser, text, text_bytes), err,
                               r.parser.problem ? r.parser.problem : "malformed YAML");
            break;
        }
        code = handle(&r, &event, &done, err);
        yaml_event_delete(&event);
    }
    while (r.depth > 0)
        pop(&r);
    yaml_parser_delete(&r.parser);
    if (code) {
        crystal_yaml_fini(&r.map);
        return code;
    }
    *ret = r.map;
    return 0;
}

int crystal_yaml_read(const char *path, struct crystal_yaml_map *ret,
                      struct crystal_error *err)
{
    size_t bytes;
    char *text;
    int code = crystal_infile_read(path, CRYSTAL_YAML_BYTES_MAX, &text, &bytes, err);

    if (code)
        return code;
    code = crystal_yaml_parse(path, text, bytes, ret, err);
    free(text);
    return code;
}

void crystal_yaml_fini(struct crystal_yaml_map *map)
{
    for (size_t i = 0; i < map->item_count; i++) {
        free(map->items[i].key);
        free(map->items[i].value);
    }
    free(map->items);
    memset(map, 0, sizeof *map);
}

const struct crystal_yaml_item *crystal_yaml_get(const struct crystal_yaml_map *map,
                                                 const char *key)
{
    for (size_t i = 0; i < map->item_count; i++)
        if (strcmp(map->items[i].key, key) == 0)
            return &map->items[i];
    return NULL;
}
