/* Whatever a peer, a stranger or another sandbox rank sends, the net plugin stands:
 * hellos and handles, the stream of a TCP connection with receives posted, the acks on
 * a sending one, the stream of a feed in any pieces.
 *
 * Input: one byte says which reader, one how many bytes a piece has, the rest is what
 * arrives.
 */
#include "config.h"

#include "replay/net.h"
#include "replay/net_connect.h"
#include "replay/net_tcp.h"
#include "replay/virtual_feed.h"

#include "tests/fuzz/net_context.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define ROOM 100

static void feed_hello(const uint8_t *data, size_t size)
{
    struct crystal_net_handle handle = {0};
    struct crystal_net_hello hello = {0};

    memcpy(&hello, data, size < sizeof hello ? size : sizeof hello);
    memcpy(&handle, data, size < sizeof handle ? size : sizeof handle);
    (void)crystal_net_hello_check(&hello, 7);
    if (crystal_net_hello_check(&hello, hello.id) && hello.kind != CRYSTAL_NET_REAL &&
        hello.kind != CRYSTAL_NET_VIRTUAL && hello.kind != CRYSTAL_NET_BACKEND)
        abort();
    (void)crystal_net_handle_check(&handle, NULL);
}

/* The peer writes pieces; between them the end moves what it can. */
static void feed_end(int is_send, size_t piece, const uint8_t *data, size_t size)
{
    struct crystal_net_request *requests[4] = {NULL};
    struct crystal_message_id id = {0};
    struct crystal_operation op = {.is_p2p = 1, .func = CRYSTAL_FUNC_SEND};
    unsigned char room[4][ROOM] = {{0}};
    struct crystal_error err = {0};
    struct crystal_net_end *end;
    int fds[2], failed = 0;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        return;
    op.comm = net_context()->comm;
    if (is_send)
        id.operation = &op; /* rendezvous: it waits for acks */
    end = crystal_tcp_end_create(net_context(), fds[0], is_send, 1, &err);
    if (!end)
        abort();
    for (int i = 0; i < 4 && !failed; i++)
        failed =
            crystal_net_post(end, room[i], ROOM, NULL, &id, &requests[i], &err) != 0;
    while (size && !failed) {
        size_t part = size < piece ? size : piece;
        ssize_t wrote = send(fds[1], data, part, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (wrote <= 0)
            break;
        data += wrote;
        size -= (size_t)wrote;
        /* not through crystal_net_test, which logs each refusal */
        failed = end->ops->progress(end, &err) != 0;
        for (int i = 0; i < 4; i++)
            if (requests[i] && requests[i]->state == CRYSTAL_REQUEST_MOVED &&
                requests[i]->got > ROOM)
                abort();
    }
    end->ops->close(end);
    (void)close(fds[1]);
}

static void feed_stream(size_t piece, const uint8_t *data, size_t size)
{
    struct crystal_feed_reader reader = {0};
    int64_t want = 0;

    while (want >= 0) {
        struct crystal_feed_message head;
        size_t part;
        void *to;

        want = crystal_feed_want(&reader, &to, NULL);
        if (want == 0) {
            if (reader.head.bytes > CRYSTAL_FEED_BYTES_MAX)
                abort();
            free(crystal_feed_take(&reader, &head));
            if (!size)
                break;
            continue;
        }
        if (want < 0 || !size)
            break;
        part = (size_t)want < piece ? (size_t)want : piece;
        part = part < size ? part : size;
        memcpy(to, data, part);
        crystal_feed_got(&reader, part);
        data += part;
        size -= part;
    }
    crystal_feed_reader_fini(&reader);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t piece;

    if (size < 2)
        return 0;
    piece = data[1] ? data[1] : 4096;
    switch (data[0] % 4) {
    case 0:
        feed_hello(data + 2, size - 2);
        break;
    case 1:
        feed_end(0, piece, data + 2, size - 2);
        break;
    case 2:
        feed_end(1, piece, data + 2, size - 2);
        break;
    default:
        feed_stream(piece, data + 2, size - 2);
    }
    return 0;
}
