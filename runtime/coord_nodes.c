/* The nodes of a stage on several: every agent tells where its node's service is, and
 * all are told when the last one has come; or they only wait for each other. See
 * coord.h. */
#include "config.h"

#include "runtime/coord.h"

#include "runtime/coord_state.h"
#include "runtime/layout.h"

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODES_NS 60000000000U

static struct client *agent_of(const struct crystal_coord *coord, uint32_t node)
{
    struct client *c = coord->clients;

    while (c && (!c->has_node || !c->in_stage || c->node.node != node))
        c = c->next;
    return c;
}

void crystal_coord_forget_nodes(struct crystal_coord *coord)
{
    crystal_timer_stop(&coord->nodes_timer);
    coord->node_count = 0;
    coord->have_met = 0;
    for (struct client *c = coord->clients; c; c = c->next)
        c->has_node = 0;
}

static uint64_t limit_ns(const struct crystal_coord *coord)
{
    return coord->config.nodes_ns ? coord->config.nodes_ns : NODES_NS;
}

static void too_late(void *context)
{
    struct crystal_coord *coord = context;
    char sentence[CRYSTAL_ERROR_TEXT_BYTES];
    uint32_t missing = 0;

    while (missing < coord->node_count && agent_of(coord, missing))
        missing++;
    (void)snprintf(sentence, sizeof sentence,
                   "coordinator: the agent of node %" PRIu32 " of %" PRIu32
                   " has not come within %.0f s; see log/ in the job directory",
                   missing, coord->node_count, (double)limit_ns(coord) / 1e9);
    crystal_coord_fail(coord, sentence);
}

/* An address of this host that others have come to; loopback where nobody has from
 * elsewhere. */
static void own_address(const struct crystal_coord *coord, struct in6_addr *ret)
{
    static const struct in6_addr loopback = {
        .s6_addr = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}};
    struct in6_addr peer;

    for (const struct client *c = coord->clients; c; c = c->next)
        if (c->has_node &&
            crystal_address_of(crystal_link_fd(c->link), 1, &peer) == 0 &&
            !crystal_address_is_loopback(&peer) &&
            crystal_address_of(crystal_link_fd(c->link), 0, ret) == 0)
            return;
    *ret = loopback;
}

/* Where the other nodes reach this one, if it does not say so itself. */
static void find_address(const struct crystal_coord *coord, struct client *c)
{
    static const uint8_t none[16];
    struct in6_addr address;

    if (memcmp(c->node.address, none, sizeof none) != 0)
        return;
    if (crystal_address_of(crystal_link_fd(c->link), 1, &address) < 0 ||
        crystal_address_is_loopback(&address))
        own_address(coord, &address);
    memcpy(c->node.address, &address, sizeof c->node.address);
}

static void tell_all(struct crystal_coord *coord)
{
    struct crystal_msg_node *nodes = calloc(coord->node_count, sizeof *nodes);

    if (!nodes) {
        crystal_coord_fail(coord, "coordinator: out of memory");
        return;
    }
    for (uint32_t i = 0; i < coord->node_count; i++) {
        struct client *c = agent_of(coord, i);

        find_address(coord, c);
        nodes[i] = c->node;
    }
    for (uint32_t i = 0; i < coord->node_count; i++) {
        const struct client *c = agent_of(coord, i);

        crystal_link_send(c->link, CRYSTAL_MSG_NODES, c->node_request, nodes,
                          coord->node_count * sizeof *nodes);
    }
    free(nodes);
}

/* An agent has come to the others of its stage, as node->node. 1: it is the last one.
 */
static int come(struct client *c, const struct crystal_msg_node *node, uint32_t request)
{
    struct crystal_coord *coord = c->coord;
    char sentence[CRYSTAL_ERROR_TEXT_BYTES];
    uint32_t count = 0;

    if (!c->in_stage || coord->failed)
        return 0; /* it was told */
    if (c->has_node || agent_of(coord, node->node) ||
        (coord->node_count && coord->node_count != node->node_count)) {
        (void)snprintf(sentence, sizeof sentence,
                       "coordinator: a second agent of node %" PRIu32 " of %" PRIu32
                       " has come; is another step running in this job?",
                       node->node, node->node_count);
        crystal_coord_fail(coord, sentence);
        return 0;
    }
    coord->node_count = node->node_count;
    c->node = *node;
    c->node_request = request;
    c->has_node = 1;
    while (count < node->node_count && agent_of(coord, count))
        count++;
    crystal_timer_stop(&coord->nodes_timer);
    if (count == node->node_count)
        return 1;
    if (!coord->have_met) /* later each has its work; one that dies is seen */
        crystal_timer_start(&coord->nodes_timer, coord->loop, limit_ns(coord), too_late,
                            coord);
    return 0;
}

static int is_node(const struct client *c, uint32_t node, uint32_t node_count)
{
    return c->role == CRYSTAL_ROLE_AGENT && node_count >= 2 &&
           node_count <= CRYSTAL_NODES_MAX && node < node_count;
}

int crystal_coord_node(struct client *c, const struct crystal_message_head *head,
                       const struct crystal_blob *body)
{
    struct crystal_msg_node node;

    if (body->bytes != sizeof node)
        return -EBADMSG;
    memcpy(&node, body->data, sizeof node);
    if (!is_node(c, node.node, node.node_count) || !node.port || node.port > UINT16_MAX)
        return -EBADMSG;
    if (come(c, &node, head->request))
        tell_all(c->coord);
    return 0;
}

int crystal_coord_meet(struct client *c, const struct crystal_message_head *head,
                       const struct crystal_blob *body)
{
    struct crystal_coord *coord = c->coord;
    struct crystal_msg_node node = {0};
    struct crystal_msg_meet meet;

    if (body->bytes != sizeof meet)
        return -EBADMSG;
    memcpy(&meet, body->data, sizeof meet);
    if (!is_node(c, meet.node, meet.node_count))
        return -EBADMSG;
    node.node = meet.node;
    node.node_count = meet.node_count;
    node.run = meet.value;
    if (!come(c, &node, head->request))
        return 0;
    meet.node = 0;
    meet.value = agent_of(coord, 0)->node.run;
    for (uint32_t i = 0; i < coord->node_count; i++) {
        struct client *agent = agent_of(coord, i);

        crystal_link_send(agent->link, CRYSTAL_MSG_MET, agent->node_request, &meet,
                          sizeof meet);
        agent->has_node = 0; /* it may come again */
    }
    coord->have_met = 1;
    return 0;
}

/* Behind them, in emulate, are the assistants. */
static uint32_t sandbox_nodes(const struct crystal_coord *coord)
{
    const uint32_t assistants =
        coord->stage == STAGE_EMULATE ? coord->config.layout->assistant_count : 0;

    return coord->node_count > assistants ? coord->node_count - assistants
                                          : coord->node_count;
}

struct client *crystal_coord_owner(const struct crystal_coord *coord,
                                   const uint32_t *members, uint32_t count)
{
    struct client *c = coord->clients;
    uint32_t real, owner = UINT32_MAX;

    if (coord->node_count)
        owner = crystal_layout_owner(coord->config.layout, sandbox_nodes(coord),
                                     members, count, &real);
    if (owner != UINT32_MAX)
        return agent_of(coord, owner);
    while (c && (c->role != CRYSTAL_ROLE_AGENT || !c->in_stage))
        c = c->next;
    return c;
}
