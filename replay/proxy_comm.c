/* One communicator of the bootstrap proxy: who is in it, its roots, its place on the
 * board, and its end.
 */
#include "config.h"

#include "replay/node_links.h"
#include "replay/proxy_internal.h"

#include "runtime/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool proxy_comm_is_virtual(const struct proxy_comm *comm, uint32_t crank)
{
    return comm->is_open && crank < comm->nranks && !comm->is_real[crank];
}

uint32_t proxy_comm_real(const struct proxy_comm *comm, uint32_t crank)
{
    if (!comm->is_open || crank >= comm->nranks || !comm->is_real[crank])
        return PROXY_NONE;
    return comm->templates[crank];
}

struct proxy_comm *proxy_comm_find(struct crystal_proxy *proxy, uint64_t magic)
{
    struct proxy_comm *comm = proxy->comms;

    while (comm && (!comm->roots[0].is_known || comm->magic != magic ||
                    !comm->is_open || comm->is_failed))
        comm = comm->next;
    return comm;
}

struct proxy_comm *proxy_comm_find_root(struct crystal_proxy *proxy, uint64_t magic,
                                        uint32_t *ret_index)
{
    for (struct proxy_comm *comm = proxy->comms; comm; comm = comm->next)
        for (uint32_t i = 0; comm->is_open && !comm->is_failed && i < comm->root_count;
             i++)
            if (comm->roots[i].is_known && comm->roots[i].magic == magic) {
                *ret_index = i;
                return comm;
            }
    return NULL;
}

struct proxy_link *proxy_comm_link(struct proxy_comm *comm, uint32_t real, bool is_next)
{
    for (uint32_t i = 0; real != PROXY_NONE && i < comm->link_count; i++)
        if (comm->links[i].real == real && comm->links[i].is_next == is_next)
            return &comm->links[i];
    return NULL;
}

/* --- create --- */

static int compare_lranks(const void *a, const void *b, void *members)
{
    const uint32_t *lranks = members;
    uint32_t x = lranks[*(const uint32_t *)a], y = lranks[*(const uint32_t *)b];

    return x < y ? -1 : x > y;
}

/* Copies the members and finds the real ones. */
static int take_members(struct proxy_comm *comm, const uint32_t *members,
                        struct crystal_error *err)
{
    const struct crystal_layout *layout = comm->proxy->layout;
    bool ascending = true;
    uint32_t twice;

    for (uint32_t i = 0; i < comm->nranks; i++) {
        if (members[i] >= layout->lrank_count)
            return crystal_error_set(
                err, EINVAL, "communicator '%s': member %u of a job of %u ranks",
                comm->name, members[i], layout->lrank_count);
        comm->members[i] = members[i];
        comm->order[i] = i;
        if (i && members[i] <= members[i - 1])
            ascending = false;
        if (crystal_layout_is_sandbox(layout, members[i])) {
            comm->is_real[i] = 1;
            comm->real_count++;
        }
    }
    comm->members_hash = crystal_nccl_hash(members, 4 * (size_t)comm->nranks);
    if (ascending)
        return 0;
    qsort_r(comm->order, comm->nranks, sizeof *comm->order, compare_lranks,
            comm->members);
    for (uint32_t i = 1; i < comm->nranks; i++) {
        twice = comm->members[comm->order[i]];
        if (twice == comm->members[comm->order[i - 1]])
            return crystal_error_set(err, EINVAL,
                                     "communicator '%s': member %u stands in it twice",
                                     comm->name, twice);
    }
    return 0;
}

static uint32_t find_graph_comm(const struct proxy_comm *comm)
{
    const struct crystal_proxy *proxy = comm->proxy;
    uint32_t nth = 0;

    if (!proxy->graph)
        return UINT32_MAX;
    for (const struct proxy_comm *c = proxy->comms; c; c = c->next)
        if (c->roots[0].is_known && c->nranks == comm->nranks &&
            c->members_hash == comm->members_hash)
            nth++;
    return crystal_graph_comm_find(proxy->graph, comm->name, comm->nranks,
                                   comm->members, nth);
}

static int allocate(struct proxy_comm *comm)
{
    uint32_t n = comm->nranks, per_node = comm->proxy->layout->ranks_per_node;

    comm->members = malloc(4 * (size_t)n);
    comm->order = malloc(4 * (size_t)n);
    comm->templates = malloc(4 * (size_t)n);
    comm->wanted = malloc(4 * (size_t)n);
    comm->is_real = calloc(n, 1);
    comm->node.ranks = malloc(4 * (size_t)per_node);
    comm->node.by_local = malloc(4 * (size_t)per_node);
    comm->node.node = PROXY_NONE;
    return comm->members && comm->order && comm->templates && comm->wanted &&
                   comm->is_real && comm->node.ranks && comm->node.by_local
               ? 0
               : -ENOMEM;
}

