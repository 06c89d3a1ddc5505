/* Characters of UTF-8 text (RFC 3629): no surrogates, no longer form than needed,
 * nothing beyond U+10FFFF. Pure, thread-safe.
 */
#ifndef CRYSTAL_UTF8_H
#define CRYSTAL_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the character that text begins with, 1 to 4, and the character; 0 where it
 * begins with none, at its end also. Nothing behind the zero byte is read. */
size_t crystal_utf8_next(const char *text, uint32_t *ret_character);

/* All of it is UTF-8. */
bool crystal_utf8_is_text(const char *text);

/* The whole characters of text that fit into out, which is always ended; each byte that
 * is of none becomes '?'. out_bytes is at least 1. */
void crystal_utf8_copy(char *out, size_t out_bytes, const char *text);

#endif
