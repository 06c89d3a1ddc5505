/* Whatever comes on a connection of the real wire, both ends stand: requests to an
 * assistant in any pieces, answers to the net plugin's end of a receive and of a send.
 *
 * Input: one byte says which end, one how many bytes a piece has, the rest is what
 * arrives.
 */
#include "config.h"

#include "replay/assist_message.h"
#include "replay/assist_server.h"
#include "replay/net.h"
#include "replay/net_assist.h"
#include "replay/net_wait.h"

#include "tests/fuzz/net_context.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define OPEN        3 /* requests of the plugin's end, of this many bytes: */
#define ASKED_BYTES 1000U

static int64_t clock_of(void *context)
{
    (void)context;
    return INT64_C(1) << 40;
}

/* Takes what there is; 0: the other side is through. */
static ssize_t drain(int fd, int flags)
{
    static unsigned char sink[65536];

    return recv(fd, sink, sizeof sink, flags);
}

static void requests(size_t piece, const uint8_t *data, size_t size)
{
    struct crystal_assist_server *server =
        crystal_assist_server_create(clock_of, NULL, NULL, NULL);
    int fds[2];

    if (!server || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        abort();
    crystal_assist_server_add(server, fds[0]);
    while (size) {
        ssize_t wrote = send(fds[1], data, size < piece ? size : piece,
                             MSG_NOSIGNAL | MSG_DONTWAIT);

        if (wrote <= 0)
            break; /* it reads no more, or sends a GiB first */
        data += wrote;
        size -= (size_t)wrote;
        (void)drain(fds[1], MSG_DONTWAIT);
    }
    (void)shutdown(fds[1], SHUT_WR);
    while (drain(fds[1], 0) > 0)
        continue;
    (void)close(fds[1]);
    crystal_assist_server_destroy(server);
}

static void answers(int is_send, size_t piece, const uint8_t *data, size_t size)
{
    static const unsigned char payload[ASKED_BYTES];
    static unsigned char place[ASKED_BYTES];
    const struct crystal_assist_ask ask = {
        .bytes = ASKED_BYTES, .given = payload, .to = place};
    const struct crystal_net_module *module = net_context()->comm->module;
    struct crystal_assist *end;
    uint64_t at_ns;
    int fds[2], code = 0, open = OPEN;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0 ||
        !(end = crystal_assist_create(module, fds[0], NULL)))
        abort();
    for (int i = 0; i < OPEN; i++)
        if (is_send ? crystal_assist_give(end, payload, sizeof payload, NULL, NULL) != 1
                    : crystal_assist_ask(end, &ask, NULL) != 0)
            abort();
    while (size && code >= 0) {
        ssize_t wrote = send(fds[1], data, size < piece ? size : piece,
                             MSG_NOSIGNAL | MSG_DONTWAIT);

        if (wrote <= 0)
            break;
        data += wrote;
        size -= (size_t)wrote;
        (void)crystal_net_wait(0);
        while ((code = crystal_assist_answer(end, &at_ns, NULL)) > 0)
            if (open-- == 0)
                abort(); /* more answers than requests */
    }
    if (code < 0 && code != -EBADMSG)
        abort();
    crystal_assist_close(end);
    (void)close(fds[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t piece;

    if (size < 2)
        return 0;
    piece = data[1] ? data[1] : 4096;
    if (data[0] % 3 == 0)
        requests(piece, data + 2, size - 2);
    else
        answers(data[0] % 3 == 2, piece, data + 2, size - 2);
    return 0;
}
