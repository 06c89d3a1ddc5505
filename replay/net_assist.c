/* See net_assist.h. */
#include "config.h"

#include "replay/net_assist.h"

#include "replay/assist_message.h"
#include "replay/assist_recipe.h"
#include "replay/link_dial.h"
#include "replay/net.h"
#include "replay/wait_list.h"
#include "runtime/clock.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define HEAD_BYTES    sizeof(struct crystal_assist_message)
#define REQUEST_BYTES (HEAD_BYTES + sizeof(struct crystal_assist_source))
/* Who knows why a connection is cut, the links and the coordinator, speaks first. */
#define PATIENCE_NS 4000000000U
#define SINK_BYTES  (64U << 10)

struct crystal_assist {
    const struct crystal_net_module *module;
    int fd;
    uint64_t number, answered; /* of the next request, of the next answer */
    uint64_t sizes[CRYSTAL_ASSIST_OPEN_MAX]; /* of requests without an answer */
    bool is_take[CRYSTAL_ASSIST_OPEN_MAX];
    unsigned char *to[CRYSTAL_ASSIST_OPEN_MAX]; /* borrowed; NULL: nowhere */
    /* what is not written yet: SENDs, or the heads of one TAKE; owned */
    unsigned char *out;
    size_t out_bytes, out_at, out_room;
    bool gives;       /* a TAKE is being written ... */
    uint64_t given;   /* ... so much of it, heads included */
    uint64_t lost_ns; /* when the connection was found cut; 0: it is not */
    int lost_code;    /* positive errno; 0: closed */
    struct crystal_assist_message in;
    size_t in_got;
    uint64_t in_left; /* payload still to come */
    unsigned char sink[SINK_BYTES];
};

struct crystal_assist *crystal_assist_create(const struct crystal_net_module *module,
                                             int fd, struct crystal_error *err)
{
    struct crystal_assist *a = calloc(1, sizeof *a);

    if (!a) {
        (void)crystal_error_set(err, ENOMEM, "out of memory for a connection");
        if (fd >= 0)
            (void)close(fd); /* nothing was sent */
        return NULL;
    }
    a->module = module;
    a->fd = fd;
    return a;
}

struct crystal_assist *crystal_assist_open(const struct crystal_net_module *module,
                                           struct crystal_error *err)
{
    struct crystal_error why = {0};
    struct crystal_assist *a;
    int fd = -1;

    (void)crystal_link_dial(&module->assistant, module->assistant_token,
                            CRYSTAL_LINK_WIRE, module->lrank, &fd, &why);
    a = crystal_assist_create(module, fd, err);
    if (a && fd < 0) { /* as if it were cut: told when it is used, and not at once */
        a->lost_ns = crystal_now_ns();
        a->lost_code = why.code;
    }
    return a;
}

void crystal_assist_close(struct crystal_assist *a)
{
    if (!a)
        return;
    if (a->fd >= 0) {
        crystal_wait_forget(a->fd);
        (void)close(a->fd); /* what was written arrives */
    }
    free(a->out);
    free(a);
}

/* The connection is cut. 0: not told yet. */
static int lost(struct crystal_assist *a, int error, struct crystal_error *err)
{
    const uint64_t now_ns = crystal_now_ns();

    if (!a->lost_ns) {
        a->lost_ns = now_ns;
        a->lost_code = error;
    }
    if (now_ns - a->lost_ns < PATIENCE_NS) {
        crystal_wait_until(a->lost_ns + PATIENCE_NS);
        return 0;
    }
    return crystal_error_set(
        err, ECONNRESET,
        "the connection to the assistant, node %u, is cut (%s); see "
        "log/ in the job directory",
        a->module->assistant.node,
        a->lost_code ? strerror(a->lost_code) : "it was closed");
}

