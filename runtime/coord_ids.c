/* What keys of the store mean to the coordinator: counters of absent ranks, groups, and
 * the ids of communicators. See store_rules.h for the table.
 *
 * An id is set by the member whose crank the key names. Where that member runs, the
 * store waits for it, and the agents are told the id when it comes. Where it does not,
 * capture makes the id here, and plan and emulate ask the agent, whose proxy makes one
 * that leads to itself.
 */
#include "config.h"

#include "runtime/coord_state.h"

#include "runtime/log.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static int is_id(enum crystal_store_effect effect)
{
    return effect == CRYSTAL_STORE_ID || effect == CRYSTAL_STORE_ID_OF_CRANK ||
           effect == CRYSTAL_STORE_ID_OF_ROOT;
}

/* Names go into files and sentences. */
static int is_printable(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (!isprint((unsigned char)text[i]))
            return 0;
    return 1;
}

/* The members of a communicator whose key is m: of a pair, those two. pair is storage
 * for them. count 0 = not known. */
struct members {
    const uint32_t *lranks;
    uint32_t count;
    uint32_t pair[2];
};

static uint32_t second_number(const char *key, size_t bytes)
{
    uint64_t value = 0;
    size_t at = bytes;

    while (at && key[at - 1] != ':')
        at--;
    for (; at < bytes && value <= UINT32_MAX; at++)
        value = value * 10 + (uint64_t)(key[at] - '0');
    return value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
}

static void members_of(const struct crystal_coord *coord,
                       const struct crystal_store_match *m, const char *key,
                       size_t key_bytes, struct members *ret)
{
    const struct crystal_group *group =
        crystal_groups_get(coord->groups, m->group, m->group_bytes);
    uint32_t second;

    *ret = (struct members){0};
    if (!group)
        return;
    if (m->effect != CRYSTAL_STORE_ID_OF_CRANK) {
        ret->lranks = group->members;
        ret->count = group->count;
        return;
    }
    second = second_number(key, key_bytes);
    if (m->number >= group->count || second >= group->count)
        return;
    ret->pair[0] = group->members[m->number];
    ret->pair[1] = group->members[second];
    ret->lranks = ret->pair;
    ret->count = 2;
}

/* COMM_ID or COMM_FORGE to all agents of the stage, or to one only. */
static int tell_agents(struct crystal_coord *coord, unsigned type, uint32_t request,
                       const uint8_t *id, const char *key, size_t key_bytes,
                       const struct members *members, const struct client *only)
{
    struct crystal_msg_comm_id msg = {.name_bytes = (uint32_t)key_bytes,
                                      .member_count = members->count};
    size_t bytes = sizeof msg + key_bytes + (size_t)members->count * 4;
    uint8_t *body = malloc(bytes);
    int told = 0;

    if (!body)
        return -ENOMEM;
    if (id)
        memcpy(msg.id, id, sizeof msg.id);
    memcpy(body, &msg, sizeof msg);
    memcpy(body + sizeof msg, key, key_bytes);
    if (members->count)
        memcpy(body + sizeof msg + key_bytes, members->lranks,
               (size_t)members->count * 4);
    for (struct client *c = coord->clients; c; c = c->next)
        if (c->role == CRYSTAL_ROLE_AGENT && c->in_stage && (!only || c == only)) {
            crystal_link_send(c->link, type, request, body, bytes);
            told++;
        }
    free(body);
    return told;
}

/* An id has come to be. */
static void id_set(struct crystal_coord *coord, const struct crystal_store_match *m,
                   const char *key, size_t key_bytes, const uint8_t *id)
{
    struct crystal_error err = {0};
    struct members members;
    char name[256];

    if (coord->failed || key_bytes >= sizeof name || !is_printable(key, key_bytes))
        return;
    coord->has_id = 1;
    members_of(coord, m, key, key_bytes, &members);
    if (coord->stage != STAGE_CAPTURE) {
        (void)tell_agents(coord, CRYSTAL_MSG_COMM_ID, 0, id, key, key_bytes, &members,
                          NULL);
        return;
    }
    memcpy(name, key, key_bytes);
    name[key_bytes] = '\0';
    if (crystal_exchange_learn(coord->exchange, id, name,
                               members.count ? members.lranks : NULL, members.count,
                               &err) < 0)
        crystal_coord_fail(coord, crystal_error_text(&err));
    else
        crystal_coord_id_learned(coord);
}

static void ask_agent(struct crystal_coord *coord, const char *key, size_t key_bytes,
                      const struct members *members)
{
    const struct client *owner =
        crystal_coord_owner(coord, members->lranks, members->count);
    char sentence[CRYSTAL_ERROR_TEXT_BYTES];
    struct forge *f;

    for (f = coord->forges; f; f = f->next)
        if (strlen(f->key) == key_bytes && memcmp(f->key, key, key_bytes) == 0)
            return; /* asked already */
    f = calloc(1, sizeof *f);
    if (f)
        f->key = strndup(key, key_bytes);
    if (!f || !f->key) {
        free(f);
        crystal_coord_fail(coord, "coordinator: out of memory");
        return;
    }
    f->request = ++coord->next_forge;
    f->next = coord->forges;
    coord->forges = f;
    if (owner && tell_agents(coord, CRYSTAL_MSG_COMM_FORGE, f->request, NULL, key,
                             key_bytes, members, owner) > 0)
        return;
    (void)snprintf(
        sentence, sizeof sentence,
        "coordinator: a rank asks for communicator '%s', whose root is "
        "virtual, and no agent runs that could make it; start scrystal agent "
        "first",
        f->key);
    crystal_coord_fail(coord, sentence);
}

