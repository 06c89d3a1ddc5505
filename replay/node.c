/* The service of one sandbox node: directory, board, bootstrap proxy and, where virtual
 * ranks keep time, the timeline's driver; made and unmade in that order. Ids arrive on
 * the coordinator client's reader thread. */
#include "config.h"

#include "replay/node.h"

#include "replay/board.h"
#include "replay/driver.h"
#include "replay/node_directory.h"
#include "replay/node_far.h"
#include "replay/node_links.h"
#include "replay/proxy.h"
#include "replay/rank_watch.h"
#include "replay/roll.h"
#include "runtime/graph.h"
#include "runtime/outfile.h"
#include "runtime/profile_file.h"
#include "runtime/store_rules.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COMM_CAPACITY 16384U /* communicators with virtual members in one run */

struct crystal_node {
    const struct crystal_layout *layout;
    struct crystal_client *coord; /* NULL without one */
    struct crystal_node_directory directory;
    struct crystal_graph *graph; /* NULL without one */
    struct crystal_board *board;
    struct crystal_roll *roll;
    struct crystal_rank_watch *watch;
    struct crystal_driver *driver; /* NULL unless timed */
    struct crystal_proxy *proxy;
    struct node_far far; /* the other nodes */
    char board_path[PATH_MAX];
};

/* Where the name is the key of one of several roots' ids: which one, of how many, and
 * the key of the first, which names the communicator. */
static void root_of(const char *key, uint32_t nranks, uint32_t *ret_index,
                    uint32_t *ret_count, char *ret_name, size_t name_bytes)
{
    struct crystal_store_match m;
    const char *number;

    *ret_index = 0;
    *ret_count = 1;
    (void)snprintf(ret_name, name_bytes, "%s", key);
    crystal_store_rules_match(key, strlen(key), &m);
    number = strrchr(key, ':');
    if (m.effect != CRYSTAL_STORE_ID_OF_ROOT || !number)
        return;
    *ret_index = m.number;
    *ret_count =
        (nranks + CRYSTAL_STORE_RANKS_PER_ROOT - 1) / CRYSTAL_STORE_RANKS_PER_ROOT;
    (void)snprintf(ret_name, name_bytes, "%.*s:0", (int)(number - key), key);
}

int node_comm_put(struct crystal_proxy *proxy, int forge,
                  uint8_t id[NCCL_UNIQUE_ID_BYTES], const char *name, uint32_t nranks,
                  const uint32_t *members, struct crystal_error *err)
{
    char first[CRYSTAL_BOARD_NAME];
    uint32_t index, count;

    root_of(name, nranks, &index, &count, first, sizeof first);
    return forge ? crystal_proxy_forge_root(proxy, first, index, count, nranks, members,
                                            id, err)
                 : crystal_proxy_join_root(proxy, id, first, index, count, nranks,
                                           members, err);
}

int crystal_node_comm(struct crystal_node *node, int forge,
                      uint8_t id[NCCL_UNIQUE_ID_BYTES], const char *name,
                      uint32_t nranks, const uint32_t *members,
                      struct crystal_error *err)
{
    int code = 0;

    if (!nranks)
        return crystal_error_set(err, EINVAL,
                                 "communicator '%s': its members are not known; load "
                                 "contrib/pytorch, which publishes them, or name them "
                                 "under 'groups:' in crystal.yaml",
                                 name);
    /* no rank may come to another node with an id that is not known there: an id that
     * is made here is told before anybody has it, another before the virtual ranks
     * check in, without which no rank gets on */
    if (forge)
        code = node_comm_put(node->proxy, 1, id, name, nranks, members, err);
    if (!code && crystal_proxy_owner(node->proxy, nranks, members) ==
                     crystal_links_node(node->far.links))
        code = node_far_comm(&node->far, id, name, nranks, members, err);
    if (!code && !forge)
        code = node_comm_put(node->proxy, 0, id, name, nranks, members, err);
    return code;
}

int crystal_node_group(struct crystal_node *node, uint32_t nranks,
                       const uint32_t *members, struct crystal_error *err)
{
    return crystal_proxy_group(node->proxy, nranks, members, err);
}

