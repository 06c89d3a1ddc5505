/* Layouts of NCCL's bootstrap messages. The numbers are facts of NCCL's sources:
 * src/bootstrap.cc (extInfo, bootstrapRingData), src/include/transport.h (ncclPeerInfo,
 * ncclConnect), src/init.cc (allGatherInfo), src/include/graph.h (ncclTopoRanks), in
 * the host's byte order on x86-64 and aarch64.
 *
 * Which row a job uses is said by nccl.version in crystal.yaml; versions with one form
 * of messages and other rules cannot be told apart in time. It is checked by the size
 * of the check-in, of every all-gather, and by the version that peers report.
 */
#include "config.h"

#include "replay/proxy_layout.h"

#include "runtime/nccl_names.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Fields that have not moved since 2.28.3. */
#define SINCE_2_28                                                                    \
    .checkin_rank = 0, .checkin_nranks = 4, .checkin_iroot = 8, .checkin_nroots = 12, \
    .ring_peer = 0, .ring_proxy = 28, .ring_uds = 56, .ring_ras = 64,                 \
    .ring_ras_bytes = 56, .peer_rank = 0, .peer_host = 16, .peer_pid = 24,            \
    .peer_bus = 40, .peer_fabric_uuid = 76, .peer_version = 112,                      \
    .topology_cross_nic = 224, .topology_ranks = 228, .channel_count = 64,            \
    .topology_tree_channels = 4, .topology_ring_channels = 36, .entry_bytes = 256,    \
    .entry_gdr = 128

/* The newest tested one first. */
static const struct proxy_layout rows[] = {
    {
        .versions = "2.28.7 to 2.28.9",
        .version_min = 22807,
        .version_max = 22809,
        .source = "2.28.9 tested; 2.28.7 has the same structures (v2.28.7-1)",
        .is_tested = true,
        .checkin_bytes = 172,
        .checkin_listen = 16,
        .checkin_connect = 44,
        .gather_bytes = {120, 120, 2292},
        SINCE_2_28,
    },
    {
        .versions = "2.28.3",
        .version_min = 22803,
        .version_max = 22803,
        .source = "v2.28.3-1: the structures of 2.28.9; socketRingAllGather",
        .is_tested = true, /* by a client of our own: tests/unit/proxy */
        .is_one_way = true,
        .checkin_bytes = 172,
        .checkin_listen = 16,
        .checkin_connect = 44,
        .gather_bytes = {120, 120, 2292},
        SINCE_2_28,
    },
    {
        .versions = "2.29.2 to 2.29.3",
        .version_min = 22902,
        .version_max = 22903,
        .source = "v2.29.3-1: extInfo has an offset, allGatherInfo two fields more",
        .checkin_bytes = 176,
        .checkin_listen = 20,
        .checkin_connect = 48,
        .gather_bytes = {120, 120, 2300},
        SINCE_2_28,
    },
};
#define ROW_COUNT (sizeof rows / sizeof rows[0])

/* Which versions may be used. */
static void list_known(bool allow_untested, char *text, size_t bytes)
{
    size_t at = 0;

    *text = '\0';
    for (size_t i = 0; i < ROW_COUNT && at < bytes; i++)
        if (rows[i].is_tested || allow_untested)
            at += (size_t)snprintf(text + at, bytes - at, "%s%s", at ? ", " : "",
                                   rows[i].versions);
}

const struct proxy_layout *proxy_layout_find(int version, bool allow_untested,
                                             struct crystal_error *err)
{
    char name[CRYSTAL_NCCL_VERSION_TEXT], known[128];

    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (version && (version < rows[i].version_min || version > rows[i].version_max))
            continue;
        if (rows[i].is_tested || allow_untested)
            return &rows[i];
        (void)crystal_error_set(
            err, ENOTSUP,
            "the messages of NCCL %s were read from its sources, but "
            "not tested; set nccl.untested to yes in crystal.yaml to "
            "try them",
            crystal_nccl_version_text(version, name));
        return NULL;
    }
    list_known(allow_untested, known, sizeof known);
    (void)crystal_error_set(err, ENOTSUP,
                            "the messages of NCCL %s are not known; use NCCL %s",
                            crystal_nccl_version_text(version, name), known);
    return NULL;
}

const char *proxy_layout_of_checkin(uint32_t checkin_bytes)
{
    for (size_t i = 0; i < ROW_COUNT; i++)
        if (rows[i].checkin_bytes == checkin_bytes)
            return rows[i].versions;
    return "of an unknown version";
}

int32_t proxy_get_i32(const uint8_t *bytes, uint32_t offset)
{
    int32_t value;

    memcpy(&value, bytes + offset, sizeof value);
    return value;
}

uint32_t proxy_get_u32(const uint8_t *bytes, uint32_t offset)
{
    uint32_t value;

    memcpy(&value, bytes + offset, sizeof value);
    return value;
}

