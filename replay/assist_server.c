/* See assist_server.h. Level triggered over poll: times are met by ppoll, whose timeout
 * is in nanoseconds.
 */
#include "config.h"

#include "replay/assist_server.h"

#include "replay/assist_message.h"
#include "runtime/clock.h"
#include "runtime/log.h"
#include "runtime/thread.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PIECE_BYTES (256U << 10)        /* of payload in one system call */
#define PIECES      16                  /* of one connection before another's turn */
#define LOOK_NS     INT64_C(1000000000) /* at most until the next look at the clock */

/* Of a request: when it is begun, and what it says then. */
struct answer {
    struct crystal_assist_message message;
    uint64_t begin_ns; /* of the job's clock, 0 at once */
};

struct connection {
    int fd;
    uint64_t number; /* of the next request */
    struct crystal_assist_message in;
    uint32_t in_got;
    uint64_t take_left; /* payload of `in` that is still to come */
    struct answer answers[CRYSTAL_ASSIST_OPEN_MAX];
    uint64_t head, tail; /* tail <= head; modulo their number */
    uint64_t written;    /* of the oldest answer and its payload */
};

struct crystal_assist_server {
    int64_t (*clock_ns)(void *context);
    void *context;
    int wake_fd;
    pthread_t thread;
    bool has_thread;
    _Atomic uint64_t sent_bytes, taken_bytes;
    pthread_mutex_t lock; /* the next three */
    int *incoming;        /* owned, as the descriptors in it */
    uint32_t incoming_count;
    bool stops;
    /* the thread's */
    struct connection **connections; /* [count], with room for as many as fds has */
    struct pollfd *fds;              /* [1 + count] */
    uint32_t count, room;
    unsigned char piece[PIECE_BYTES]; /* what an assistant sends: zeros */
    unsigned char sink[PIECE_BYTES];  /* what it has taken */
};

/* --- one connection --- */

static uint64_t job_ns(struct crystal_assist_server *s)
{
    return crystal_now_ns() + (uint64_t)s->clock_ns(s->context);
}

static struct answer *answer_first(struct connection *c)
{
    return c->tail < c->head ? &c->answers[c->tail % CRYSTAL_ASSIST_OPEN_MAX] : NULL;
}

static int answer_add(struct connection *c, uint32_t type, uint64_t time_ns,
                      uint64_t begin_ns, struct crystal_error *err)
{
    if (c->head - c->tail == CRYSTAL_ASSIST_OPEN_MAX)
        return crystal_error_set(err, EBADMSG, "more than %u requests at once",
                                 CRYSTAL_ASSIST_OPEN_MAX);
    c->answers[c->head++ % CRYSTAL_ASSIST_OPEN_MAX] =
        (struct answer){.message = {.magic = CRYSTAL_ASSIST_MAGIC,
                                    .type = type,
                                    .number = c->in.number,
                                    .bytes = c->in.bytes,
                                    .time_ns = time_ns},
                        .begin_ns = begin_ns};
    return 0;
}

/* All of a TAKE is here. */
static int taken(struct crystal_assist_server *s, struct connection *c,
                 struct crystal_error *err)
{
    c->in_got = 0;
    return answer_add(c, CRYSTAL_ASSIST_TAKEN, job_ns(s), 0, err);
}

/* The head of a request is complete. */
static int request(struct crystal_assist_server *s, struct connection *c,
                   struct crystal_error *err)
{
    int code = crystal_assist_check(&c->in, 0, c->number, err);

    if (code)
        return code;
    c->number++;
    if (c->in.type == CRYSTAL_ASSIST_TAKE) {
        c->take_left = c->in.bytes;
        return c->take_left ? 0 : taken(s, c, err);
    }
    c->in_got = 0;
    return answer_add(c, CRYSTAL_ASSIST_SENT, 0, c->in.time_ns, err);
}

/* Bytes have come. */
static int got_bytes(struct crystal_assist_server *s, struct connection *c, size_t got,
                     struct crystal_error *err)
{
    if (c->in_got < sizeof c->in) {
        c->in_got += (uint32_t)got;
        return c->in_got < sizeof c->in ? 0 : request(s, c, err);
    }
    c->take_left -= got;
    (void)atomic_fetch_add(&s->taken_bytes, got);
    return c->take_left ? 0 : taken(s, c, err);
}

