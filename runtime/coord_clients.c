/* The coordinator's clients: who comes, what they say, and who goes. See coord.h. */
#include "config.h"

#include "runtime/coord_dial.h"
#include "runtime/coord_state.h"
#include "runtime/log.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STRANGER_BODY_MAX sizeof(struct crystal_msg_hello)

struct client *crystal_coord_rank(const struct crystal_coord *coord, uint32_t lrank)
{
    struct client *c = coord->clients;

    while (c && (c->role != CRYSTAL_ROLE_RANK || !c->in_stage || c->lrank != lrank))
        c = c->next;
    return c;
}

static void tell_agents(struct crystal_coord *coord, const char *text)
{
    for (struct client *c = coord->clients; c; c = c->next)
        if (c->role == CRYSTAL_ROLE_AGENT && c->in_stage)
            crystal_link_send(c->link, CRYSTAL_MSG_NOTICE, 0, text, strlen(text));
}

void crystal_coord_notice(void *context, const char *text)
{
    crystal_log(CRYSTAL_LOG_INFO, "coordinator", "%s", text);
    tell_agents(context, text);
}

void crystal_coord_warn(struct crystal_coord *coord, const char *text)
{
    static const char mark[] = CRYSTAL_NOTICE_WARNING;
    char message[CRYSTAL_ERROR_TEXT_BYTES + sizeof mark];

    (void)snprintf(message, sizeof message, "%s%s", mark, text);
    crystal_log(CRYSTAL_LOG_WARNING, "coordinator", "%s", text);
    tell_agents(coord, message);
}

int crystal_coord_has_agents(const struct crystal_coord *coord)
{
    for (const struct client *c = coord->clients; c; c = c->next)
        if (c->role == CRYSTAL_ROLE_AGENT && c->in_stage)
            return 1;
    return 0;
}

/* --- messages --- */

void crystal_coord_answer_error(struct client *c, const char *sentence)
{
    crystal_link_send(c->link, CRYSTAL_MSG_ERROR, 0, sentence, strlen(sentence));
    crystal_link_end(c->link);
    c->may_drop = 1;
}

/* Whether this rank may take part; a sentence where not. */
static int rank_admit(struct crystal_coord *coord, struct client *c,
                      struct crystal_error *err)
{
    if (coord->stage == STAGE_NONE)
        return crystal_error_set(err, EINVAL,
                                 "coordinator: rank %" PRIu32
                                 " has come before any stage has begun",
                                 c->lrank);
    if (coord->failed)
        return crystal_error_set(err, ECANCELED, "%s", coord->sentence);
    if (c->lrank >= coord->config.layout->lrank_count || !coord->is_real[c->lrank])
        return crystal_error_set(err, EINVAL,
                                 "coordinator: rank %" PRIu32
                                 " does not run in stage %s; is another program "
                                 "started in this job?",
                                 c->lrank, crystal_coord_stage_name(coord->stage));
    if (crystal_coord_rank(coord, c->lrank))
        return crystal_error_set(
            err, EEXIST, "coordinator: rank %" PRIu32 " runs already", c->lrank);
    if (coord->exchange) {
        (void)crystal_exchange_join(coord->exchange, c->lrank); /* checked above */
        crystal_coord_keep_maps(coord, c->lrank, c->pid);
        crystal_coord_watch(coord);
    }
    c->in_stage = 1;
    return 0;
}

static int on_hello(struct client *c, const struct crystal_message_head *head,
                    const struct crystal_blob *body)
{
    struct crystal_coord *coord = c->coord;
    struct crystal_msg_welcome welcome = {
        .lrank_count = coord->config.layout->lrank_count,
        .live_count =
            coord->real_count ? coord->real_count : coord->config.layout->live_count,
        .iterations = coord->config.layout->iterations};
    struct crystal_error err = {0};
    struct crystal_msg_hello hello;

    if (head->type != CRYSTAL_MSG_HELLO || body->bytes != sizeof hello)
        return -EBADMSG;
    memcpy(&hello, body->data, sizeof hello);
    if (!crystal_token_is(hello.token, coord->token) ||
        hello.role < CRYSTAL_ROLE_RANK || hello.role > CRYSTAL_ROLE_CONTROL)
        return -EACCES;
    c->role = (enum crystal_role)hello.role;
    c->lrank = hello.lrank;
    c->pid = hello.pid;
    if (c->role == CRYSTAL_ROLE_RANK && rank_admit(coord, c, &err) < 0) {
        crystal_coord_answer_error(c, crystal_error_text(&err));
        return 0;
    }
    crystal_link_body_max(c->link, CRYSTAL_MESSAGE_BODY_MAX);
    crystal_link_send(c->link, CRYSTAL_MSG_WELCOME, head->request, &welcome,
                      sizeof welcome);
    return 0;
}

