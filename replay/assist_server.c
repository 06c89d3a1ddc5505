/* See assist_server.h. Level triggered over poll: times are met by ppoll, whose timeout
 * is in nanoseconds.
 */
#include "config.h"

#include "replay/assist_server.h"

#include "replay/assist_connection.h"
#include "runtime/clock.h"
#include "runtime/log.h"
#include "runtime/thread.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS INT64_C(1000000000) /* at most until the next look at the clock */

struct crystal_assist_server {
    struct assist_shared shared;
    int wake_fd;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* the next three */
    int *incoming;        /* owned, as the descriptors in it */
    uint32_t incoming_count;
    bool stops;
    /* the thread's */
    struct assist_connection **connections; /* [count], room for as many as fds has */
    struct pollfd *fds;                     /* [1 + count] */
    uint32_t count, room;
};

static void connection_drop(struct crystal_assist_server *s, uint32_t i)
{
    (void)close(s->connections[i]->fd); /* nothing to lose */
    assist_connection_fini(s->connections[i]);
    free(s->connections[i]);
    s->count--;
    s->connections[i] = s->connections[s->count];
    s->fds[1 + i] = s->fds[1 + s->count];
}

static int room_make(struct crystal_assist_server *s)
{
    uint32_t room = s->room ? 2 * s->room : 16;
    struct assist_connection **connections;
    struct pollfd *fds;

    if (s->count < s->room)
        return 0;
    connections = realloc(s->connections, room * sizeof *connections);
    if (connections)
        s->connections = connections;
    fds = realloc(s->fds, (room + 1) * sizeof *fds);
    if (fds)
        s->fds = fds;
    if (!connections || !fds)
        return -ENOMEM;
    s->room = room;
    return 0;
}

static void connection_add(struct crystal_assist_server *s, int fd)
{
    struct assist_connection *c = calloc(1, sizeof *c);

    if (!c || room_make(s)) {
        free(c);
        (void)close(fd); /* the rank says that its connection is cut */
        crystal_log(CRYSTAL_LOG_ERROR, "assistant", "out of memory for a connection");
        return;
    }
    c->fd = fd;
    s->connections[s->count++] = c;
    s->fds[s->count] = (struct pollfd){.fd = fd, .events = POLLIN, .revents = POLLIN};
}

/* New connections; false where the server stops. */
static bool incoming_take(struct crystal_assist_server *s)
{
    uint32_t count;
    bool stops;
    int *list;

    (void)pthread_mutex_lock(&s->lock);
    list = s->incoming;
    count = s->incoming_count;
    stops = s->stops;
    s->incoming = NULL;
    s->incoming_count = 0;
    (void)pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < count; i++)
        connection_add(s, list[i]);
    free(list);
    return !stops;
}

static void connection_serve(struct crystal_assist_server *s, uint32_t i)
{
    struct assist_connection *c = s->connections[i];
    struct crystal_error err = {0};
    int code = 0;

    if (s->fds[1 + i].revents & (POLLIN | POLLHUP | POLLERR))
        code = assist_connection_read(&s->shared, c, &err);
    if (!code)
        code = assist_connection_write(&s->shared, c);
    if (!code)
        return;
    if (code != -EPIPE)
        crystal_log(CRYSTAL_LOG_DEBUG, "assistant", "dropped a connection: %s",
                    crystal_error_text(&err));
    connection_drop(s, i);
}

/* What to wait for on each; the time until the next answer's begin, negative: none. */
static int64_t wait_ns(struct crystal_assist_server *s)
{
    const uint64_t now_ns = assist_job_ns(&s->shared);
    int64_t least_ns = -1;

    for (uint32_t i = 0; i < s->count; i++) {
        const struct assist_connection *c = s->connections[i];
        const struct assist_answer *a = assist_answer_first(s->connections[i]);
        bool is_due = a && (c->written || a->begin_ns <= now_ns);
        int64_t left_ns = !a || is_due ? -1
                          : a->begin_ns - now_ns < (uint64_t)LOOK_NS
                              ? (int64_t)(a->begin_ns - now_ns)
                              : LOOK_NS;

        s->fds[1 + i].events = (short)(POLLIN | (is_due ? POLLOUT : 0));
        if (left_ns >= 0 && (least_ns < 0 || left_ns < least_ns))
            least_ns = left_ns;
    }
    return least_ns;
}