static int on_comm_id(void *context, int forge, struct crystal_msg_comm_id *msg,
                      const char *name, const uint32_t *members,
                      struct crystal_error *err)
{
    return crystal_node_comm(context, forge, msg->id, name, msg->member_count, members,
                             err);
}

/* The software cost per message that plan calibrated; 0 without a profile. */
static int read_overhead(const char *profile_path, uint64_t *ret_ns,
                         struct crystal_error *err)
{
    struct crystal_profile *profile;

    *ret_ns = 0;
    if (!profile_path)
        return 0;
    profile = crystal_profile_open(profile_path, err);
    if (!profile)
        return -EIO;
    *ret_ns = crystal_profile_head(profile)->overhead_ns;
    crystal_profile_close(profile);
    return 0;
}

static int make_board(struct crystal_node *node,
                      const struct crystal_node_config *config,
                      struct crystal_error *err)
{
    const struct crystal_layout *layout = config->layout;
    struct crystal_board_config board = {
        .directory = node->directory.path,
        .job_hash = layout->fingerprint,
        .lrank_count = layout->lrank_count,
        .ranks_per_node = layout->ranks_per_node,
        .mode = config->timed ? CRYSTAL_BOARD_TIMED : CRYSTAL_BOARD_IMMEDIATE,
        .wire_bytes_per_s = layout->wire_bytes_per_s,
        .wire_latency_ns = layout->wire_latency_ns,
        .comm_capacity = COMM_CAPACITY,
        .payload_all = layout->payload_all,
        .graph_path = config->graph_path,
    };

    if (read_overhead(config->profile_path, &board.message_overhead_ns, err))
        return -EIO;
    node->board = crystal_board_create(&board, err);
    if (!node->board)
        return -EIO;
    (void)snprintf(node->board_path, sizeof node->board_path, "%s/board",
                   node->directory.path);
    return 0;
}

static int make_driver(struct crystal_node *node,
                       const struct crystal_node_config *config,
                       struct crystal_error *err)
{
    const struct crystal_driver_config driver = {.board = node->board,
                                                 .layout = config->layout,
                                                 .links = node->far.links,
                                                 .graph_path = config->graph_path,
                                                 .profile_path = config->profile_path};

    node->driver = crystal_driver_create(&driver, err);
    atomic_store(&node->far.driver, node->driver);
    return node->driver ? 0 : -EIO;
}

static int make_proxy(struct crystal_node *node, struct crystal_error *err)
{
    const struct crystal_proxy_config proxy = {.board = node->board,
                                               .layout = node->layout,
                                               .graph = node->graph,
                                               .links = node->far.links,
                                               .listen_fd = node->far.listen_fd,
                                               .port = node->far.port};

    node->proxy = crystal_proxy_create(&proxy, err);
    atomic_store(&node->far.proxy, node->proxy);
    if (!node->proxy)
        return -EIO;
    node->far.listen_fd = -1; /* the proxy's now */
    return 0;
}

struct crystal_node *crystal_node_create(const struct crystal_node_config *config,
                                         struct crystal_error *err)
{
    struct crystal_node *node = calloc(1, sizeof *node);

    if (!node) {
        (void)crystal_error_set(err, ENOMEM, "node: out of memory");
        crystal_links_destroy(config->links);
        return NULL;
    }
    node->layout = config->layout;
    node->coord = config->coord;
    node->directory.lock_fd = -1;
    node->far.listen_fd = -1;
    node->far.links = config->links;
    if (config->graph_path) {
        node->graph = crystal_graph_open(config->graph_path, err);
        if (!node->graph)
            goto err_node;
    }
    if (crystal_node_directory_create(&node->directory, err) ||
        make_board(node, config, err) ||
        node_far_connect(&node->far, config, node->board, err))
        goto err_node;
    node->roll = crystal_roll_create(node->directory.path, err);
    if (!node->roll)
        goto err_node;
    node->watch =
        crystal_rank_watch_create(node->roll, node->board, config->layout,
                                  crystal_share_of(config->layout->sandbox_count,
                                                   crystal_links_node(config->links),
                                                   crystal_links_count(config->links)));
    if (!node->watch) {
        (void)crystal_error_set(err, ENOMEM, "node: out of memory");
        goto err_node;
    }
    if (config->timed && make_driver(node, config, err))
        goto err_node;
    if (make_proxy(node, err))
        goto err_node;
    if (config->coord)
        crystal_client_on_comm_id(config->coord, on_comm_id, node);
    if (node_far_meet(&node->far, NODE_READY, err))
        goto err_node;
    return node;

err_node:
    crystal_node_destroy(node);
    return NULL;
}

