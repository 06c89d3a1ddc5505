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
    if (crystal_links_count(parent->proxy->links) > 1)
        return crystal_error_set(
            err, ENOTSUP,
            "communicator '%s' is made of another one, which is not there yet with "
            "several sandbox nodes; make it with an id of its own",
            name);
    lranks = malloc(sizeof *lranks * count);
    copy = malloc(sizeof *copy * count);
    for (uint32_t i = 0; lranks && copy && i < count; i++) {
        lranks[i] = parent->members[cranks[i]];
        copy[i] = cranks[i];
    }
    child = lranks && copy
                ? proxy_comm_create(parent->proxy, name, 1, count, lranks, err)
                : NULL;
    free(lranks);
    if (!child) {
        free(copy);
        return err->code ? -err->code : crystal_error_set(err, ENOMEM, "out of memory");
    }
    child->parent = parent;
    child->parent_cranks = copy;
    child->owner = parent->owner;
    child->layout = parent->layout;
    if (proxy_comm_child(child, comm_id, err)) {
        proxy_comm_remove(child);
        return -err->code;
    }
    meet_reals(child);
    return 0;
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
