/* Roots: a root collects the check-ins of a communicator's ranks and tells each rank
 * its successor's ring address as soon as both are known. With several roots each
 * serves a block of ranks, and the first rank of the next block checks in here too.
 */
#include "config.h"

#include "replay/hostccl/service_internal.h"

#include "replay/hostccl/socket.h"
#include "runtime/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NRANKS_MAX (1 << 24)
#define HEAD_BYTES (sizeof(struct hostccl_handshake) + 4) /* and the message's size */

struct root {
    struct hostccl_port port; /* first */
    struct root *next;
    uint32_t rank_count;  /* whose check-ins are expected, once the first is there */
    uint32_t reply_count; /* of them are ours to answer */
    uint32_t seen_count, first;
    int32_t nranks, iroot, nroots;
    struct hostccl_checkin *ranks; /* [rank_count] by crank - first */
    bool *seen;
};

static struct root *first_root; /* the service thread's */

static void root_close(struct root *root)
{
    struct root **at = &first_root;

    while (*at != root)
        at = &(*at)->next;
    *at = root->next;
    hostccl_port_close(&root->port);
    free(root->ranks);
    free(root->seen);
    free(root);
}

/* Ranks per root: blocks of nranks / nroots, the first nranks % nroots one longer. */
static int root_begin(struct root *root, const struct hostccl_checkin *in)
{
    uint32_t n = (uint32_t)in->nranks, roots = (uint32_t)in->nroots;
    uint32_t i = (uint32_t)in->iroot;

    if (in->nranks < 1 || in->nranks > NRANKS_MAX || in->nroots < 1 ||
        in->nroots > in->nranks || in->iroot < 0 || in->iroot >= in->nroots)
        return -EPROTO;
    root->first = i * (n / roots) + (i < n % roots ? i : n % roots);
    root->reply_count = n / roots + (i < n % roots);
    root->rank_count = root->reply_count + (roots > 1);
    root->nranks = in->nranks;
    root->iroot = in->iroot;
    root->nroots = in->nroots;
    root->ranks = calloc(root->rank_count, sizeof *root->ranks);
    root->seen = calloc(root->rank_count, sizeof *root->seen);
    return root->ranks && root->seen ? 0 : -ENOMEM;
}

/* Tells the rank at index where its successor listens, if both have checked in. */
static void root_answer(const struct root *root, uint32_t index)
{
    uint32_t next = (index + 1) % root->rank_count;
    struct crystal_error err = {0};
    int fd, result;

    if (index >= root->reply_count || !root->seen[index] || !root->seen[next])
        return;
    result =
        hostccl_dial(&root->ranks[index].answer_at, root->port.magic, NULL, &fd, &err);
    if (!result) {
        result = hostccl_send_message(fd, root->ranks[next].connect.bytes,
                                      sizeof root->ranks[next].connect, NULL, &err);
        (void)close(fd);
    }
    if (result) /* that rank waits for us; its own log has nothing to say */
        crystal_log(CRYSTAL_LOG_WARNING, "hostccl",
                    "the root cannot answer rank %d: %s, ignoring",
                    root->ranks[index].crank, crystal_error_text(&err));
}

static void root_checkin(struct root *root, const struct hostccl_checkin *in)
{
    uint32_t index;

    if (!root->ranks && root_begin(root, in)) {
        crystal_log(CRYSTAL_LOG_DEBUG, "hostccl", "a check-in makes no sense");
        return;
    }
    index = (uint32_t)in->crank - root->first;
    if (in->nranks != root->nranks || in->iroot != root->iroot ||
        in->nroots != root->nroots || index >= root->rank_count || root->seen[index]) {
        crystal_log(CRYSTAL_LOG_WARNING, "hostccl",
                    "rank %d of %d checks in twice or with other numbers than the "
                    "ranks before, ignoring it",
                    in->crank, in->nranks);
        return;
    }
    root->ranks[index] = *in;
    root->seen[index] = true;
    root->seen_count++;
    root_answer(root, index);
    if (index)
        root_answer(root, index - 1);
    else if (root->rank_count > 1)
        root_answer(root, root->rank_count - 1); /* with several roots not ours */
    if (root->seen_count == root->rank_count)
        root_close(root);
}

static int parse(struct hostccl_guest *guest)
{
    uint32_t size;

    memcpy(&size, guest->bytes + sizeof(struct hostccl_handshake), sizeof size);
    if (size != sizeof(struct hostccl_checkin))
        return -EPROTO;
    guest->want = HEAD_BYTES + sizeof(struct hostccl_checkin);
    return guest->have == guest->want;
}

static void finish(struct hostccl_guest *guest)
{
    struct root *root = (struct root *)guest->port;
    struct hostccl_checkin in;

    memcpy(&in, guest->bytes + HEAD_BYTES, sizeof in);
    hostccl_guest_close(guest);
    root_checkin(root, &in);
}

void hostccl_roots_close(void)
{
    while (first_root)
        root_close(first_root);
}

static void start(struct hostccl_order *order)
{
    struct root *root = order->object;

    order->result = hostccl_port_start(&root->port, &order->err);
    if (order->result)
        return;
    root->next = first_root;
    first_root = root;
}

int hostccl_service_root(int listen_fd, uint64_t magic, struct crystal_error *err)
{
    struct root *root = calloc(1, sizeof *root);
    int result;

    if (!root)
        return crystal_error_set(err, ENOMEM, "out of memory");
    root->port.watch.fd = listen_fd;
    root->port.magic = magic;
    root->port.parse = parse;
    root->port.finish = finish;
    result = hostccl_service_do(start, root, err);
    if (result)
        free(root);
    return result;
}
