/* Communicators that are made of another: ncclCommSplit and ncclCommShrink.
 *
 * Facts of NCCL 2.28.9 (src/init.cc, commGetSplitInfo, getParentRanks;
 * src/bootstrap.cc, bootstrapSplit). ncclCommSplit begins with an all-gather of {int
 * key, int colour} in the parent; ncclCommShrink has no such thing, its list is an
 * argument. Then each member tells the one in front of it, by a message through the
 * parent, where its ring listener is (128 bytes, as the root passes it on), and the
 * child's own bootstrap goes on as that of any other communicator. The child's magic,
 * which is also the number by which plugins know it, is a hash of the parent's, of how
 * many splits the parent has had (0: shrunk) and of the colour (0: shrunk).
 */
#include "config.h"

#include "replay/node_links.h"
#include "replay/proxy_internal.h"
#include "runtime/message.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct split_parent parent_of(const struct proxy_comm *comm)
{
    return (struct split_parent){.layout = comm->proxy->layout,
                                 .graph = comm->proxy->graph,
                                 .told = &comm->proxy->told,
                                 .name = comm->name,
                                 .nranks = comm->nranks,
                                 .members = comm->members};
}

static uint32_t count_real(const struct proxy_comm *comm, uint32_t count,
                           const uint32_t *cranks)
{
    uint32_t real = 0;

    for (uint32_t i = 0; i < count; i++)
        real += comm->is_real[cranks[i]];
    return real;
}

/* Every virtual member tells the real one in front of it where it is reached. */
static void meet_reals(const struct proxy_comm *child)
{
    struct proxy_comm *parent = child->parent;

    for (uint32_t i = 0; i < child->real_count && !parent->is_failed; i++) {
        const uint32_t crank = child->reals[i].crank;
        const uint32_t next = (crank + 1) % child->nranks;
        uint8_t info[PROXY_CONNECT_BYTES] = {0};

        if (child->is_real[next])
            continue;
        proxy_address(child->proxy, PROXY_PORT_RING, next, info);
        proxy_connect_send(parent, child->parent_cranks[next],
                           proxy_comm_real(parent, child->parent_cranks[crank]),
                           PROXY_TAG_SPLIT, info, sizeof info);
    }
}

/* The other nodes need it on their boards, and to hand on what comes for it. */
static int tell_nodes(const struct proxy_comm *child, struct crystal_error *err)
{
    const struct crystal_link_child head = {.comm_id = child->comm_id,
                                            .name_bytes = (uint32_t)strlen(child->name),
                                            .member_count = child->nranks};
    const size_t members_bytes = sizeof *child->members * child->nranks;
    const size_t bytes = sizeof head + head.name_bytes + members_bytes;
    uint8_t *body;

    if (crystal_links_count(child->proxy->links) < 2)
        return 0;
    body = malloc(bytes);
    if (!body)
        return crystal_error_set(err, ENOMEM, "out of memory");
    memcpy(body, &head, sizeof head);
    memcpy(body + sizeof head, child->name, head.name_bytes);
    memcpy(body + sizeof head + head.name_bytes, child->members, members_bytes);
    crystal_links_tell(child->proxy->links, CRYSTAL_LINK_CHILD, body, (uint32_t)bytes);
    free(body);
    return 0;
}

/* A child with this number, for which node `owner` answers. NULL with err set. */
static struct proxy_comm *add_child(struct crystal_proxy *proxy, const char *name,
                                    uint64_t comm_id, uint32_t owner, uint32_t count,
                                    const uint32_t *lranks, struct crystal_error *err)
{
    struct proxy_comm *child = proxy_comm_create(proxy, name, 1, count, lranks, err);

    if (!child)
        return NULL;
    child->owner = owner;
    if (!proxy_comm_child(child, comm_id, err))
        return child;
    proxy_comm_remove(child);
    return NULL;
}

/* The child of these cranks of the parent, unless all of them are real. */
static int make_child(struct proxy_comm *parent, const char *name, uint64_t comm_id,
                      uint32_t count, const uint32_t *cranks, struct crystal_error *err)
{
    const uint32_t real = count_real(parent, count, cranks);
    uint32_t *lranks, *copy;
    struct proxy_comm *child;

    if (real == count) {
        parent->proxy->counters.real_only_count++;
        return 0;
    }
    lranks = malloc(sizeof *lranks * count);
    copy = malloc(sizeof *copy * count);
    for (uint32_t i = 0; lranks && copy && i < count; i++) {
        lranks[i] = parent->members[cranks[i]];
        copy[i] = cranks[i];
    }
    child = lranks && copy ? add_child(parent->proxy, name, comm_id, parent->owner,
                                       count, lranks, err)
                           : NULL;
    free(lranks);
    if (!child) {
        free(copy);
        return err->code ? -err->code : crystal_error_set(err, ENOMEM, "out of memory");
    }
    child->parent = parent;
    child->parent_cranks = copy;
    if (tell_nodes(child, err))
        return -err->code;
    meet_reals(child);
    return 0;
}

