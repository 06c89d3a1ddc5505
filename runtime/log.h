/* Messages to the person at the terminal, always on standard error.
 *
 * Levels: error = we stopped; warning = we go on, ending ", using X" or ", ignoring";
 * info = once per job; debug = per object; trace = per call. Nothing above trace grows
 * with iterations. Libraries return errors and log at debug or below only.
 * CRYSTAL_LOG=error|warning|info|debug|trace sets the level; info is the default.
 */
#ifndef CRYSTAL_LOG_H
#define CRYSTAL_LOG_H

enum crystal_log_level {
    CRYSTAL_LOG_ERROR,
    CRYSTAL_LOG_WARNING,
    CRYSTAL_LOG_INFO,
    CRYSTAL_LOG_DEBUG,
    CRYSTAL_LOG_TRACE
};

/* Prints "crystal: component: sentence\n" with one write, so that lines of several
 * processes do not mix. Thread-safe; not for signal handlers. */
void crystal_log(enum crystal_log_level level, const char *component,
                 const char *format, ...) __attribute__((format(printf, 3, 4)));

/* "info" -> the level; 0 or -EINVAL. */
int crystal_log_level_parse(const char *name, enum crystal_log_level *ret);
/* The level that is in force; read once from CRYSTAL_LOG. */
enum crystal_log_level crystal_log_level_get(void);

#endif
