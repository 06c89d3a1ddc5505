/* One line per message on standard error. See log.h for the levels. */
#include "config.h"

#include "runtime/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int crystal_log_level_parse(const char *name, enum crystal_log_level *ret)
{
    static const char *const names[] = {"error", "warning", "info", "debug", "trace"};

    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) {
            *ret = (enum crystal_log_level)i;
            return 0;
        }
    return -EINVAL;
}

enum crystal_log_level crystal_log_level_get(void)
{
    static _Atomic int cached = -1; /* benign race: all threads compute the same */
    int level = atomic_load_explicit(&cached, memory_order_relaxed);

    if (level < 0) {
        const char *name = getenv("CRYSTAL_LOG");
        enum crystal_log_level wanted = CRYSTAL_LOG_INFO;

        if (name)
            (void)crystal_log_level_parse(name, &wanted); /* unknown: info */
        level = (int)wanted;
        atomic_store_explicit(&cached, level, memory_order_relaxed);
    }
    return (enum crystal_log_level)level;
}

void crystal_log(enum crystal_log_level level, const char *component,
                 const char *format, ...)
{
    char line[1024];
    va_list args;
    int used, more;

    if (level > crystal_log_level_get())
        return;
    used = snprintf(line, sizeof line, "crystal: %s: ", component);
    if (used < 0 || (size_t)used >= sizeof line)
        return;
    va_start(args, format);
    more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    if (more < 0)
        return;
    used += more;
    if ((size_t)used > sizeof line - 2)
        used = (int)sizeof line - 2;
    line[used++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)used) < 0)
        return; /* nowhere left to complain */
}