bool proxy_split_may_come(const struct proxy_conn *conn)
{
    return crystal_links_count(conn->proxy->links) > 1 &&
           (conn->port == PROXY_PORT_RING || conn->port == PROXY_PORT_PEER);
}

/* Connections that came before their communicator was known. */
static void retry_strangers(struct crystal_proxy *proxy)
{
    struct proxy_conn *conn = proxy->first;

    while (conn) {
        struct proxy_conn *next = conn->next;

        if (conn->kind == PROXY_CONN_NEW)
            proxy_conn_handle(conn);
        conn = next;
    }
}

int crystal_proxy_child(struct crystal_proxy *proxy, uint32_t owner, const void *body,
                        uint32_t bytes, struct crystal_error *err)
{
    struct crystal_message_cursor cursor = {body, bytes};
    struct crystal_link_child head;
    char name[CRYSTAL_BOARD_NAME];
    const void *name_at, *members_at;
    struct proxy_comm *child;
    uint32_t *members;

    if (crystal_message_take(&cursor, &head, sizeof head) < 0 ||
        head.name_bytes >= sizeof name)
        return -EBADMSG;
    name_at = crystal_message_view(&cursor, head.name_bytes);
    members_at =
        crystal_message_view(&cursor, (uint64_t)head.member_count * sizeof *members);
    if (!name_at || !members_at || cursor.left_bytes || !head.member_count)
        return -EBADMSG;
    members = malloc(sizeof *members * head.member_count);
    if (!members)
        return crystal_error_set(err, ENOMEM, "out of memory");
    memcpy(members, members_at, sizeof *members * head.member_count);
    memcpy(name, name_at, head.name_bytes);
    name[head.name_bytes] = '\0';
    (void)pthread_mutex_lock(&proxy->lock);
    child =
        add_child(proxy, name, head.comm_id, owner, head.member_count, members, err);
    if (child)
        retry_strangers(proxy);
    (void)pthread_mutex_unlock(&proxy->lock);
    free(members);
    return child ? 0 : -err->code;
}

/* --- ncclCommSplit --- */

bool proxy_split_begin(struct proxy_comm *comm, struct proxy_gather *gather)
{
    const struct split_parent parent = parent_of(comm);

    gather->child_number = comm->child_count++;
    gather->split_number = ++comm->split_count;
    gather->split = split_groups_create(&parent, gather->child_number);
    if (!gather->split)
        proxy_comm_fail(comm, "out of memory");
    return gather->split != NULL;
}

struct making {
    struct proxy_comm *parent;
    const struct proxy_gather *gather;
};

static int make_color(void *context, int32_t color, uint32_t count,
                      const uint32_t *cranks, struct crystal_error *err)
{
    const struct making *making = context;
    struct proxy_comm *parent = making->parent;
    char name[CRYSTAL_BOARD_NAME];

    split_child_name(parent->name, 0, making->gather->child_number, color, name);
    return make_child(parent, name,
                      crystal_nccl_hash_split(parent->comm_id,
                                              (int32_t)making->gather->split_number,
                                              color),
                      count, cranks, err);
}

static bool has_all(const struct proxy_comm *comm, const struct proxy_gather *gather)
{
    for (uint32_t i = 0; i < comm->real_count; i++)
        if (!gather->has[i])
            return false;
    return true;
}

void proxy_split_learn(struct proxy_comm *comm, struct proxy_gather *gather,
                       uint32_t crank, const uint8_t *slice)
{
    struct making making = {comm, gather};
    struct crystal_error err = {0};

    if (split_groups_tell(gather->split, crank, proxy_get_i32(slice, 4),
                          proxy_get_i32(slice, 0))) {
        proxy_comm_fail(comm, "out of memory");
        return;
    }
    if (!has_all(comm, gather))
        return;
    if (split_groups_each(gather->split, make_color, &making, &err))
        proxy_comm_fail(comm, "%s", err.text);
    else if (!comm->is_failed)
        proxy_connect_retry(comm); /* those who were early */
}

