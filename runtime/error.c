/* Errors as values: code plus sentence. See error.h. */
#include "config.h"

#include "runtime/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int crystal_error_set(struct crystal_error *err, int code, const char *format, ...)
{
    if (err) {
        va_list args;

        err->code = code;
        va_start(args, format);
        (void)vsnprintf(err->text, sizeof err->text, format, args); /* cut is fine */
        va_end(args);
    }
    return -code;
}

void crystal_error_prefix(struct crystal_error *err, const char *format, ...)
{
    char prefixed[CRYSTAL_ERROR_TEXT_BYTES];
    va_list args;
    int used;

    if (!err || !err->code)
        return;
    va_start(args, format);
    used = vsnprintf(prefixed, sizeof prefixed, format, args);
    va_end(args);
    if (used < 0 || (size_t)used >= sizeof prefixed)
        return;
    (void)snprintf(prefixed + used, sizeof prefixed - (size_t)used, ": %s", err->text);
    memcpy(err->text, prefixed, sizeof err->text);
}

const char *crystal_error_text(const struct crystal_error *err)
{
    return err && err->code ? err->text : "unknown error";
}
