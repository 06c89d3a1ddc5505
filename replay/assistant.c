/* See assistant.h. */
#include "config.h"

#include "replay/assistant.h"

#include "replay/assist_server.h"
#include "replay/node_far.h"
#include "replay/node_links.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

struct crystal_assistant {
    struct node_far far; /* links and coordinator; nothing else of it is used */
    struct crystal_assist_server *server;
};

/* Sandbox nodes tell an assistant nothing. */
static int on_message(void *context, uint32_t from, unsigned type, const void *body,
                      uint32_t bytes)
{
    (void)context;
    (void)from;
    (void)type;
    (void)body;
    (void)bytes;
    return -EBADMSG;
}

static void on_bootstrap(void *context, int fd, uint32_t where)
{
    (void)context;
    (void)where;
    (void)close(fd); /* no virtual rank has its address here */
}

static int on_feed(void *context, int fd, uint32_t lrank)
{
    (void)context;
    (void)lrank;
    (void)close(fd); /* no rank runs here */
    return 0;
}

static int alive(void *context, struct crystal_error *err)
{
    struct crystal_assistant *a = context;

    return node_far_alive(&a->far, err);
}

static void on_wire(void *context, int fd)
{
    struct crystal_assistant *a = context;

    crystal_assist_server_add(a->server, fd);
}

static void on_clock(void *context, int64_t clock_ns)
{
    (void)context;
    (void)clock_ns; /* it is asked for */
}

static int64_t clock_of(void *context)
{
    return crystal_links_clock_ns(context);
}

struct crystal_assistant *
crystal_assistant_create(const struct crystal_assistant_config *config,
                         struct crystal_error *err)
{
    struct crystal_assistant *a = calloc(1, sizeof *a);
    const struct crystal_links_hooks hooks = {.context = a,
                                              .message = on_message,
                                              .bootstrap = on_bootstrap,
                                              .feed = on_feed,
                                              .wire = on_wire,
                                              .alive = alive,
                                              .clock = on_clock};

    if (!a) {
        (void)crystal_error_set(err, ENOMEM, "out of memory");
        crystal_links_destroy(config->links);
        return NULL;
    }
    a->far.links = config->links;
    a->far.coord = config->coord;
    a->far.listen_fd = -1;
    a->server =
        crystal_assist_server_create(clock_of, config->links, config->graph, err);
    if (!a->server ||
        crystal_links_connect(config->links, config->node, config->nodes,
                              config->node_count, config->assistant_count, &hooks,
                              err) ||
        node_far_meet(&a->far, NODE_PORT_KNOWN, err) ||
        node_far_meet(&a->far, NODE_READY, err)) {
        crystal_assistant_destroy(a);
        return NULL;
    }
    return a;
}

int crystal_assistant_is_done(struct crystal_assistant *a)
{
    return crystal_links_meet(a->far.links, NODE_RECORDS); /* it writes none */
}

int crystal_assistant_status(struct crystal_assistant *a, struct crystal_error *err)
{
    return crystal_links_status(a->far.links, err);
}

void crystal_assistant_counts(struct crystal_assistant *a,
                              struct crystal_assist_counts *ret)
{
    crystal_assist_server_counts(a->server, ret);
}

void crystal_assistant_destroy(struct crystal_assistant *a)
{
    if (!a)
        return;
    node_far_stop(&a->far); /* it speaks to the server */
    crystal_assist_server_destroy(a->server);
    node_far_fini(&a->far);
    free(a);
}
