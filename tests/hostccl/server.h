/* Virtual ranks for tests and benchmarks of hostccl: a nodeserver process whose board
 * and world id the ranks use.
 */
#ifndef CRYSTAL_TESTS_SERVER_H
#define CRYSTAL_TESTS_SERVER_H

#include "tests/folders.h"
#include "tests/hostccl/ranks.h"

#include "runtime/env.h"

struct server {
    pid_t pid;
    FILE *to, *from;
    ncclUniqueId world;
};

static inline int server_line(struct server *s, char *line, size_t bytes,
                              const char *word)
{
    size_t length = strlen(word);

    if (fgets(line, (int)bytes, s->from) && strncmp(line, word, length) == 0) {
        line[strcspn(line, "\n")] = 0;
        memmove(line, line + length, strlen(line + length) + 1);
        return 0;
    }
    printf("# nodeserver: %s\n", line);
    return -1;
}

/* n logical ranks, per_node on a target node, `real` of them real, in a grid as
 * --crystal-parallel has it (NULL: none); sets CRYSTAL_BOARD. 0 or -1. */
static inline int server_start_grid(struct server *s, int n, int per_node,
                                    const char *real, const char *grid)
{
    static char line[4096];
    const char *build = build_folder();
    char path[4096], count[16], node[16];
    int in[2], out[2];

    (void)snprintf(path, sizeof path, "%s/tests/programs/nodeserver", build);
    (void)snprintf(count, sizeof count, "%d", n);
    (void)snprintf(node, sizeof node, "%d", per_node);
    fflush(stdout);
    if (pipe(in) || pipe(out) || (s->pid = fork()) < 0)
        return -1;
    if (s->pid == 0) {
        (void)dup2(in[0], 0);
        (void)dup2(out[1], 1);
        close(in[1]);
        close(out[0]);
        execl(path, "nodeserver", "-n", count, "-g", node, "-r", real,
              grid ? "-p" : (char *)NULL, grid, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    s->to = fdopen(in[1], "w");
    s->from = fdopen(out[0], "r");
    if (server_line(s, line, sizeof line, "board "))
        return -1;
    (void)setenv(CRYSTAL_ENV_BOARD, line, 1);
    if (server_line(s, line, sizeof line, "id world "))
        return -1;
    for (size_t i = 0; i < sizeof s->world; i++) {
        unsigned byte;

        if (sscanf(line + 2 * i, "%2x", &byte) != 1)
            return -1;
        s->world.internal[i] = (char)byte;
    }
    return 0;
}

static inline int server_start(struct server *s, int n, int per_node, const char *real)
{
    return server_start_grid(s, n, per_node, real, NULL);
}

/* Gives it a line and reads the answer, whole. */
static inline void server_ask(struct server *s, const char *command, char *answer,
                              size_t bytes)
{
    (void)fprintf(s->to, "%s\n", command);
    (void)fflush(s->to);
    if (!fgets(answer, (int)bytes, s->from))
        *answer = '\0';
    answer[strcspn(answer, "\n")] = '\0';
}

/* 0 where the node has not failed. */
static inline int server_stop(struct server *s)
{
    char line[4096];
    int status = 0, result;

    fputs("status\n", s->to);
    fflush(s->to);
    result = server_line(s, line, sizeof line, "ok");
    (void)fclose(s->to);
    (void)fclose(s->from);
    if (waitpid(s->pid, &status, 0) < 0 || status)
        result = -1;
    (void)unsetenv(CRYSTAL_ENV_BOARD);
    return result;
}

#endif