static struct crystal_assist_message request(struct crystal_assist *a, uint32_t type,
                                             uint64_t bytes, uint64_t time_ns)
{
    a->sizes[a->number % CRYSTAL_ASSIST_OPEN_MAX] = bytes;
    a->is_take[a->number % CRYSTAL_ASSIST_OPEN_MAX] = type == CRYSTAL_ASSIST_TAKE;
    return (struct crystal_assist_message){.magic = CRYSTAL_ASSIST_MAGIC,
                                           .type = type,
                                           .number = a->number++,
                                           .bytes = bytes,
                                           .time_ns = time_ns};
}

/* Writes what is there of out, and behind it so much of data. The number of bytes, 0
 * wait, negative errno. */
static ssize_t write_some(struct crystal_assist *a, const void *data, size_t bytes,
                          struct crystal_error *err)
{
    struct iovec parts[2] = {{a->out + a->out_at, a->out_bytes - a->out_at},
                             {(void *)(uintptr_t)data, bytes}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t sent;

    if (a->lost_ns)
        return lost(a, 0, err);
    do {
        sent = sendmsg(a->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0 && errno == EAGAIN) {
        crystal_wait_fd(a->fd, POLLOUT);
        return 0;
    }
    return sent < 0 ? lost(a, errno, err) : sent;
}

static int out_write(struct crystal_assist *a, struct crystal_error *err)
{
    while (a->out_at < a->out_bytes) {
        ssize_t sent = write_some(a, NULL, 0, err);

        if (sent <= 0)
            return (int)sent;
        a->out_at += (size_t)sent;
    }
    a->out_at = a->out_bytes = 0;
    return 0;
}

static int size_check(uint64_t bytes, struct crystal_error *err)
{
    if (bytes <= CRYSTAL_ASSIST_BYTES_MAX)
        return 0;
    return crystal_error_set(err, EMSGSIZE,
                             "a message of %llu bytes; the real wire takes 1 GiB, use "
                             "--crystal-wire=modelled",
                             (unsigned long long)bytes);
}

/* Behind what is not written yet. */
static int out_add(struct crystal_assist *a, const void *data, size_t bytes,
                   struct crystal_error *err)
{
    size_t kept = a->out_bytes - a->out_at, room = a->out_room;
    unsigned char *larger;

    if (a->out_at && bytes > room - a->out_bytes) {
        memmove(a->out, a->out + a->out_at, kept);
        a->out_bytes = kept;
        a->out_at = 0;
    }
    if (bytes > room - a->out_bytes) {
        room = 2 * room > a->out_bytes + bytes ? 2 * room : a->out_bytes + bytes;
        larger = realloc(a->out, room);
        if (!larger)
            return crystal_error_set(err, ENOMEM, "out of memory for a message");
        a->out = larger;
        a->out_room = room;
    }
    if (bytes)
        memcpy(a->out + a->out_bytes, data, bytes);
    a->out_bytes += bytes;
    return 0;
}

/* Contributions are named where that is shorter than the message. */
static bool is_named(const struct crystal_assist_ask *ask)
{
    return ask->recipe && ask->recipe->is_known &&
           ask->recipe->source.term_count * sizeof ask->recipe->terms[0] <= ask->bytes;
}

static struct crystal_assist_source source_of(const struct crystal_assist_ask *ask)
{
    if (is_named(ask))
        return ask->recipe->source;
    return (struct crystal_assist_source){
        .nranks = 1, .flags = ask->given ? CRYSTAL_ASSIST_GIVEN : 0};
}

int crystal_assist_ask(struct crystal_assist *a, const struct crystal_assist_ask *ask,
                       struct crystal_error *err)
{
    const struct crystal_assist_source source = source_of(ask);
    struct crystal_assist_message message;
    int code = size_check(ask->bytes, err);

