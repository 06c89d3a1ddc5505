/* The ids by which the node tells the proxy of communicators: made here, or by a real
 * rank or another node's proxy. */
#include "config.h"

#include "replay/node_links.h"
#include "replay/proxy_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

/* The communicator whose other roots are known under this name, or a new one. */
static struct proxy_comm *comm_of(struct crystal_proxy *proxy, const char *name,
                                  uint32_t index, uint32_t count, uint32_t nranks,
                                  const uint32_t *members, struct crystal_error *err)
{
    uint64_t hash = 0;

    if (!count || index >= count || count > nranks) {
        (void)crystal_error_set(err, EINVAL,
                                "communicator '%s': root %u of %u of %u ranks", name,
                                index, count, nranks);
        return NULL;
    }
    if (count > 1)
        hash = crystal_nccl_hash(members, sizeof *members * (size_t)nranks);
    for (struct proxy_comm *comm = proxy->comms; comm && count > 1; comm = comm->next)
        if (comm->is_open && !comm->is_failed && comm->root_count == count &&
            comm->nranks == nranks && comm->members_hash == hash &&
            !comm->roots[index].is_known && strcmp(comm->name, name) == 0)
            return comm;
    return proxy_comm_create(proxy, name, count, nranks, members, err);
}

/* The root's id in that communicator. NULL with err set, then no new one is left. */
static struct proxy_comm *root_add(struct crystal_proxy *proxy,
                                   const uint8_t id[NCCL_UNIQUE_ID_BYTES],
                                   bool is_forged, const char *name, uint32_t index,
                                   uint32_t count, uint32_t nranks,
                                   const uint32_t *members, struct crystal_error *err)
{
    struct proxy_comm *comm = comm_of(proxy, name, index, count, nranks, members, err);
    bool is_new = true;

    if (!comm)
        return NULL;
    for (uint32_t i = 0; i < count; i++)
        is_new &= !comm->roots[i].is_known;
    if (!proxy_comm_root(comm, index, id, is_forged, err))
        return comm;
    if (is_new)
        proxy_comm_remove(comm);
    return NULL;
}

int crystal_proxy_forge_root(struct crystal_proxy *proxy, const char *name,
                             uint32_t index, uint32_t count, uint32_t nranks,
                             const uint32_t *members,
                             uint8_t ret_id[NCCL_UNIQUE_ID_BYTES],
                             struct crystal_error *err)
{
    uint8_t id[NCCL_UNIQUE_ID_BYTES] = {0};
    struct crystal_error own = {0};
    struct proxy_comm *comm;

    if (getrandom(id, sizeof(uint64_t), 0) != sizeof(uint64_t))
        return crystal_error_set(err, errno, "communicator '%s': no random number: %s",
                                 name, strerror(errno));
    proxy_address(proxy, PROXY_PORT_ROOT, 0, id + sizeof(uint64_t));
    (void)pthread_mutex_lock(&proxy->lock);
    comm = root_add(proxy, id, true, name, index, count, nranks, members, &own);
    if (comm && !index)
        proxy_root_settle(comm);
    (void)pthread_mutex_unlock(&proxy->lock);
    if (!comm)
        return crystal_error_set(err, own.code, "%s", own.text);
    memcpy(ret_id, id, sizeof id);
    return 0;
}

int crystal_proxy_forge(struct crystal_proxy *proxy, const char *name, uint32_t nranks,
                        const uint32_t *members, uint8_t ret_id[NCCL_UNIQUE_ID_BYTES],
                        struct crystal_error *err)
{
    return crystal_proxy_forge_root(proxy, name, 0, 1, nranks, members, ret_id, err);
}

uint32_t crystal_proxy_owner(const struct crystal_proxy *proxy, uint32_t nranks,
                             const uint32_t *members)
{
    const uint32_t node_count = crystal_links_count(proxy->links);
    uint32_t real;
    uint32_t owner =
        crystal_layout_owner(proxy->layout, node_count, members, nranks, &real);

    return real == nranks ? UINT32_MAX : owner;
}

static uint32_t count_real(const struct crystal_proxy *proxy, uint32_t nranks,
                           const uint32_t *members)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < nranks; i++)
        if (crystal_layout_is_sandbox(proxy->layout, members[i]))
            count++;
    return count;
}

static bool has_id(const struct proxy_comm *comm, const uint8_t *id)
{
    for (uint32_t i = 0; i < comm->root_count; i++)
        if (comm->roots[i].is_known &&
            memcmp(comm->roots[i].id, id, NCCL_UNIQUE_ID_BYTES) == 0)
            return true;
    return false;
}

int crystal_proxy_join_root(struct crystal_proxy *proxy,
                            const uint8_t id[NCCL_UNIQUE_ID_BYTES], const char *name,
                            uint32_t index, uint32_t count, uint32_t nranks,
                            const uint32_t *members, struct crystal_error *err)
{
    struct crystal_error own = {0};
    struct proxy_comm *comm;
    uint32_t real_count = count_real(proxy, nranks, members);
    int result = 0;

    (void)pthread_mutex_lock(&proxy->lock);
    for (comm = proxy->comms; comm; comm = comm->next)
        if (has_id(comm, id))
            goto out;
    if (real_count == nranks && !index)
        proxy->counters.real_only_count++;
    if (real_count == nranks || real_count == 0)
        goto out;
    if (!proxy_address_is_usable(id + sizeof(uint64_t))) {
        result = crystal_error_set(err, EINVAL,
                                   "communicator '%s': its id holds no address of a "
                                   "root; make it with ncclGetUniqueId",
                                   name);
        goto out;
    }
    comm = root_add(proxy, id, false, name, index, count, nranks, members, &own);
    if (!comm) {
        result = crystal_error_set(err, own.code, "%s", own.text);
        goto out;
    }
    if (proxy_comm_is_far(comm))
        goto out; /* its owner does the rest */
    if (!index)
        proxy_root_settle(comm);
    proxy_root_pump(comm);
out:
    (void)pthread_mutex_unlock(&proxy->lock);
    return result;
}

int crystal_proxy_join(struct crystal_proxy *proxy,
                       const uint8_t id[NCCL_UNIQUE_ID_BYTES], const char *name,
                       uint32_t nranks, const uint32_t *members,
                       struct crystal_error *err)
{
    return crystal_proxy_join_root(proxy, id, name, 0, 1, nranks, members, err);
}
