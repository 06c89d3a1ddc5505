/* See stage_far.h. */
#include "config.h"

#include "commands/stage_far.h"

#include "replay/net_address.h"
#include "replay/node_links.h"
#include "runtime/coord_dial.h"
#include "runtime/listen.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

static int same_address(const struct sockaddr *sa, const uint8_t address[16])
{
    struct in6_addr own;

    return sa && crystal_address_from(sa, &own) == 0 &&
           memcmp(&own, address, sizeof own) == 0;
}

/* Where the user says which interface is to be used: its address. */
static int own_address(uint8_t ret[16], struct crystal_error *err)
{
    const char *list = getenv("NCCL_SOCKET_IFNAME");
    struct sockaddr_storage sa;
    struct in6_addr address;
    socklen_t bytes;
    int code;

    if (!list || !*list)
        return 0;
    code = crystal_net_address(&sa, &bytes, err);
    if (code)
        return code;
    code = crystal_address_from((struct sockaddr *)&sa, &address);
    if (code)
        return crystal_error_set(err, -code, "NCCL_SOCKET_IFNAME=%s: no IP address",
                                 list);
    memcpy(ret, &address, sizeof address);
    return 0;
}

/* The ranks listen at the address by which the other nodes reach this one. */
static int add_interface(struct stage *stage, const struct crystal_msg_node *own,
                         struct crystal_error *err)
{
    const char *list = getenv("NCCL_SOCKET_IFNAME");
    struct ifaddrs *all, *at;
    struct in6_addr address;

    memcpy(&address, own->address, sizeof address);
    if ((list && *list) || crystal_address_is_loopback(&address))
        return 0; /* the user's word; or all nodes are on one host */
    if (getifaddrs(&all) < 0)
        return crystal_error_set(err, errno, "cannot list network interfaces: %s",
                                 strerror(errno));
    at = all;
    while (at && !same_address(at->ifa_addr, own->address))
        at = at->ifa_next;
    if (at)
        stage_env_add(&stage->env, "NCCL_SOCKET_IFNAME==%s", at->ifa_name);
    freeifaddrs(all);
    return at ? 0
              : crystal_error_set(err, ENODEV,
                                  "node %u: the address by which others reach it is "
                                  "that of none of its interfaces; name one with "
                                  "NCCL_SOCKET_IFNAME",
                                  own->node);
}

int stage_far_meet(struct stage *stage, struct stage_far *far, uint32_t *run,
                   struct crystal_error *err)
{
    const uint32_t count = stage->node_count + stage->assistant_count;
    struct crystal_msg_node own = {
        .node = stage->node, .node_count = count, .run = *run};
    uint8_t token[CRYSTAL_TOKEN_BYTES];
    int code;

    memset(far, 0, sizeof *far);
    if (count < 2)
        return 0;
    if (count > CRYSTAL_NODES_MAX || stage->node_count > stage->layout.sandbox_count)
        return crystal_error_set(err, EINVAL,
                                 "%u nodes for %u sandbox ranks; at most %u, and one "
                                 "for each rank",
                                 stage->node_count, stage->layout.sandbox_count,
                                 CRYSTAL_NODES_MAX);
    far->nodes = calloc(count, sizeof *far->nodes);
    if (!far->nodes)
        return crystal_error_set(err, ENOMEM, "out of memory");
    code = crystal_token_read(stage->token_file, token, err);
    if (code)
        return code;
    far->links = crystal_links_create(token, &stage->layout.ports, err);
    memset(token, 0, sizeof token);
    if (!far->links)
        return -err->code;
    own.port = crystal_links_port(far->links);
    code = own_address(own.address, err);
    if (!code)
        code = crystal_client_nodes(stage->client, &own, far->nodes, err);
    if (!code)
        *run = far->nodes[0].run;
    return code || stage->node >= stage->node_count
               ? code
               : add_interface(stage, &far->nodes[stage->node], err);
}

void stage_far_fini(struct stage_far *far)
{
    crystal_links_destroy(far->links);
    free(far->nodes);
    memset(far, 0, sizeof *far);
}