bool proxy_split_slice(struct proxy_comm *comm, struct proxy_gather *gather,
                       uint32_t crank, uint8_t *slice)
{
    struct crystal_error err = {0};
    int32_t color, key;

    /* whoever can have told by now has: nobody waits for this slice before */
    for (uint32_t i = 0; i < comm->real_count; i++)
        if (comm->reals[i].reach <= comm->wanted[crank] && !gather->has[i])
            return false;
    if (split_groups_ask(gather->split, crank, &color, &key, &err)) {
        proxy_comm_fail(comm, "%s", err.text);
        return false;
    }
    proxy_put_i32(slice, 0, key);
    proxy_put_i32(slice, 4, color);
    return true;
}

/* --- meeting --- */

/* The oldest child whose real member `from` of the parent has not told where its ring
 * is; *ret_real its index there. */
static struct proxy_comm *awaiting(const struct proxy_comm *parent, uint32_t from,
                                   uint32_t *ret_real)
{
    for (struct proxy_comm *child = parent->proxy->comms; child; child = child->next)
        for (uint32_t i = 0; child->parent == parent && child->is_open &&
                             !child->is_failed && i < child->real_count;
             i++) {
            const uint32_t crank = child->reals[i].crank;

            if (child->parent_cranks[crank] == from &&
                !child->reals[i].has_ring_address &&
                !child->is_real[(crank + child->nranks - 1) % child->nranks]) {
                *ret_real = i;
                return child;
            }
        }
    return NULL;
}

bool proxy_split_is_early(const struct proxy_comm *comm, uint32_t from)
{
    uint32_t real;

    if (awaiting(comm, from, &real))
        return false;
    for (const struct proxy_gather *g = comm->gathers; g; g = g->next)
        if (g->split && !has_all(comm, g))
            return true;
    return false;
}

/* The child of a shrink, of which we hear first by this message. */
static int make_shrunk(struct proxy_comm *comm, uint32_t before, uint32_t after,
                       struct crystal_error *err)
{
    const struct split_parent parent = parent_of(comm);
    const uint32_t number = comm->child_count++;
    char name[CRYSTAL_BOARD_NAME];
    uint32_t *cranks, count;
    int code = split_shrink_find(&parent, number, before, after, &cranks, &count, err);

    if (code)
        return code;
    split_child_name(comm->name, 1, number, 0, name);
    code = make_child(comm, name, crystal_nccl_hash_split(comm->comm_id, 0, 0), count,
                      cranks, err);
    free(cranks);
    return code;
}

void proxy_split_meet(struct proxy_comm *comm, uint32_t from, uint32_t to,
                      const uint8_t address[PROXY_ADDRESS_BYTES])
{
    struct crystal_error err = {0};
    struct proxy_comm *child;
    uint32_t real, before;

    child = awaiting(comm, from, &real);
    if (!child && make_shrunk(comm, to, from, &err)) {
        proxy_comm_fail(comm, "%s", err.text);
        return;
    }
    if (!child)
        child = awaiting(comm, from, &real);
    before = child ? (child->reals[real].crank + child->nranks - 1) % child->nranks : 0;
    if (!child || child->parent_cranks[before] != to) {
        proxy_comm_fail(
            comm,
            "rank %u tells rank %u where it is, as if it stood behind it in "
            "a communicator that is made of this one; give every rank the "
            "same groups",
            from, to);
        return;
    }
    if (!proxy_address_is_usable(address)) {
        proxy_comm_fail(child, "rank %u is made of another one without an address",
                        child->reals[real].crank);
        return;
    }
    memcpy(child->reals[real].ring_address, address, PROXY_ADDRESS_BYTES);
    child->reals[real].has_ring_address = true;
    proxy_root_settle_one(child, real);
}

int crystal_proxy_group(struct crystal_proxy *proxy, uint32_t nranks,
                        const uint32_t *members, struct crystal_error *err)
{
    int code = 0;

    for (uint32_t i = 0; i < nranks; i++)
        if (members[i] >= proxy->layout->lrank_count)
            return crystal_error_set(err, EINVAL, "a group has rank %u of %u",
                                     members[i], proxy->layout->lrank_count);
    (void)pthread_mutex_lock(&proxy->lock);
    code = split_told_add(&proxy->told, nranks, members);
    (void)pthread_mutex_unlock(&proxy->lock);
    return code ? crystal_error_set(err, ENOMEM, "out of memory") : 0;
}