const char *crystal_node_directory(const struct crystal_node *node)
{
    return node->directory.path;
}

const char *crystal_node_board_path(const struct crystal_node *node)
{
    return node->board_path;
}

int crystal_node_status(struct crystal_node *node, struct crystal_error *err)
{
    const struct crystal_board_header *head = crystal_board_header(node->board);
    char text[sizeof head->abort_text];
    struct crystal_error proxy = {0}, lost = {0};

    if (crystal_links_status(node->far.links, &lost))
        crystal_node_abort(node, crystal_error_text(&lost));
    if (!atomic_load_explicit(&head->abort_flag, memory_order_acquire))
        return 0;
    (void)crystal_proxy_status(node->proxy, &proxy);
    memcpy(text, head->abort_text, sizeof text);
    text[sizeof text - 1] = '\0';
    /* the board has what was the first */
    return crystal_error_set(
        err, strncmp(text, proxy.text, strlen(text)) == 0 ? proxy.code : ECANCELED,
        "%s", text);
}

void crystal_node_ended(struct crystal_node *node, uint32_t lrank)
{
    crystal_rank_watch_ended(node->watch, lrank);
}

int crystal_node_look(struct crystal_node *node, char *notice, size_t notice_bytes,
                      struct crystal_error *err)
{
    return crystal_rank_watch_look(node->watch, notice, notice_bytes, err);
}

int crystal_node_has_joined(struct crystal_node *node, uint32_t lrank)
{
    return crystal_roll_has_joined(node->roll, lrank);
}

void crystal_node_abort(struct crystal_node *node, const char *sentence)
{
    crystal_board_abort(node->board, "%s", sentence);
}

struct crystal_roll_cause crystal_node_cause(struct crystal_node *node)
{
    return crystal_roll_cause(node->roll);
}

int crystal_node_has_seen(struct crystal_node *node, uint32_t lrank)
{
    return crystal_roll_has_seen(node->roll, lrank);
}

int crystal_node_is_done(struct crystal_node *node)
{
    return crystal_links_meet(node->far.links, NODE_DONE);
}

int crystal_node_has_records(struct crystal_node *node)
{
    return crystal_links_meet(node->far.links, NODE_RECORDS);
}

void crystal_node_destroy(struct crystal_node *node)
{
    if (!node)
        return;
    if (node->coord && node->proxy)
        crystal_client_on_comm_id(node->coord, NULL, NULL);
    node_far_stop(&node->far); /* it speaks to both of the next */
    crystal_proxy_destroy(node->proxy);
    crystal_driver_destroy(node->driver);
    node_far_fini(&node->far);
    crystal_rank_watch_destroy(node->watch);
    crystal_roll_destroy(node->roll);
    crystal_board_destroy(node->board);
    crystal_node_directory_remove(&node->directory);
    crystal_graph_close(node->graph);
    free(node);
}

/* --- run.yaml --- */

static void print_quoted(FILE *out, const char *text)
{
    (void)putc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c < ' ' || *c == 127)
            fprintf(out, "\\x%02x", *c);
        else
            (void)putc(*c, out);
    (void)putc('"', out);
}

struct comm_printer {
    FILE *out;
    unsigned count;
};

