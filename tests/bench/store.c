/* store.vs_echo: requests per second of the store as a share of what a bare epoll echo
 * server does with the same bytes, client and machine, in alternating rounds.
 *
 * 64 connections; each turn of one is SET + WAIT in one piece, then GET of the same
 * key, so half of the operations are SET and half WAIT+GET. The echo server returns
 * every byte it gets. Servers are processes of their own. store.cpu_vs_echo is the same
 * share in processor time of the server alone, which a slow client cannot hide.
 */
#include "config.h"

#include "runtime/clock.h"
#include "runtime/listen.h"
#include "runtime/loop.h"
#include "runtime/store.h"

#include "tests/unit/store_client.h"

#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>

#define CONNECTIONS 64
#define ROUNDS      5
#define ROUND_NS    300000000U
#define VALUE_BYTES 64

static void die(const char *why)
{
    fprintf(stderr, "bench store: %s\n", why);
    exit(1);
}

/* --- servers: run until they are killed --- */

static void serve_store(int listen_fd)
{
    struct crystal_loop *loop = crystal_loop_create(NULL);

    if (!loop || !crystal_store_create(loop, listen_fd, NULL, NULL, NULL))
        die("no store");
    (void)crystal_loop_run(loop, NULL);
}

static void serve_echo(int listen_fd)
{
    struct epoll_event ready[CONNECTIONS], e = {.events = EPOLLIN};
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC), fd;
    static char bytes[65536];

    e.data.fd = listen_fd;
    (void)epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listen_fd, &e);
    for (;;) {
        int n = epoll_wait(epoll_fd, ready, CONNECTIONS, -1);

        for (int i = 0; i < n; i++) {
            ssize_t got;

            if (ready[i].data.fd == listen_fd) {
                while (crystal_accept(listen_fd, NULL, "echo", &fd) == 0) {
                    e.data.fd = fd;
                    (void)epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
                }
                continue;
            }
            got = recv(ready[i].data.fd, bytes, sizeof bytes, 0);
            if (got <= 0)
                (void)close(ready[i].data.fd);
            else if (send(ready[i].data.fd, bytes, (size_t)got, MSG_NOSIGNAL) != got)
                die("echo");
        }
    }
}

struct server {
    pid_t pid;
    uint16_t port;
    int is_store;
    double requests, cpu_s; /* of the last round */
};

static void server_start(struct server *s, void (*serve)(int listen_fd), int is_store)
{
    int fd;

    if (crystal_listen(0, "", &fd, &s->port, NULL) < 0)
        die("no port");
    s->is_store = is_store;
    s->pid = fork();
    if (s->pid < 0)
        die("no process");
    if (s->pid == 0) {
        serve(fd);
        _exit(1);
    }
    (void)close(fd);
}

/* Processor time of another process, from its clock. */
static double cpu_s(pid_t pid)
{
    struct timespec t;
    clockid_t clock;

    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) < 0)
        die("no clock of the server");
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* --- the client --- */

struct connection {
    int fd;
    int getting; /* GET is under way, else SET + WAIT */
    struct request set_wait, get;
    size_t missing; /* reply bytes */
};

static void turn(struct connection *c, int is_store)
{
    const struct request *r = c->getting ? &c->get : &c->set_wait;

    if (request_send(r, c->fd) < 0)
        die("send");
    c->missing = !is_store ? r->bytes : c->getting ? 8 + VALUE_BYTES : 1;
}

static void connection_open(struct connection *c, const struct server *s, int number)
{
    char key[64], value[VALUE_BYTES];
    struct request set = {0};

    memset(value, 'v', sizeof value);
    memset(c, 0, sizeof *c);
    (void)snprintf(key, sizeof key, "/default_pg/%d//cpu//0", number);
    request_begin(&set, CRYSTAL_STORE_SET);
    request_text(&set, key);
    request_bytes(&set, value, sizeof value);
    request_begin(&c->set_wait, CRYSTAL_STORE_WAIT);
    request_u64(&c->set_wait, 1);
    request_text(&c->set_wait, key);
    request_raw(&set, c->set_wait.data, c->set_wait.bytes);
    free(c->set_wait.data);
    c->set_wait = set;
    request_begin(&c->get, CRYSTAL_STORE_GET);
    request_text(&c->get, key);
    c->fd = s->is_store ? store_connect(s->port) : store_dial(s->port);
    if (c->fd < 0)
        die("cannot connect");
}

/* Runs one round; fills s->requests (per second) and s->cpu_s (per request). */
static void run_round(struct server *s)
{
    static struct connection connections[CONNECTIONS];
    struct epoll_event ready[CONNECTIONS], e = {.events = EPOLLIN};
    int epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    uint64_t start, end, turns = 0;
    double cpu;
    static char bytes[65536];

    for (int i = 0; i < CONNECTIONS; i++) {
        connection_open(&connections[i], s, i);
        e.data.ptr = &connections[i];
        (void)epoll_ctl(epoll_fd, EPOLL_CTL_ADD, connections[i].fd, &e);
    }
    cpu = cpu_s(s->pid);
    start = crystal_now_ns();
    end = start + ROUND_NS;
    for (int i = 0; i < CONNECTIONS; i++)
        turn(&connections[i], s->is_store);
    while (crystal_now_ns() < end) {
        int n = epoll_wait(epoll_fd, ready, CONNECTIONS, 1000);

        for (int i = 0; i < n; i++) {
            struct connection *c = ready[i].data.ptr;
            ssize_t got = recv(c->fd, bytes, sizeof bytes, 0);

            if (got <= 0 || (size_t)got > c->missing)
                die("wrong reply");
            c->missing -= (size_t)got;
            if (c->missing)
                continue;
            turns++;
            c->getting = !c->getting;
            turn(c, s->is_store);
        }
    }
    s->requests = (double)turns / ((double)(crystal_now_ns() - start) * 1e-9);
    s->cpu_s = (cpu_s(s->pid) - cpu) / (double)turns;
    for (int i = 0; i < CONNECTIONS; i++) {
        (void)close(connections[i].fd);
        free(connections[i].set_wait.data);
        free(connections[i].get.data);
    }
    (void)close(epoll_fd);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

int main(void)
{
    struct server store = {0}, echo = {0};
    double rate[ROUNDS], cpu[ROUNDS], requests[ROUNDS];

    server_start(&store, serve_store, 1);
    server_start(&echo, serve_echo, 0);
    for (int i = 0; i < ROUNDS; i++) {
        run_round(&echo);
        run_round(&store);
        rate[i] = store.requests / echo.requests;
        cpu[i] = echo.cpu_s / store.cpu_s;
        requests[i] = store.requests;
    }
    qsort(rate, ROUNDS, sizeof rate[0], compare);
    qsort(cpu, ROUNDS, sizeof cpu[0], compare);
    qsort(requests, ROUNDS, sizeof requests[0], compare);
    printf("store.vs_echo %.3f ratio\n", rate[ROUNDS / 2]);
    printf("store.cpu_vs_echo %.3f ratio\n", cpu[ROUNDS / 2]);
    printf("store.turns_per_s %.0f 1/s\n", requests[ROUNDS / 2]);
    (void)kill(store.pid, SIGKILL);
    (void)kill(echo.pid, SIGKILL);
    (void)waitpid(store.pid, NULL, 0);
    (void)waitpid(echo.pid, NULL, 0);
    return 0;
}