static int on_begin(struct client *c, const struct crystal_message_head *head,
                    const struct crystal_blob *body)
{
    struct crystal_coord *coord = c->coord;
    struct crystal_msg_begin begin;
    struct crystal_error err = {0};

    if (c->role != CRYSTAL_ROLE_AGENT || body->bytes != sizeof begin)
        return -EBADMSG;
    memcpy(&begin, body->data, sizeof begin);
    if (begin.stage < STAGE_CAPTURE || begin.stage > STAGE_EMULATE ||
        !crystal_coord_stage_has_slice(coord, (enum stage)begin.stage, begin.slice))
        return -EBADMSG;
    /* A second node's agent joins; else a new stage, or the same one anew, begins. */
    if (coord->stage != (enum stage)begin.stage || coord->failed || c->in_stage ||
        !crystal_coord_has_agents(coord)) {
        if (crystal_coord_stage_begin(coord, (enum stage)begin.stage, begin.slice, c,
                                      &err) < 0) {
            crystal_coord_answer_error(c, crystal_error_text(&err));
            return 0;
        }
    }
    c->in_stage = 1;
    c->may_drop = 0;
    crystal_link_send(c->link, CRYSTAL_MSG_OK, head->request, NULL, 0);
    return 0;
}

static int on_hint(struct client *c, const struct crystal_message_head *head,
                   const struct crystal_blob *body)
{
    uint64_t iterations;
    uint32_t stop;

    if (body->bytes != sizeof iterations)
        return -EBADMSG;
    memcpy(&iterations, body->data, sizeof iterations);
    stop = iterations > c->coord->config.layout->iterations;
    c->may_drop |= stop != 0;
    crystal_coord_watch(c->coord);
    crystal_link_send(c->link, CRYSTAL_MSG_HINT_ANSWER, head->request, &stop,
                      sizeof stop);
    return 0;
}

static int on_fail(struct client *c, const struct crystal_blob *body)
{
    char text[CRYSTAL_ERROR_TEXT_BYTES];

    (void)snprintf(text, sizeof text, "%.*s", (int)(body->bytes % INT_MAX),
                   (const char *)body->data);
    crystal_coord_fail(c->coord, text[0] ? text : "a client failed without a sentence");
    return 0;
}

/* COMM_INIT, OPS, WAITING: a rank of capture. */
static int on_exchange(struct client *c, const struct crystal_message_head *head,
                       struct crystal_blob *body)
{
    struct crystal_coord *coord = c->coord;
    struct crystal_msg_comm_init init;
    struct crystal_error err = {0};
    int rc = 0;

    if (c->role != CRYSTAL_ROLE_RANK)
        return -EBADMSG;
    if (!c->in_stage || coord->failed)
        return 0; /* it was told */
    if (!coord->exchange)
        return -EBADMSG;
    switch (head->type) {
    case CRYSTAL_MSG_COMM_INIT:
        if (body->bytes != sizeof init)
            return -EBADMSG;
        memcpy(&init, body->data, sizeof init);
        crystal_coord_comm_init(coord, c->lrank, head->request, &init);
        break;
    case CRYSTAL_MSG_OPS:
        rc = crystal_exchange_ops(coord->exchange, c->lrank, head->request, body, &err);
        break;
    default:
        crystal_exchange_waiting(coord->exchange, c->lrank, head->request);
    }
    if (rc < 0)
        crystal_coord_diagnose(coord, &err);
    else if (!coord->failed && head->type != CRYSTAL_MSG_WAITING)
        crystal_coord_watch(coord);
    return 0;
}

static int on_finish(struct client *c, const struct crystal_message_head *head)
{
    if (c->role != CRYSTAL_ROLE_CONTROL)
        return -EBADMSG;
    if (c->coord->finishing)
        crystal_coord_answer_error(c, "coordinator: the job is being finished already");
    else
        crystal_coord_finish(c, head->request);
    return 0;
}