static void print_comm(void *context, const struct crystal_proxy_comm_info *info)
{
    struct comm_printer *printer = context;
    FILE *out = printer->out;

    fprintf(out, "  \"%u\":\n    name: ", printer->count++);
    print_quoted(out, info->name);
    fprintf(out, "\n    id: \"%016" PRIx64 "\"\n", info->comm_id);
    fprintf(out, "    ranks: %u\n    real: %u\n    virtual: %u\n", info->nranks,
            info->real_count, info->nranks - info->real_count);
    fprintf(out, "    origin: %s\n    open: %s\n",
            info->is_child    ? "split"
            : info->is_forged ? "forged"
                              : "joined",
            info->is_open ? "true" : "false");
    if (info->setup_ns)
        fprintf(out, "    setup_s: %.6f\n", (double)info->setup_ns / 1e9);
    else
        fprintf(out, "    setup_s: .nan\n");
    fprintf(out, "    connections: %" PRIu64 "\n", info->connect_count);
}

static void count_comm(void *context, const struct crystal_proxy_comm_info *info)
{
    (void)info;
    ++*(unsigned *)context;
}

static const char *timeline_name(uint32_t state)
{
    static const char *const names[] = {"setup", "follows", "finished", "stuck"};

    return state < sizeof names / sizeof names[0] ? names[state] : "unknown";
}

static void print_transport(const struct crystal_links *links, FILE *out)
{
    const uint32_t assistants = crystal_links_assistants(links);
    const char *between = crystal_links_count(links) > 1 ? "TCP between nodes" : "";

    fprintf(out, "wire:\n  kind: %s\n  transport: host memory, ",
            assistants ? "real" : "modelled");
    if (assistants)
        fprintf(out, "%s%u assistant node%s\n",
                *between ? "TCP between nodes and to " : "TCP to ", assistants,
                assistants == 1 ? "" : "s");
    else
        fprintf(out, "%s\n", *between ? between : "no network");
}

static void print_run(struct crystal_node *node, FILE *out)
{
    struct crystal_board_header *head = crystal_board_header(node->board);
    struct comm_printer printer = {.out = out};
    struct crystal_proxy_counters counters;
    struct crystal_error failure = {0};
    unsigned comm_count = 0;

    crystal_proxy_counters(node->proxy, &counters);
    crystal_proxy_each(node->proxy, count_comm, &comm_count);
    (void)crystal_node_status(node, &failure);
    fprintf(out, "# What one run of the sandbox met; written by scrystal agent.\n");
    fprintf(out, "version: 1\nmode: %s\nlogical_ranks: %u\nsandbox_ranks: %u\n",
            head->mode == CRYSTAL_BOARD_TIMED ? "timed" : "immediate",
            head->lrank_count, node->layout->sandbox_count);
    fprintf(out, "nodes: %u\n", crystal_links_count(node->far.links));
    fprintf(out, "timeline: %s\n", timeline_name(atomic_load(&head->timeline)));
    print_transport(node->far.links, out);
    fprintf(out,
            "  bytes_per_s: %" PRIu64 "\n  latency_ns: %" PRIu64
            "\n  message_overhead_ns: %" PRIu64 "\n",
            head->wire_bytes_per_s, head->wire_latency_ns, head->message_overhead_ns);
    fprintf(out,
            "counters:\n  standin_ops: %" PRIu64 "\n  standin_bytes: %" PRIu64
            "\n  late_count: %" PRIu64 "\n  late_max_ns: %" PRIu64
            "\n  payload_late_count: %" PRIu64 "\n",
            atomic_load(&head->standin_ops), atomic_load(&head->standin_bytes),
            atomic_load(&head->late_count), atomic_load(&head->late_max_ns),
            atomic_load(&head->payload_late_count));
    fprintf(out,
            "  dropped_connections: %" PRIu64 "\n  checkins: %" PRIu64
            "\n  real_only_communicators: %" PRIu64 "\n",
            counters.dropped_count, counters.checkin_count, counters.real_only_count);
    fprintf(out, "communicators:\n  count: %u\n", comm_count);
    crystal_proxy_each(node->proxy, print_comm, &printer);
    fprintf(out, "failure: ");
    print_quoted(out, failure.text);
    (void)putc('\n', out);
}

int crystal_node_run_yaml(struct crystal_node *node, const char *path,
                          struct crystal_error *err)
{
    struct crystal_outfile f;
    int code = crystal_outfile_open(&f, path, CRYSTAL_OUTFILE_PRIVATE, err);

    if (code)
        return code;
    print_run(node, f.stream);
    return crystal_outfile_close(&f, 0, err);
}