static int build(struct proxy_comm *comm, const uint32_t *members,
                 struct crystal_error *err)
{
    if (allocate(comm))
        return crystal_error_set(err, ENOMEM, "communicator '%s': out of memory",
                                 comm->name);
    if (take_members(comm, members, err))
        return -err->code;
    if (comm->real_count == 0 || comm->real_count == comm->nranks)
        return crystal_error_set(
            err, EINVAL,
            "communicator '%s': %u of its %u members are real; the "
            "proxy answers where some are and some are not",
            comm->name, comm->real_count, comm->nranks);
    comm->reals = calloc(comm->real_count, sizeof *comm->reals);
    comm->links = calloc(2 * (size_t)comm->real_count, sizeof *comm->links);
    if (!comm->reals || !comm->links)
        return crystal_error_set(err, ENOMEM, "communicator '%s': out of memory",
                                 comm->name);
    if (proxy_comm_choose_templates(comm))
        return crystal_error_set(err, ENOMEM, "communicator '%s': out of memory",
                                 comm->name);
    comm->open_count = comm->link_count;
    return 0;
}

/* Divides the ranks among the roots as NCCL does (2.28.9: src/bootstrap.cc,
 * rootIdFromRank). */
static int make_roots(struct proxy_comm *comm)
{
    const uint32_t each = comm->nranks / comm->root_count;
    const uint32_t more = comm->nranks % comm->root_count;
    uint32_t first = 0;

    comm->roots = calloc(comm->root_count, sizeof *comm->roots);
    if (!comm->roots)
        return -ENOMEM;
    for (uint32_t i = 0; i < comm->root_count; i++) {
        comm->roots[i].first = first;
        comm->roots[i].count = each + (i < more);
        first += comm->roots[i].count;
    }
    return 0;
}

/* Whether this node runs any of them. */
static bool has_local(const struct proxy_comm *comm)
{
    const struct crystal_proxy *proxy = comm->proxy;
    uint32_t count = crystal_links_count(proxy->links), i = 0;

    while (i < comm->nranks &&
           crystal_layout_node_of(proxy->layout, count, comm->members[i]) !=
               crystal_links_node(proxy->links))
        i++;
    return i < comm->nranks;
}

/* err is not NULL. */
struct proxy_comm *proxy_comm_create(struct crystal_proxy *proxy, const char *name,
                                     uint32_t root_count, uint32_t nranks,
                                     const uint32_t *members, struct crystal_error *err)
{
    struct proxy_comm *comm;

    if (nranks < 2 || nranks > PROXY_CRANK_MAX || nranks > proxy->layout->lrank_count) {
        (void)crystal_error_set(err, EINVAL,
                                "communicator '%s': %u members in a job of %u ranks",
                                name, nranks, proxy->layout->lrank_count);
        return NULL;
    }
    comm = calloc(1, sizeof *comm);
    if (comm) {
        comm->proxy = proxy;
        (void)snprintf(comm->name, sizeof comm->name, "%s", name);
        comm->nranks = nranks;
        comm->root_count = root_count;
        comm->owner = crystal_proxy_owner(proxy, nranks, members);
        comm->is_open = true;
        comm->layout = proxy->messages;
    }
    if (!comm || make_roots(comm)) {
        (void)crystal_error_set(err, ENOMEM, "communicator '%s': out of memory", name);
        proxy_comm_destroy(comm);
        return NULL;
    }
    if (build(comm, members, err)) {
        proxy_comm_destroy(comm);
        return NULL;
    }
    *proxy->comms_end = comm;
    proxy->comms_end = &comm->next;
    return comm;
}

void proxy_comm_remove(struct proxy_comm *comm)
{
    struct crystal_proxy *proxy = comm->proxy;
    struct proxy_comm **at = &proxy->comms;

    while (*at != comm)
        at = &(*at)->next;
    *at = comm->next;
    if (!*at)
        proxy->comms_end = at;
    proxy_comm_destroy(comm);
}

static int put_on_board(struct proxy_comm *comm, uint64_t comm_id, uint64_t magic,
                        const char *how, struct crystal_error *err)
{
    if (has_local(comm) &&
        crystal_board_comm_add(comm->proxy->board, comm_id, comm->name,
                               find_graph_comm(comm), comm->nranks, comm->members,
                               comm->is_real, err)) {
        crystal_error_prefix(err, "communicator '%s'", comm->name);
        return -err->code;
    }
    comm->comm_id = comm_id;
    comm->magic = magic;
    crystal_board_comm_await_rings(comm->proxy->board, comm_id);
    crystal_log(CRYSTAL_LOG_DEBUG, "proxy",
                "communicator '%s': %u of %u ranks real, %s", comm->name,
                comm->real_count, comm->nranks,
                proxy_comm_is_far(comm) ? "another node answers" : how);
    return 0;
}