uint64_t proxy_get_u64(const uint8_t *bytes, uint32_t offset)
{
    uint64_t value;

    memcpy(&value, bytes + offset, sizeof value);
    return value;
}

void proxy_put_i32(uint8_t *bytes, uint32_t offset, int32_t value)
{
    memcpy(bytes + offset, &value, sizeof value);
}

void proxy_put_u64(uint8_t *bytes, uint32_t offset, uint64_t value)
{
    memcpy(bytes + offset, &value, sizeof value);
}

/* A number that depends on all bits of both (the finisher of splitmix64). */
static uint64_t mix(uint64_t value, uint64_t salt)
{
    uint64_t z = value + (salt + 1) * UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Another address; no address for RAS, which then skips the rank. */
static void clone_ring_data(const struct proxy_layout *layout,
                            const struct proxy_identity *who, uint8_t *slice)
{
    memcpy(slice + layout->ring_peer, who->address, PROXY_ADDRESS_BYTES);
    memcpy(slice + layout->ring_proxy, who->address, PROXY_ADDRESS_BYTES);
    proxy_put_u64(slice, layout->ring_uds,
                  mix(proxy_get_u64(slice, layout->ring_uds), who->crank));
    memset(slice + layout->ring_ras, 0, layout->ring_ras_bytes);
}

/* Another host and process: the same host for all of a node's members, whose templates
 * may be on different hosts. Where a GPU belongs to an NVLink domain (its cluster id is
 * not zero), every virtual node gets a domain of its own. */
static void clone_peer_info(const struct proxy_layout *layout,
                            const struct proxy_identity *who, uint8_t *slice)
{
    uint64_t uuid[2];

    proxy_put_i32(slice, layout->peer_rank, (int32_t)who->crank);
    proxy_put_u64(slice, layout->peer_host, mix(who->salt, who->node));
    proxy_put_u64(slice, layout->peer_pid, mix(~who->salt, who->crank));
    memcpy(uuid, slice + layout->peer_fabric_uuid, sizeof uuid);
    if (uuid[0] | uuid[1]) {
        uuid[0] = mix(who->salt ^ UINT64_C(0x5555555555555555), who->node);
        memcpy(slice + layout->peer_fabric_uuid, uuid, sizeof uuid);
    }
    if (!who->map) /* members of one node need different devices */
        proxy_put_u64(slice, layout->peer_bus,
                      proxy_get_u64(slice, layout->peer_bus) +
                          ((uint64_t)who->node_index << 32));
}

static void topology_fill(const struct proxy_layout *layout, uint8_t *slice,
                          uint32_t array, int32_t crank)
{
    uint32_t at = layout->topology_ranks + 4 * array * layout->channel_count;

    for (uint32_t c = 0; c < layout->channel_count; c++)
        proxy_put_i32(slice, at + 4 * c, crank);
}

/* The members of a node that is unlike the template's stand in a chain in rank order on
 * every channel. */
static void topology_chain(const struct proxy_layout *layout,
                           const struct proxy_identity *who, uint8_t *slice)
{
    int32_t first = (int32_t)who->ranks[0];
    int32_t second = who->node_count > 1 ? (int32_t)who->ranks[1] : first;
    uint32_t i = who->node_index;

    topology_fill(layout, slice, 0, first);
    topology_fill(layout, slice, 1, (int32_t)who->ranks[who->node_count - 1]);
    topology_fill(layout, slice, 2, i ? (int32_t)who->ranks[i - 1] : -1);
    topology_fill(layout, slice, 3,
                  i + 1 < who->node_count ? (int32_t)who->ranks[i + 1] : -1);
    topology_fill(layout, slice, 4, first);
    topology_fill(layout, slice, 5, first);
    topology_fill(layout, slice, 6, second);
}

static void clone_topology(const struct proxy_layout *layout,
                           const struct proxy_identity *who, uint8_t *slice)
{
    uint32_t count = PROXY_TOPOLOGY_ARRAYS * layout->channel_count;

    if (!who->map) {
        topology_chain(layout, who, slice);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = layout->topology_ranks + 4 * i;

        proxy_put_i32(slice, at, who->map(who->context, proxy_get_i32(slice, at)));
    }
}

void proxy_layout_clone(const struct proxy_layout *layout, uint32_t gather,
                        const struct proxy_identity *who, uint8_t *slice)
{
    switch (gather) {
    case PROXY_GATHER_RING_DATA:
        clone_ring_data(layout, who, slice);
        break;
    case PROXY_GATHER_PEER_INFO:
        clone_peer_info(layout, who, slice);
        break;
    case PROXY_GATHER_TOPOLOGY:
        clone_topology(layout, who, slice);
        break;
    default: /* flags that are the same on every rank of a homogeneous job */
        break;
    }
}
