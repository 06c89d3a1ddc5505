/* Whatever the other process writes into the memory that two real ranks share
 * (replay/net_share.h), and whenever, each side stands: no count, place, size or answer
 * leads it outside of the ring or of what was posted.
 *
 * Input: one byte says which side is the plugin's; then what the other one does, each a
 * byte that says what, and what that takes: any bytes anywhere in front of the payload;
 * a message, an answer, or counts, where the plugin looks for them; bytes on the
 * socket. After each the plugin's side moves what it can.
 */
#include "config.h"

#include "replay/net_tcp_internal.h"

#include "tests/fuzz/net_context.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define POSTS      8
#define ROOM       100
#define LONG       (CRYSTAL_SHARE_PIECE + 5000) /* in pieces */
#define HEAD_BYTES 8192U                        /* as drawn in net_share.h */
#define SLOTS_AT   128U
#define ANSWERS_AT 4224U
#define SLOTS      64U

struct input {
    const uint8_t *data;
    size_t size;
};

/* What is missing is zero. */
static void take(struct input *in, void *to, size_t bytes)
{
    size_t part = bytes < in->size ? bytes : in->size;

    memset(to, 0, bytes);
    memcpy(to, in->data, part);
    in->data += part;
    in->size -= part;
}

struct pair {
    struct tcp_end *end;         /* the plugin's side */
    struct crystal_share *other; /* receiving: the sender's mapping */
    unsigned char *memory;       /* as the other process has it */
    int fd;                      /* its socket */
    uint64_t sent, answered;     /* by it */
    int is_send;
};

static void pair_begin(struct pair *p, int is_send)
{
    struct crystal_error err = {0};
    struct crystal_tcp_share said = {.magic = CRYSTAL_TCP_SHARE};
    struct crystal_share *made = crystal_share_create(said.name, &err);
    char path[64];
    int fds[2], fd;

    *p = (struct pair){.is_send = is_send};
    (void)snprintf(path, sizeof path, "/dev/shm/%.*s", CRYSTAL_SHARE_NAME - 1,
                   said.name);
    if (!made || (fd = open(path, O_RDWR | O_CLOEXEC)) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        abort();
    p->memory = mmap(NULL, HEAD_BYTES + CRYSTAL_SHARE_BYTES, PROT_READ | PROT_WRITE,
                     MAP_SHARED, fd, 0);
    p->end = (struct tcp_end *)crystal_tcp_end_create(net_context(), fds[0], is_send, 1,
                                                      &err);
    if (p->memory == MAP_FAILED || !p->end)
        abort();
    (void)close(fd);
    p->fd = fds[1];
    if (is_send) { /* it shares memory with what has an address only */
        p->end->share = made;
        p->end->base.ops = &crystal_shared_send_ops;
        (void)unlink(path); /* as the receiver does */
    } else {
        p->other = made;
        if (crystal_tcp_share_begin(p->end, &said, &err))
            abort();
    }
}

static void pair_end(struct pair *p)
{
    p->end->base.ops->close(&p->end->base);
    crystal_share_destroy(p->other, 1);
    (void)munmap(p->memory, HEAD_BYTES + CRYSTAL_SHARE_BYTES);
    (void)close(p->fd);
}

/* --- what the other process does --- */

static void write_anywhere(struct pair *p, struct input *in)
{
    uint16_t at;
    uint8_t bytes;

    take(in, &at, sizeof at);
    take(in, &bytes, sizeof bytes);
    if (at + bytes <= (int)HEAD_BYTES)
        take(in, p->memory + at, bytes);
}

static void write_message(struct pair *p, struct input *in)
{
    unsigned char *slot = p->memory + SLOTS_AT + 64 * (p->sent % SLOTS);

    take(in, slot + 8, sizeof(struct crystal_share_message));
    p->sent++;
    memcpy(slot, &p->sent, sizeof p->sent);
}

static void write_answer(struct pair *p, struct input *in)
{
    unsigned char *answer = p->memory + ANSWERS_AT + 16 * (p->answered % SLOTS);

    take(in, answer + 8, 8);
    p->answered++;
    memcpy(answer, &p->answered, sizeof p->answered);
}

static void act(struct pair *p, struct input *in)
{
    uint8_t what, byte;

    take(in, &what, sizeof what);
    switch (what % 5) {
    case 0:
        write_anywhere(p, in);
        break;
    case 1:
        write_message(p, in);
        break;
    case 2:
        write_answer(p, in);
        break;
    case 3: /* taken, opened, received */
        take(in, p->memory, 24);
        break;
    default:
        take(in, &byte, sizeof byte);
        if (send(p->fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
            return; /* there are enough of them */
    }
}

/* --- the plugin's side --- */

/* Posts while there is room for it: receives of ROOM bytes, sends of ROOM or LONG. */
static int post(struct pair *p, struct crystal_net_request *requests[POSTS], int *count)
{
    static unsigned char rooms[POSTS][ROOM], long_one[LONG];
    static struct crystal_operation op = {.is_p2p = 1, .func = CRYSTAL_FUNC_SEND};
    struct crystal_message_id id = {0};
    struct crystal_error err = {0};
    int code = 0;

    op.comm = net_context()->comm;
    if (p->is_send)
        id.operation = &op; /* rendezvous: it waits for answers */
    while (!code && *count < POSTS) {
        int is_long = p->is_send && *count % 4 == 3;

        requests[*count] = NULL;
        code =
            crystal_net_post(&p->end->base, is_long ? long_one : rooms[*count],
                             is_long ? LONG : ROOM, NULL, &id, &requests[*count], &err);
        if (!code && !requests[*count])
            break;
        ++*count;
    }
    return code;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, size};
    struct crystal_net_request *requests[POSTS] = {NULL};
    struct crystal_error err = {0};
    struct pair p;
    uint8_t side;
    int count = 0, failed = 0;

    take(&in, &side, sizeof side);
    pair_begin(&p, side % 2);
    while (in.size && !failed) {
        failed = post(&p, requests, &count) != 0;
        act(&p, &in);
        /* not through crystal_net_test, which logs each refusal */
        failed = failed || p.end->base.ops->progress(&p.end->base, &err) != 0;
        for (int i = 0; !p.is_send && i < count; i++)
            if (requests[i] && requests[i]->state == CRYSTAL_REQUEST_MOVED &&
                requests[i]->got > ROOM)
                abort();
    }
    pair_end(&p);
    return 0;
}
