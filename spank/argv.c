/* A growing argument vector. */
#include "config.h"

#include "spank/argv.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void crystal_argv_fini(struct crystal_argv *argv)
{
    for (int i = 0; i < argv->count; i++)
        free(argv->v[i]);
    free(argv->v);
    memset(argv, 0, sizeof *argv);
}

/* Takes text; room for it and the final NULL. */
static void push(struct crystal_argv *argv, char *text)
{
    if (!text || argv->failed) {
        argv->failed = true;
        free(text);
        return;
    }
    if (argv->count + 2 > argv->capacity) {
        int capacity = argv->capacity ? argv->capacity * 2 : 32;
        char **v = NULL;

        if (argv->capacity < INT_MAX / 4)
            v = realloc(argv->v, (size_t)capacity * sizeof *v);
        if (!v) {
            argv->failed = true;
            free(text);
            return;
        }
        argv->v = v;
        argv->capacity = capacity;
    }
    argv->v[argv->count++] = text;
    argv->v[argv->count] = NULL;
}

void crystal_argv_add(struct crystal_argv *argv, const char *format, ...)
{
    va_list ap;
    char *text = NULL;

    va_start(ap, format);
    if (vasprintf(&text, format, ap) < 0)
        text = NULL;
    va_end(ap);
    push(argv, text);
}

void crystal_argv_add_range(struct crystal_argv *argv, const struct crystal_argv *from,
                            int first, int end)
{
    for (int i = first; i < end && i < from->count; i++)
        push(argv, strdup(from->v[i]));
}

bool crystal_argv_is_ok(const struct crystal_argv *argv)
{
    return !argv->failed && argv->count > 0;
}

int crystal_argv_read(struct crystal_argv *argv, const char *path)
{
    FILE *file = fopen(path, "re");
    char *text = NULL;
    size_t bytes = 0;
    int rc;

    if (!file)
        return -errno;
    while (getdelim(&text, &bytes, 0, file) > 0)
        push(argv, strdup(text));
    rc = ferror(file) ? -EIO : argv->failed ? -ENOMEM : 0;
    free(text);
    fclose(file);
    return rc;
}
