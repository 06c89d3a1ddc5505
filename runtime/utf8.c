/* See utf8.h. */
#include "config.h"

#include "runtime/utf8.h"

#include <string.h>

size_t crystal_utf8_next(const char *text, uint32_t *ret_character)
{
    static const uint32_t least[] = {0, 1, 0x80, 0x800, 0x10000};
    const unsigned char *c = (const unsigned char *)text;
    size_t bytes = c[0] < 0x80 ? 1 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : 4;
    uint32_t character = bytes == 1 ? c[0] : c[0] & (0x7fU >> bytes);

    if ((c[0] & 0xc0) == 0x80 || c[0] >= 0xf8)
        return 0; /* inside a character, or of none */
    for (size_t i = 1; i < bytes; i++) {
        if ((c[i] & 0xc0) != 0x80)
            return 0; /* the zero byte, too */
        character = character << 6 | (c[i] & 0x3f);
    }
    if (character < least[bytes] || character > 0x10ffff ||
        (character >= 0xd800 && character <= 0xdfff))
        return 0;
    *ret_character = character;
    return bytes;
}

bool crystal_utf8_is_text(const char *text)
{
    uint32_t character;
    size_t bytes;

    while ((bytes = crystal_utf8_next(text, &character)) != 0)
        text += bytes;
    return *text == 0;
}

void crystal_utf8_copy(char *out, size_t out_bytes, const char *text)
{
    size_t used = 0, bytes;

    for (uint32_t character; *text; text += bytes) {
        bytes = crystal_utf8_next(text, &character);
        if (used + (bytes ? bytes : 1) >= out_bytes)
            break;
        if (bytes)
            memcpy(out + used, text, bytes);
        else
            out[used] = '?';
        bytes += !bytes;
        used += bytes;
    }
    out[used] = 0;
}