    if (code)
        return code;
    a->to[a->number % CRYSTAL_ASSIST_OPEN_MAX] = ask->to;
    message = request(a, CRYSTAL_ASSIST_SEND, ask->bytes,
                      crystal_net_job_ns(a->module, ask->begin_ns));
    code = out_add(a, &message, sizeof message, err);
    if (!code)
        code = out_add(a, &source, sizeof source, err);
    if (!code && source.term_count)
        code = out_add(a, ask->recipe->terms,
                       source.term_count * sizeof ask->recipe->terms[0], err);
    if (!code && source.flags & CRYSTAL_ASSIST_GIVEN)
        code = out_add(a, ask->given, (size_t)ask->bytes, err);
    return code ? code : out_write(a, err);
}

int crystal_assist_give(struct crystal_assist *a, const void *data, uint64_t bytes,
                        const struct crystal_assist_source *source,
                        struct crystal_error *err)
{
    const struct crystal_assist_source nobody = {.nranks = 1};
    struct crystal_assist_message message;
    ssize_t sent;

    if (!a->gives) {
        int code = size_check(bytes, err);

        if (code)
            return code;
        message = request(a, CRYSTAL_ASSIST_TAKE, bytes, 0);
        code = out_add(a, &message, sizeof message, err);
        if (!code)
            code = out_add(a, source ? source : &nobody, sizeof nobody, err);
        if (code)
            return code;
        a->given = 0;
        a->gives = true;
    }
    while (a->given < REQUEST_BYTES + bytes) {
        uint64_t done = a->given < REQUEST_BYTES ? 0 : a->given - REQUEST_BYTES;

        sent = write_some(a, (const char *)data + done, (size_t)(bytes - done), err);
        if (sent <= 0)
            return (int)sent;
        a->given += (uint64_t)sent;
        a->out_at = a->given < REQUEST_BYTES ? (size_t)a->given : REQUEST_BYTES;
    }
    a->out_bytes = a->out_at = 0;
    a->gives = false;
    return 1;
}

/* The head of an answer is complete. */
static int answer_check(struct crystal_assist *a, struct crystal_error *err)
{
    const unsigned at = (unsigned)(a->answered % CRYSTAL_ASSIST_OPEN_MAX);
    int code = crystal_assist_check(&a->in, 1, a->answered, err);

    if (code)
        return code;
    if (a->answered == a->number || a->in.bytes != a->sizes[at] ||
        (a->in.type == CRYSTAL_ASSIST_TAKEN) != a->is_take[at])
        return crystal_error_set(err, EBADMSG,
                                 "node %u answers what was not asked; let one "
                                 "installation run everywhere",
                                 a->module->assistant.node);
    a->in_left = a->in.type == CRYSTAL_ASSIST_SENT ? a->in.bytes : 0;
    return 0;
}

int crystal_assist_answer(struct crystal_assist *a, uint64_t *ret_ns,
                          struct crystal_error *err)
{
    int code = a->gives ? 0 : out_write(a, err);

    if (code || a->answered == a->number || crystal_wait_is_noted(a->fd, POLLIN))
        return code;
    while (a->in_got < HEAD_BYTES || a->in_left) {
        bool is_head = a->in_got < HEAD_BYTES;
        unsigned char *place = a->to[a->answered % CRYSTAL_ASSIST_OPEN_MAX];
        void *to = is_head ? (unsigned char *)&a->in + a->in_got
                   : place ? place + (a->in.bytes - a->in_left)
                           : a->sink;
        size_t want = is_head                            ? HEAD_BYTES - a->in_got
                      : place || a->in_left < SINK_BYTES ? (size_t)a->in_left
                                                         : SINK_BYTES;
        ssize_t got = a->lost_ns ? 0 : recv(a->fd, to, want, MSG_DONTWAIT);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EAGAIN) {
            crystal_wait_fd(a->fd, POLLIN);
            return 0;
        }
        if (got <= 0)
            return lost(a, got < 0 ? errno : 0, err);
        if (!is_head)
            a->in_left -= (uint64_t)got;
        else if ((a->in_got += (size_t)got) == HEAD_BYTES)
            code = answer_check(a, err);
        if (code)
            return code;
    }
    *ret_ns = a->in.type == CRYSTAL_ASSIST_SENT
                  ? crystal_now_ns()
                  : crystal_net_own_ns(a->module, a->in.time_ns);
    a->in_got = 0;
    a->answered++;
    return 1;
}
