/* The coordinator's framing and capture's exchange take any bytes from the ranks. The
 * request number of a message says which of four live ranks it comes from. */
#include "config.h"

#include "runtime/coord_link.h"
#include "runtime/exchange.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define N 16

static uint32_t live[] = {0, 1, 2, 3};
static const uint32_t world[N] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static struct crystal_layout layout = {.lrank_count = N,
                                       .ranks_per_node = 4,
                                       .live_mode = CRYSTAL_LIVE_REPLICA,
                                       .live = live,
                                       .live_count = 4};
static struct crystal_exchange *exchange;
static struct crystal_link *rank_link;
static int closed;

static void comm_ready(void *context, uint32_t lrank, uint32_t request, uint32_t comm,
                       const char *name)
{
    (void)context;
    (void)lrank;
    crystal_link_send(rank_link, CRYSTAL_MSG_COMM_READY, request + comm, name,
                      strlen(name));
}

static void result(void *context, uint32_t lrank, uint32_t request,
                   const struct crystal_slice *results, uint32_t count)
{
    (void)context;
    (void)lrank;
    crystal_link_send_results(rank_link, request, results, count);
}

static void ignore(void *context, const char *text)
{
    (void)context;
    (void)text;
}

static void exchange_renew(void)
{
    static const struct crystal_exchange_hooks hooks = {NULL, comm_ready, NULL,
                                                        NULL, NULL,       result};
    static const uint8_t id[NCCL_UNIQUE_ID_BYTES] = "known";

    crystal_exchange_destroy(exchange);
    exchange = crystal_exchange_create(&layout, &hooks);
    if (!exchange || crystal_exchange_learn(exchange, id, "/world", world, N, NULL) < 0)
        abort();
    for (uint32_t i = 0; i < 4; i++)
        (void)crystal_exchange_join(exchange, i);
}

static int message(void *context, struct crystal_link *from,
                   const struct crystal_message_head *head, struct crystal_blob *body)
{
    struct crystal_msg_comm_init init;
    struct crystal_error err = {0};
    uint32_t lrank = head->request % 4;
    char text[200];
    int rc = 0;

    (void)context;
    (void)from;
    if (head->type == CRYSTAL_MSG_COMM_INIT && body->bytes == sizeof init) {
        memcpy(&init, body->data, sizeof init);
        rc = crystal_exchange_comm_init(exchange, lrank, head->request, &init, &err);
    } else if (head->type == CRYSTAL_MSG_OPS) {
        rc = crystal_exchange_ops(exchange, lrank, head->request, body, &err);
    } else if (head->type == CRYSTAL_MSG_WAITING) {
        crystal_exchange_waiting(exchange, lrank, head->request);
    } else if (head->type == CRYSTAL_MSG_BYE) {
        crystal_exchange_leave(exchange, lrank);
    } else {
        return -EBADMSG;
    }
    if (rc < 0) {
        if (!err.text[0])
            abort(); /* every failure has its sentence */
        exchange_renew();
        return 0;
    }
    crystal_exchange_describe(exchange, lrank, text, sizeof text);
    (void)crystal_exchange_state(exchange, lrank);
    crystal_exchange_each_unreceived(exchange, ignore, NULL);
    return 0;
}

static void on_closed(void *context, struct crystal_link *from)
{
    (void)context;
    crystal_link_destroy(from);
    closed = 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct crystal_link_hooks hooks = {NULL, message, on_closed};
    struct crystal_loop *loop = crystal_loop_create(NULL);
    static uint8_t replies[65536];
    int pair[2];

    if (!layout.grid.count &&
        crystal_grid_parse("tp=2,pp=2,dp=4", &layout.grid, NULL) < 0)
        abort();
    if (!loop || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) < 0)
        abort();
    closed = 0;
    exchange_renew();
    rank_link = crystal_link_create(loop, pair[0], 1 << 20, &hooks, NULL);
    if (!rank_link)
        abort();
    for (size_t at = 0; at < size && !closed;) {
        size_t part = 1 + (size_t)data[at] * 37;
        ssize_t n;

        if (part > size - at)
            part = size - at;
        n = send(pair[1], data + at, part, MSG_NOSIGNAL);
        if (n <= 0)
            break;
        at += (size_t)n;
        for (int i = 0; i < 2 && !closed; i++)
            (void)crystal_loop_step(loop, 0, NULL);
        while (recv(pair[1], replies, sizeof replies, 0) > 0)
            continue;
    }
    if (!closed)
        crystal_link_destroy(rank_link);
    (void)close(pair[1]);
    crystal_exchange_destroy(exchange);
    exchange = NULL;
    crystal_loop_destroy(loop);
    return 0;
}