int proxy_comm_child(struct proxy_comm *comm, uint64_t comm_id,
                     struct crystal_error *err)
{
    struct proxy_root *root = &comm->roots[0];
    uint32_t same;

    if (proxy_comm_find_root(comm->proxy, comm_id, &same))
        return crystal_error_set(err, EEXIST,
                                 "communicator '%s': another child has the same number "
                                 "(NCCL numbers no shrunk ones); destroy it before",
                                 comm->name);
    if (put_on_board(comm, comm_id, comm_id, "made of another", err))
        return -err->code;
    root->magic = comm_id;
    root->is_known = root->is_forged = true; /* nobody has to check in */
    return 0;
}

int proxy_comm_root(struct proxy_comm *comm, uint32_t index,
                    const uint8_t id[NCCL_UNIQUE_ID_BYTES], bool is_forged,
                    struct crystal_error *err)
{
    struct proxy_root *root = &comm->roots[index];
    const uint64_t magic = proxy_get_u64(id, 0);
    uint32_t same;

    if (proxy_comm_find_root(comm->proxy, magic, &same))
        return crystal_error_set(err, EEXIST,
                                 "communicator '%s': its id has the magic of another "
                                 "communicator; unset NCCL_COMM_ID",
                                 comm->name);
    memcpy(root->id, id, sizeof root->id);
    root->magic = magic;
    root->is_forged = is_forged;
    /* root 0 names the communicator */
    if (!index && put_on_board(comm, crystal_nccl_hash(root->id, NCCL_UNIQUE_ID_BYTES),
                               magic, is_forged ? "id made here" : "joined", err))
        return -err->code;
    root->is_known = true;
    return 0;
}

/* --- close --- */

static void free_arrays(struct proxy_comm *comm)
{
    proxy_gathers_free(comm);
    free(comm->members);
    free(comm->order);
    free(comm->templates);
    free(comm->wanted);
    free(comm->is_real);
    free(comm->node.ranks);
    free(comm->node.by_local);
    free(comm->reals);
    free(comm->links);
    free(comm->parent_cranks);
    comm->members = comm->order = comm->templates = comm->wanted = NULL;
    comm->parent_cranks = NULL;
    comm->is_real = NULL;
    comm->node.ranks = comm->node.by_local = NULL;
    comm->reals = NULL;
    comm->links = NULL;
}

void proxy_comm_destroy(struct proxy_comm *comm)
{
    if (!comm)
        return;
    free_arrays(comm);
    free(comm->roots);
    free(comm);
}

static void close_connections(struct proxy_comm *comm)
{
    struct proxy_conn *conn = comm->proxy->first;

    while (conn) {
        struct proxy_conn *next = conn->next;

        if (conn->comm == comm)
            proxy_conn_close(conn);
        conn = next;
    }
}

/* A real rank between real ranks has no link here, so nobody tells when it closes. */
static bool has_unseen_real(struct proxy_comm *comm)
{
    for (uint32_t i = 0; i < comm->real_count; i++)
        if (!proxy_comm_link(comm, i, true) && !proxy_comm_link(comm, i, false))
            return true;
    return false;
}

void proxy_comm_close_if_done(struct proxy_comm *comm)
{
    if (!comm->is_open || comm->open_count || comm->checkin_flying ||
        !proxy_root_is_done(comm))
        return;
    comm->is_left = true;
    if (has_unseen_real(comm))
        return; /* it may still ask for connections: we answer to the end */
    comm->is_open = false;
    close_connections(comm);
    free_arrays(comm);
    comm->link_count = 0;
    crystal_log(CRYSTAL_LOG_DEBUG, "proxy", "communicator '%s': closed", comm->name);
}

static void fail(struct proxy_comm *comm, int code, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));
static void fail(struct proxy_comm *comm, int code, const char *format, va_list args)
{
    struct crystal_proxy *proxy = comm->proxy;
    char text[CRYSTAL_ERROR_TEXT_BYTES];

    if (comm->is_failed || proxy->is_stopping)
        return;
    comm->is_failed = true;
    (void)vsnprintf(text, sizeof text, format, args); /* cut where too long */
    if (!proxy->failure.code)
        (void)crystal_error_set(&proxy->failure, code,
                                "communicator '%s' (%u of %u "
                                "ranks real): %s",
                                comm->name, comm->real_count, comm->nranks, text);
    crystal_board_abort(proxy->board, "%s", proxy->failure.text);
    close_connections(comm);
}

void proxy_comm_fail(struct proxy_comm *comm, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fail(comm, EPROTO, format, args);
    va_end(args);
}

void proxy_comm_lose(struct proxy_comm *comm, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fail(comm, ECONNRESET, format, args);
    va_end(args);
}