/* Its part is over: it has said so, or its connection is gone. */
static void leave_stage(struct client *c)
{
    struct crystal_coord *coord = c->coord;

    if (!c->in_stage)
        return;
    c->in_stage = 0;
    if (c->role == CRYSTAL_ROLE_RANK && coord->exchange) {
        crystal_exchange_leave(coord->exchange, c->lrank);
        if (!coord->failed)
            crystal_coord_watch(coord);
    }
    crystal_coord_finish_soon(coord);
}

static int on_message(void *context, struct crystal_link *link,
                      const struct crystal_message_head *head,
                      struct crystal_blob *body)
{
    struct client *c = crystal_link_owner(link);

    (void)context;
    if (!c->role)
        return on_hello(c, head, body);
    switch (head->type) {
    case CRYSTAL_MSG_BEGIN:
        return on_begin(c, head, body);
    case CRYSTAL_MSG_COMM_INIT:
    case CRYSTAL_MSG_OPS:
    case CRYSTAL_MSG_WAITING:
        return on_exchange(c, head, body);
    case CRYSTAL_MSG_HINT:
        return on_hint(c, head, body);
    case CRYSTAL_MSG_NODE:
        return crystal_coord_node(c, head, body);
    case CRYSTAL_MSG_MEET:
        return crystal_coord_meet(c, head, body);
    case CRYSTAL_MSG_FORGED:
        return c->role == CRYSTAL_ROLE_AGENT
                   ? crystal_coord_forged(c->coord, head, body)
                   : -EBADMSG;
    case CRYSTAL_MSG_FINISH:
        return on_finish(c, head);
    case CRYSTAL_MSG_FAIL:
        return on_fail(c, body);
    case CRYSTAL_MSG_BYE:
        c->may_drop = 1;
        leave_stage(c);
        return 0;
    default:
        return -EBADMSG;
    }
}

/* --- they come and go --- */

/* A client of the stage has gone without a word. */
static void client_died(struct client *c)
{
    struct crystal_coord *coord = c->coord;
    char doing[256] = "runs", sentence[CRYSTAL_ERROR_TEXT_BYTES];

    if (c->role == CRYSTAL_ROLE_AGENT) {
        (void)snprintf(sentence, sizeof sentence,
                       "coordinator: the agent of node %" PRIu32 " (pid %" PRIu32
                       ") died during %s; see log/ in the job directory",
                       c->lrank, c->pid, crystal_coord_stage_name(coord->stage));
    } else {
        if (coord->exchange)
            crystal_exchange_describe(coord->exchange, c->lrank, doing, sizeof doing);
        (void)snprintf(sentence, sizeof sentence,
                       "coordinator: rank %" PRIu32 " (pid %" PRIu32
                       ") died during %s; its state was: it %s; see log/ in the job "
                       "directory",
                       c->lrank, c->pid, crystal_coord_stage_name(coord->stage), doing);
        if (!coord->failed)
            coord->lost = 1 + c->lrank;
    }
    crystal_coord_fail(coord, sentence);
}

static void on_closed(void *context, struct crystal_link *link)
{
    struct crystal_coord *coord = context;
    struct client *c = crystal_link_owner(link);

    if (c->in_stage && !c->may_drop && !coord->failed && !coord->finishing)
        client_died(c);
    leave_stage(c);
    if (coord->finisher == c)
        coord->finisher = NULL;
    if (c->prev)
        c->prev->next = c->next;
    else
        coord->clients = c->next;
    if (c->next)
        c->next->prev = c->prev;
    crystal_link_destroy(link);
    free(c);
}

static void client_create(struct crystal_coord *coord, int fd)
{
    const struct crystal_link_hooks hooks = {coord, on_message, on_closed};
    struct client *c = calloc(1, sizeof *c);

    if (!c) {
        (void)close(fd);
        return;
    }
    c->coord = coord;
    c->link = crystal_link_create(coord->loop, fd, STRANGER_BODY_MAX, &hooks, NULL);
    if (!c->link) {
        free(c);
        return;
    }
    crystal_link_set_owner(c->link, c);
    c->next = coord->clients;
    if (c->next)
        c->next->prev = c;
    coord->clients = c;
}

void crystal_coord_on_listener(void *context, uint32_t events)
{
    struct crystal_coord *coord = context;
    int fd;

    (void)events;
    while (crystal_accept(coord->listen_fd, coord->access, "coord", &fd) == 0)
        client_create(coord, fd);
}