/* Reads what is there, for a while. -EPIPE: the other side is through. */
static int connection_read(struct crystal_assist_server *s, struct connection *c,
                           struct crystal_error *err)
{
    for (int i = 0; i < PIECES; i++) {
        void *to =
            c->in_got < sizeof c->in ? (unsigned char *)&c->in + c->in_got : s->sink;
        size_t want = c->in_got < sizeof c->in        ? sizeof c->in - c->in_got
                      : c->take_left < sizeof s->sink ? (size_t)c->take_left
                                                      : sizeof s->sink;
        ssize_t got = recv(c->fd, to, want, MSG_DONTWAIT);
        int code;

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN)
            return 0;
        if (got <= 0)
            return -EPIPE;
        code = got_bytes(s, c, (size_t)got, err);
        if (code)
            return code;
    }
    return 0;
}

static uint64_t payload_bytes(const struct answer *a)
{
    return a->message.type == CRYSTAL_ASSIST_SENT ? a->message.bytes : 0;
}

/* 1 the oldest answer is written, 0 the socket is full, -EPIPE. */
static int answer_write(struct crystal_assist_server *s, struct connection *c,
                        struct answer *a)
{
    const size_t head_bytes = sizeof a->message;
    const uint64_t total = head_bytes + payload_bytes(a);

    if (!c->written && a->message.type == CRYSTAL_ASSIST_SENT)
        a->message.time_ns = job_ns(s);
    while (c->written < total) {
        size_t head = c->written < head_bytes ? head_bytes - (size_t)c->written : 0;
        uint64_t left = total - c->written - head;
        struct iovec parts[2] = {
            {(unsigned char *)&a->message + head_bytes - head, head},
            {s->piece, left < sizeof s->piece ? (size_t)left : sizeof s->piece}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t sent = sendmsg(c->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0)
            return errno == EAGAIN ? 0 : -EPIPE;
        if ((size_t)sent > head)
            (void)atomic_fetch_add(&s->sent_bytes, (size_t)sent - head);
        c->written += (uint64_t)sent;
    }
    c->written = 0;
    c->tail++;
    return 1;
}

/* Writes the answers whose time has come. */
static int connection_write(struct crystal_assist_server *s, struct connection *c)
{
    struct answer *a;
    int code = 1;

    while (code > 0 && (a = answer_first(c)) &&
           (c->written || a->begin_ns <= job_ns(s)))
        code = answer_write(s, c, a);
    return code < 0 ? code : 0;
}

/* --- all of them --- */

static void connection_drop(struct crystal_assist_server *s, uint32_t i)
{
    (void)close(s->connections[i]->fd); /* nothing to lose */
    free(s->connections[i]);
    s->count--;
    s->connections[i] = s->connections[s->count];
    s->fds[1 + i] = s->fds[1 + s->count];
}

static int room_make(struct crystal_assist_server *s)
{
    uint32_t room = s->room ? 2 * s->room : 16;
    struct connection **connections;
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
    struct connection *c = calloc(1, sizeof *c);

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
    struct connection *c = s->connections[i];
    struct crystal_error err = {0};
    int code = 0;

    if (s->fds[1 + i].revents & (POLLIN | POLLHUP | POLLERR))
        code = connection_read(s, c, &err);
    if (!code)
        code = connection_write(s, c);
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
    const uint64_t now_ns = job_ns(s);
    int64_t least_ns = -1;

    for (uint32_t i = 0; i < s->count; i++) {
        const struct connection *c = s->connections[i];
        const struct answer *a = answer_first(s->connections[i]);
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
                             struct crystal_error *err)
{
    struct crystal_assist_server *s = calloc(1, sizeof *s);
    int code;

    if (!s) {
        (void)crystal_error_set(err, ENOMEM, "out of memory");
        return NULL;
    }
    s->clock_ns = clock_ns;
    s->context = context;
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
                                  uint64_t *ret_sent_bytes, uint64_t *ret_taken_bytes)
{
    *ret_sent_bytes = atomic_load(&s->sent_bytes);
    *ret_taken_bytes = atomic_load(&s->taken_bytes);
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
    free(s->incoming);
    free(s->connections);
    free(s->fds);
    free(s);
}
