/* See batch_script.h; sbatch(1) describes the lines. */
#include "config.h"

#include "spank/batch_script.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEAD_BYTES_MAX = 1 << 20 };

/* Adds the words of a line: blanks part them but in quotes, a backslash takes the next
 * byte as it is, # begins a comment. The line is cut up in place. */
static void add_words(char *line, struct crystal_argv *out)
{
    while (*line) {
        char *to, *word, quote = 0;

        line += strspn(line, " \t");
        if (!*line || *line == '#')
            return;
        for (word = to = line; *line && (quote || !strchr(" \t", *line)); line++) {
            if (*line == '\\' && quote != '\'' && line[1])
                *to++ = *++line;
            else if (quote ? *line == quote : *line == '"' || *line == '\'')
                quote = quote ? 0 : *line;
            else
                *to++ = *line;
        }
        line += *line != '\0';
        *to = '\0';
        crystal_argv_add(out, "%s", word);
    }
}

/* Comments and empty lines may stand before the first command. */
static bool is_head(const char *line)
{
    line += strspn(line, " \t\r");
    return !*line || *line == '#';
}

void crystal_batch_script_options(const char *path, struct crystal_argv *out)
{
    static const char mark[] = "#SBATCH";
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : 0;
    char *text = calloc(1, HEAD_BYTES_MAX + 1), *rest = text, *line;
    ssize_t got = fd >= 0 && text ? pread(fd, text, HEAD_BYTES_MAX, 0) : -1;

    if (fd > 0)
        (void)close(fd); /* read-only */
    if (got > 0 && memchr(text, '\0', (size_t)got))
        got = 0; /* no script */
    while (got > 0 && (line = strsep(&rest, "\n")) && is_head(line))
        if (strncmp(line, mark, sizeof mark - 1) == 0 &&
            strchr(" \t", line[sizeof mark - 1])) {
            line[strcspn(line, "\r")] = '\0';
            add_words(line + sizeof mark - 1, out);
        }
    free(text);
}