static void *server_main(void *argument)
{
    struct crystal_assist_server *s = argument;

    (void)prctl(PR_SET_TIMERSLACK, 1UL); /* without it waits are only less exact */
    for (;;) {
        int64_t left_ns = wait_ns(s);
        struct timespec limit = {left_ns / 1000000000, left_ns % 1000000000};
        uint64_t wakes;

        if (ppoll(s->fds, 1 + s->count, left_ns < 0 ? NULL : &limit, NULL) < 0)
            for (uint32_t i = 0; i <= s->count; i++)
                s->fds[i].revents = 0; /* interrupted */
        if (s->fds[0].revents) {
            (void)!read(s->wake_fd, &wakes, sizeof wakes); /* it is not empty */
            if (!incoming_take(s))
                return NULL;
        }
        for (uint32_t i = s->count; i-- > 0;)
            connection_serve(s, i);
    }
}

static void server_wake(struct crystal_assist_server *s)
{
    const uint64_t one = 1;

    (void)!write(s->wake_fd, &one, sizeof one); /* its counter cannot be full */
}

struct crystal_assist_server *
crystal_assist_server_create(int64_t (*clock_ns)(void *context), void *context,
                             const struct crystal_graph *graph,
                             struct crystal_error *err)
{
    struct crystal_assist_server *s = calloc(1, sizeof *s);
    int code;

    if (!s) {
        (void)crystal_error_set(err, ENOMEM, "out of memory");
        return NULL;
    }
    s->shared.clock_ns = clock_ns;
    s->shared.context = context;
    s->shared.graph = graph;
    (void)pthread_mutex_init(&s->lock, NULL); /* cannot fail on Linux */
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake_fd < 0 || room_make(s)) {
        (void)crystal_error_set(err, s->wake_fd < 0 ? errno : ENOMEM,
                                "cannot start the real wire: %s",
                                s->wake_fd < 0 ? strerror(errno) : "out of memory");
        crystal_assist_server_destroy(s);
        return NULL;
    }
    s->fds[0] = (struct pollfd){.fd = s->wake_fd, .events = POLLIN};
    code = crystal_thread_start(&s->thread, server_main, s);
    if (code) {
        (void)crystal_error_set(err, code, "cannot start a thread: %s", strerror(code));
        crystal_assist_server_destroy(s);
        return NULL;
    }
    s->has_thread = true;
    return s;
}

void crystal_assist_server_add(struct crystal_assist_server *s, int fd)
{
    int *more;

    (void)pthread_mutex_lock(&s->lock);
    more = realloc(s->incoming, (s->incoming_count + 1) * sizeof *more);
    if (more) {
        s->incoming = more;
        more[s->incoming_count++] = fd;
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (more)
        server_wake(s);
    else
        (void)close(fd); /* the rank says that its connection is cut */
}

void crystal_assist_server_counts(const struct crystal_assist_server *s,
                                  struct crystal_assist_counts *ret)
{
    ret->sent_bytes = atomic_load(&s->shared.sent_bytes);
    ret->taken_bytes = atomic_load(&s->shared.taken_bytes);
    ret->given_bytes = atomic_load(&s->shared.given_bytes);
}

void crystal_assist_server_destroy(struct crystal_assist_server *s)
{
    if (!s)
        return;
    if (s->has_thread) {
        (void)pthread_mutex_lock(&s->lock);
        s->stops = true;
        (void)pthread_mutex_unlock(&s->lock);
        server_wake(s);
        (void)pthread_join(s->thread, NULL);
    }
    while (s->count)
        connection_drop(s, s->count - 1);
    for (uint32_t i = 0; i < s->incoming_count; i++)
        (void)close(s->incoming[i]);
    if (s->wake_fd >= 0)
        (void)close(s->wake_fd);
    (void)pthread_mutex_destroy(&s->lock);
    assist_kept_fini(&s->shared.kept);
    free(s->incoming);
    free(s->connections);
    free(s->fds);
    free(s);
}
