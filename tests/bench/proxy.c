/* What the bootstrap proxy costs for one real rank of 8192, seen by an independent
 * client: set-up with an id that the proxy made and with one that a real rank made, and
 * the proxy's memory. The proxy runs in a process of its own (nodeserver). */
#include "config.h"

#include "tests/bootstrap.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define N 8192

static FILE *to_server, *from_server;
static pid_t server;

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void die(const char *why)
{
    fprintf(stderr, "bench proxy: %s\n", why);
    if (server > 0)
        (void)kill(server, SIGKILL);
    exit(1);
}

static void start_server(void)
{
    int in[2], out[2];

    if (pipe(in) || pipe(out))
        die("no pipe");
    server = fork();
    if (server < 0)
        die("no process");
    if (server == 0) {
        (void)dup2(in[0], 0);
        (void)dup2(out[1], 1);
        close(in[1]);
        close(out[0]);
        execl("tests/programs/nodeserver", "nodeserver", "-n", "8192", NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_server = fdopen(in[1], "w");
    from_server = fdopen(out[0], "r");
}

static void read_line(char *line, size_t bytes)
{
    if (!fgets(line, (int)bytes, from_server))
        die("the server is gone");
    if (!strncmp(line, "error", 5))
        die(line);
}

static void slice_set(uint8_t *all, int size, int at, const void *bytes, size_t count)
{
    memset(all, 0, (size_t)size * N);
    memcpy(all + at, bytes, count);
}

/* Rank 0: check-in, ring, the four all-gathers. */
static double set_up(const uint8_t id[128])
{
    uint8_t *all = malloc((size_t)N * BOOT_TOPOLOGY_BYTES);
    struct boot_rank r;
    int version = 22809, chain[8] = {0, 0, -1, -1, 0, 0, 0, -1};
    double begin = now_s();

    if (!all || boot_open(&r, id, 0, N) || boot_ring(&r, 1))
        die("no ring");
    slice_set(all, 120, 0, &r.peer_at, 28);
    if (boot_gather(&r, all, 120))
        die(r.error);
    slice_set(all, 120, 112, &version, 4);
    if (boot_gather(&r, all, 120))
        die(r.error);
    memset(all, 0, (size_t)N * BOOT_TOPOLOGY_BYTES);
    for (int a = 0; a < 8; a++)
        for (int c = 0; c < BOOT_CHANNELS; c++)
            memcpy(all + 228 + 4 * (a * BOOT_CHANNELS + c), &chain[a], 4);
    if (boot_gather(&r, all, BOOT_TOPOLOGY_BYTES) || boot_gather(&r, all, 2))
        die(r.error);
    begin = now_s() - begin;
    boot_close(&r);
    free(all);
    return begin;
}

int main(void)
{
    static char line[2048];
    uint8_t id[128];
    struct boot_root root;
    pthread_t thread;
    unsigned long kib;
    double forged, joined, begin;

    alarm(60);
    start_server();
    read_line(line, sizeof line); /* board */
    read_line(line, sizeof line);
    for (int i = 0; i < 128; i++) {
        unsigned byte;

        if (sscanf(line + strlen("id world ") + 2 * i, "%2x", &byte) != 1)
            die("no id");
        id[i] = (uint8_t)byte;
    }
    forged = set_up(id);
    if (boot_root_open(&root, id, N) ||
        pthread_create(&thread, NULL, boot_root_run, &root))
        die("no root");
    fprintf(to_server, "join joined ");
    for (int i = 0; i < 128; i++)
        fprintf(to_server, "%02x", id[i]);
    fprintf(to_server, " 0-%d\n", N - 1);
    fflush(to_server);
    begin = now_s();
    joined = set_up(id);
    (void)pthread_join(thread, NULL);
    begin = now_s() - begin;
    read_line(line, sizeof line); /* ok */
    fprintf(to_server, "rss\n");
    fflush(to_server);
    read_line(line, sizeof line);
    if (sscanf(line, "rss %lu", &kib) != 1 || root.checkin_count != N)
        die("check-ins are missing");
    fclose(to_server);
    (void)waitpid(server, NULL, 0);
    printf("proxy.setup8192_s %.3f s\n", forged);
    printf("proxy.setup8192_joined_s %.3f s\n", joined);
    printf("proxy.checkins8192_s %.3f s\n", begin);
    printf("proxy.rss_mib %.1f MiB\n", (double)kib / 1024);
    return 0;
}
