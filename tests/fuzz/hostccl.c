/* Whatever peers send to hostccl's bootstrap, it stands: neighbours in the ring,
 * messages to a mailbox, check-ins at a root.
 *
 * Input: a byte for the reader (0 ring, 1 mailbox, 2 root), then for the ring three
 * bytes (ranks, this rank, bytes per rank) and what both neighbours send; for the
 * others what follows the magic on a connection.
 */
#include "config.h"

#include "replay/hostccl/gather.h"
#include "replay/hostccl/service.h"
#include "replay/hostccl/socket.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAGIC     UINT64_C(0x1234567890abcdef)
#define ANSWER_AT 32 /* of a check-in, behind magic, kind, size and four numbers */

static void ring(const uint8_t *data, size_t size)
{
    uint32_t n, crank, bytes;
    int next[2], prev[2];
    char *slices;

    if (size < 3)
        return;
    n = 1 + data[0] % 32;
    crank = data[1] % n;
    bytes = 1 + data[2];
    data += 3;
    size -= 3;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, next) ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, prev))
        abort();
    /* what does not fit into the socket is not sent; what we send is not read */
    (void)!write(next[1], data, size / 2);
    (void)!write(prev[1], data + size / 2, size - size / 2);
    (void)shutdown(next[1], SHUT_WR);
    (void)shutdown(prev[1], SHUT_WR);
    slices = calloc(n, bytes);
    if (!slices)
        abort();
    (void)hostccl_gather(next[0], prev[0], n, crank, slices, bytes, NULL, NULL);
    free(slices);
    for (int i = 0; i < 2; i++) {
        (void)close(next[i]);
        (void)close(prev[i]);
    }
}

/* Sends all to address and waits until the other side has closed. */
static void tell(const union hostccl_address *address, const uint8_t *data, size_t size)
{
    uint64_t magic = MAGIC;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char byte;

    if (fd < 0 || connect(fd, &address->any, sizeof address->v4))
        abort();
    (void)!send(fd, &magic, sizeof magic, MSG_NOSIGNAL);
    (void)!send(fd, data, size, MSG_NOSIGNAL);
    (void)shutdown(fd, SHUT_WR);
    while (recv(fd, &byte, 1, 0) > 0)
        continue;
    (void)close(fd);
}

static int listener(union hostccl_address *ret_address)
{
    union hostccl_address own;
    int fd;

    if (hostccl_address_own(&own, NULL) || hostccl_listen(&own, &fd, ret_address, NULL))
        abort();
    return fd;
}

static void mailbox(const uint8_t *data, size_t size)
{
    union hostccl_address address;
    struct hostccl_mailbox *box =
        hostccl_mailbox_create(listener(&address), MAGIC, NULL, NULL);
    char bytes[64];
    uint32_t count;

    if (!box)
        abort();
    tell(&address, data, size);
    (void)hostccl_mailbox_take(box, 1, 2, bytes, sizeof bytes, &count);
    hostccl_mailbox_destroy(box);
}

/* Nobody is dialled: the address in a check-in loses its family. */
static void root(const uint8_t *data, size_t size)
{
    union hostccl_address address;
    uint8_t *copy = malloc(size + 1);

    if (!copy || hostccl_service_root(listener(&address), MAGIC, NULL))
        abort();
    memcpy(copy, data, size);
    for (size_t at = ANSWER_AT - sizeof(uint64_t); at < ANSWER_AT - 6 && at < size;
         at++)
        copy[at] = 0;
    tell(&address, copy, size);
    free(copy);
    hostccl_service_stop();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const readers[])(const uint8_t *data, size_t size) = {ring, mailbox,
                                                                        root};

    if (size)
        readers[data[0] % 3](data + 1, size - 1);
    return 0;
}
