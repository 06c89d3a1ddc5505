/* See json_reader.h. */
#include "config.h"

#include "runtime/json_reader.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 64U

void crystal_json_init(struct crystal_json *j, const char *text, size_t bytes)
{
    memset(j, 0, sizeof *j);
    j->at = j->begin = text;
    j->end = text + bytes;
}

static struct crystal_json_token error(struct crystal_json *j)
{
    j->is_over = 1;
    j->at = j->end;
    return (struct crystal_json_token){CRYSTAL_JSON_ERROR, NULL, 0};
}

enum { SPACE = 1, ENDS_PLAIN = 2 };

static const unsigned char classes[256] = {
    [' '] = SPACE | ENDS_PLAIN,  ['\n'] = SPACE | ENDS_PLAIN,
    ['\t'] = SPACE | ENDS_PLAIN, ['\r'] = SPACE | ENDS_PLAIN,
    [','] = ENDS_PLAIN,          [':'] = ENDS_PLAIN,
    ['['] = ENDS_PLAIN,          [']'] = ENDS_PLAIN,
    ['{'] = ENDS_PLAIN,          ['}'] = ENDS_PLAIN,
    ['"'] = ENDS_PLAIN,
};

static int is_space(char c)
{
    return classes[(unsigned char)c] & SPACE;
}

static void skip_space(struct crystal_json *j)
{
    while (j->at < j->end && is_space(*j->at))
        j->at++;
}

/* Is the innermost container an object? */
static int in_object(const struct crystal_json *j)
{
    return j->depth && (j->is_object >> (j->depth - 1) & 1);
}

static struct crystal_json_token begin(struct crystal_json *j, int is_object)
{
    if (j->depth == DEPTH_MAX)
        return error(j);
    j->is_object &= ~(UINT64_C(1) << j->depth);
    j->is_object |= (uint64_t)is_object << j->depth;
    j->depth++;
    j->at++;
    j->expects_key = is_object;
    j->expects_comma = 0;
    return (struct crystal_json_token){
        is_object ? CRYSTAL_JSON_OBJECT : CRYSTAL_JSON_ARRAY, NULL, 0};
}

static struct crystal_json_token finish(struct crystal_json *j, int is_object)
{
    if (!j->depth || in_object(j) != is_object)
        return error(j);
    j->depth--;
    j->at++;
    j->expects_comma = 1;
    j->expects_key = in_object(j);
    j->is_over = !j->depth;
    return (struct crystal_json_token){
        is_object ? CRYSTAL_JSON_OBJECT_END : CRYSTAL_JSON_ARRAY_END, NULL, 0};
}

static struct crystal_json_token string(struct crystal_json *j)
{
    struct crystal_json_token t = {CRYSTAL_JSON_STRING, j->at + 1, 0};
    const char *from = j->at + 1, *quote;

    do {
        const char *back;

        quote = from < j->end ? memchr(from, '"', (size_t)(j->end - from)) : NULL;
        if (!quote)
            return error(j);
        for (back = quote; back > t.text && back[-1] == '\\';)
            back--;
        from = quote + 1;
        if ((quote - back) % 2 == 0)
            break;
    } while (1);
    t.bytes = (size_t)(quote - t.text);
    j->at = quote + 1;
    if (!j->expects_key)
        return t;
    skip_space(j);
    if (j->at == j->end || *j->at != ':')
        return error(j);
    j->at++;
    t.kind = CRYSTAL_JSON_KEY;
    return t;
}

static int ends_plain(char c)
{
    return classes[(unsigned char)c] & ENDS_PLAIN;
}

/* Numbers and words end where JSON goes on. */
static struct crystal_json_token plain(struct crystal_json *j)
{
    struct crystal_json_token t = {CRYSTAL_JSON_WORD, j->at, 0};

    while (j->at < j->end && !ends_plain(*j->at))
        j->at++;
    t.bytes = (size_t)(j->at - t.text);
    if (!t.bytes)
        return error(j);
    if (*t.text == '-' || (*t.text >= '0' && *t.text <= '9') || *t.text == 'N' ||
        *t.text == 'I')
        t.kind = CRYSTAL_JSON_NUMBER;
    else if (!crystal_json_is(t, "true") && !crystal_json_is(t, "false") &&
             !crystal_json_is(t, "null"))
        return error(j);
    return t;
}

struct crystal_json_token crystal_json_next(struct crystal_json *j)
{
    struct crystal_json_token t;
    char c;

    skip_space(j);
    if (j->at == j->end)
        return j->is_over && !j->depth
                   ? (struct crystal_json_token){CRYSTAL_JSON_END, NULL, 0}
                   : error(j);
    if (j->is_over)
        return error(j);
    if (j->expects_comma && *j->at == ',') {
        j->at++;
        j->expects_comma = 0;
        skip_space(j);
        if (j->at == j->end || *j->at == ']' || *j->at == '}')
            return error(j);
    } else if (j->expects_comma && *j->at != ']' && *j->at != '}') {
        return error(j);
    }
    c = *j->at;
    if (c == '}' || c == ']')
        return finish(j, c == '}');
    if (j->expects_key && c != '"')
        return error(j);
    if (c == '{' || c == '[')
        return begin(j, c == '{');
    t = c == '"' ? string(j) : plain(j);
    if (t.kind == CRYSTAL_JSON_KEY) {
        j->expects_key = 0;
    } else if (t.kind != CRYSTAL_JSON_ERROR) {
        j->expects_comma = 1;
        j->expects_key = in_object(j);
        j->is_over = !j->depth;
    }
    return t;
}

int crystal_json_skip(struct crystal_json *j, struct crystal_json_token token)
{
    uint32_t depth = j->depth;

    if (token.kind == CRYSTAL_JSON_ERROR)
        return -1;
    if (token.kind != CRYSTAL_JSON_OBJECT && token.kind != CRYSTAL_JSON_ARRAY)
        return 0;
    while (j->depth >= depth)
        if (crystal_json_next(j).kind == CRYSTAL_JSON_ERROR)
            return -1;
    return 0;
}

/* Digits with a point among them, nearly always: as both the digits, at most 15, and
 * the power of ten are exact, so is their quotient but for one rounding, as strtod's.
 */
static int simple(struct crystal_json_token t, double *ret)
{
    static const double powers[] = {1,   1e1, 1e2,  1e3,  1e4,  1e5,  1e6, 1e7,
                                    1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14};
    const char *point = NULL;
    uint64_t digits = 0;

    if (!t.bytes || t.bytes > 15)
        return 0;
    for (size_t i = 0; i < t.bytes; i++) {
        unsigned digit = (unsigned)t.text[i] - '0';

        if (digit < 10)
            digits = digits * 10 + digit;
        else if (t.text[i] == '.' && !point && i)
            point = t.text + i;
        else
            return 0;
    }
    if (point && point + 1 == t.text + t.bytes)
        return 0;
    *ret = (double)digits / powers[point ? t.text + t.bytes - point - 1 : 0];
    return 1;
}

double crystal_json_number(struct crystal_json_token token, double fallback)
{
    char text[64], *end;
    double value = 0;

    if (simple(token, &value))
        return value;
    if ((token.kind != CRYSTAL_JSON_NUMBER && token.kind != CRYSTAL_JSON_STRING) ||
        !token.bytes || token.bytes >= sizeof text)
        return fallback;
    memcpy(text, token.text, token.bytes);
    text[token.bytes] = 0;
    value = strtod(text, &end);
    return *end || !(value >= -1e18 && value <= 1e18) ? fallback : value;
}