static void on_missing(void *context, const void *key, size_t key_bytes)
{
    struct crystal_coord *coord = context;
    struct crystal_store_match m;
    struct members members;
    const struct crystal_group *group;
    uint8_t id[NCCL_UNIQUE_ID_BYTES];
    uint32_t setter;

    if (coord->stage == STAGE_NONE || coord->failed)
        return;
    crystal_store_rules_match(key, key_bytes, &m);
    if (!is_id(m.effect) || !is_printable(key, key_bytes))
        return;
    group = crystal_groups_get(coord->groups, m.group, m.group_bytes);
    if (!group)
        return; /* asked again when its members are known */
    setter = crystal_store_rules_setter(&m, group->count);
    if (setter >= group->count || coord->is_real[group->members[setter]])
        return; /* it comes from a rank */
    members_of(coord, &m, key, key_bytes, &members);
    if (coord->stage != STAGE_CAPTURE) {
        ask_agent(coord, key, key_bytes, &members);
        return;
    }
    if (getrandom(id, sizeof id, 0) != (ssize_t)sizeof id) {
        crystal_coord_fail(coord, "coordinator: no random numbers for an id");
        return;
    }
    if (crystal_store_set(coord->store, key, key_bytes, id, sizeof id) < 0)
        crystal_coord_fail(coord, "coordinator: out of memory");
    else
        id_set(coord, &m, key, key_bytes, id);
}

static int on_write(void *context, const void *key, size_t key_bytes, const void *value,
                    size_t value_bytes)
{
    struct crystal_coord *coord = context;
    struct crystal_error err = {0};
    struct crystal_store_match m;
    int rc;

    crystal_coord_watch(coord);
    crystal_store_rules_match(key, key_bytes, &m);
    if (m.effect == CRYSTAL_STORE_NEVER)
        return 1;
    if (coord->stage == STAGE_NONE || coord->failed || !value)
        return 0;
    if (is_id(m.effect) && value_bytes == NCCL_UNIQUE_ID_BYTES)
        id_set(coord, &m, key, key_bytes, value);
    if (m.effect == CRYSTAL_STORE_MEMBERS) {
        rc = crystal_groups_set(coord->groups, m.group, m.group_bytes, value,
                                value_bytes, &err);
        if (rc < 0) {
            crystal_error_prefix(&err, "coordinator");
            crystal_coord_fail(coord, crystal_error_text(&err));
        } else if (rc == 1) {
            crystal_store_ask_again(coord->store);
        }
    }
    return 0;
}

static int64_t on_counter_start(void *context, const void *key, size_t key_bytes)
{
    const struct crystal_coord *coord = context;
    const struct crystal_group *group;
    struct crystal_store_match m;
    int64_t absent = 0;

    if (coord->stage == STAGE_NONE)
        return 0;
    crystal_store_rules_match(key, key_bytes, &m);
    if (m.effect == CRYSTAL_STORE_COUNT_WORLD)
        return (int64_t)coord->config.layout->lrank_count - coord->real_count;
    if (m.effect != CRYSTAL_STORE_COUNT_GROUP)
        return 0;
    group = crystal_groups_get(coord->groups, m.group, m.group_bytes);
    if (!group)
        crystal_log(CRYSTAL_LOG_WARNING, "coordinator",
                    "group '%.*s' has a barrier but no known members, counting only "
                    "those that come",
                    (int)m.group_bytes, m.group);
    for (uint32_t i = 0; group && i < group->count; i++)
        absent += coord->is_real[group->members[i]] ? 0 : 1;
    return absent;
}

const struct crystal_store_hooks crystal_coord_store_hooks = {
    .missing = on_missing, .write = on_write, .counter_start = on_counter_start};

int crystal_coord_forged(struct crystal_coord *coord,
                         const struct crystal_message_head *head,
                         const struct crystal_blob *body)
{
    struct crystal_msg_comm_id msg;
    struct forge **at = &coord->forges, *f;
    int rc;

    if (body->bytes != sizeof msg)
        return -EBADMSG;
    memcpy(&msg, body->data, sizeof msg);
    while (*at && (*at)->request != head->request)
        at = &(*at)->next;
    f = *at;
    if (!f)
        return 0; /* of a stage that is over */
    *at = f->next;
    rc = crystal_store_set(coord->store, f->key, strlen(f->key), msg.id, sizeof msg.id);
    if (rc < 0)
        crystal_coord_fail(coord, "coordinator: out of memory");
    free(f->key);
    free(f);
    return 0;
}

void crystal_coord_forget_forges(struct crystal_coord *coord)
{
    while (coord->forges) {
        struct forge *gone = coord->forges;

        coord->forges = gone->next;
        free(gone->key);
        free(gone);
    }
}
