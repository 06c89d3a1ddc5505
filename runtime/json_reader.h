/* JSON as a stream of tokens over bytes in memory: no tree, no allocation. For traces
 * of other tools, which may be gigabytes. Strings are slices of the input, escapes as
 * they stand. Nesting up to 64; deeper, or anything that is no JSON, is an error, after
 * which only CRYSTAL_JSON_ERROR comes.
 */
#ifndef CRYSTAL_JSON_READER_H
#define CRYSTAL_JSON_READER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum crystal_json_kind {
    CRYSTAL_JSON_ERROR,
    CRYSTAL_JSON_END, /* of the input */
    CRYSTAL_JSON_OBJECT,
    CRYSTAL_JSON_OBJECT_END,
    CRYSTAL_JSON_ARRAY,
    CRYSTAL_JSON_ARRAY_END,
    CRYSTAL_JSON_KEY,
    CRYSTAL_JSON_STRING,
    CRYSTAL_JSON_NUMBER, /* also NaN and Infinity, which profilers write */
    CRYSTAL_JSON_WORD    /* true, false, null */
};

struct crystal_json_token {
    enum crystal_json_kind kind;
    const char *text; /* of a key, string (without quotes), number or word */
    size_t bytes;
};

struct crystal_json {
    const char *at, *begin, *end;
    uint64_t is_object; /* bit by depth */
    uint32_t depth;
    int expects_key, expects_comma, is_over;
};

void crystal_json_init(struct crystal_json *j, const char *text, size_t bytes);
struct crystal_json_token crystal_json_next(struct crystal_json *j);
/* Skips what belongs to the token: the rest of an object or array that it began. 0, or
 * -1 after an error. */
int crystal_json_skip(struct crystal_json *j, struct crystal_json_token token);

/* Is the slice this text? Inline, so that the length of a constant is one. */
static inline int crystal_json_is(struct crystal_json_token token, const char *text)
{
    return token.bytes == strlen(text) && memcmp(token.text, text, token.bytes) == 0;
}
/* The number in a NUMBER, or in a STRING that holds one; fallback where there is none.
 */
double crystal_json_number(struct crystal_json_token token, double fallback);

#endif
