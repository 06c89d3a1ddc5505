/* The coordinator of one job: clients and the end. See coord.h; coord_stage.c has the
 * stages. */
#include "config.h"

#include "runtime/coord.h"

#include "runtime/coord_dial.h"
#include "runtime/coord_state.h"
#include "runtime/env.h"
#include "runtime/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define STRANGER_BODY_MAX sizeof(struct crystal_msg_hello)
#define AGENT_END_NS      10000000000U /* agents get this long to finish */
#define FLUSH_NS          2000000000U  /* and the last answers this long to leave */

/* --- telling everybody --- */

static void stage_reset(void *context)
{
    struct crystal_coord *coord = context;

    crystal_store_reset(coord->store);
}

void crystal_coord_tell_stop(struct client *c, const char *text)
{
    const struct crystal_msg_stop stop = {.lost = c->coord->lost};
    char body[sizeof stop + CRYSTAL_ERROR_TEXT_BYTES];
    size_t text_bytes = strnlen(text, CRYSTAL_ERROR_TEXT_BYTES);

    memcpy(body, &stop, sizeof stop);
    memcpy(body + sizeof stop, text, text_bytes);
    crystal_link_send(c->link, CRYSTAL_MSG_STOP, 0, body, sizeof stop + text_bytes);
    c->may_drop = 1;
}

void crystal_coord_fail(struct crystal_coord *coord, const char *sentence)
{
    if (coord->failed)
        return;
    crystal_log(CRYSTAL_LOG_ERROR, "coordinator", "%s",
                strncmp(sentence, "coordinator: ", 13) == 0 ? sentence + 13 : sentence);
    coord->failed = 1;
    (void)snprintf(coord->sentence, sizeof coord->sentence, "%s", sentence);
    for (struct client *c = coord->clients; c; c = c->next)
        if (c->in_stage)
            crystal_coord_tell_stop(c, coord->sentence);
    crystal_timer_stop(&coord->watch_timer);
    /* Ranks that wait for a key fail, too. Not now: the store may be our caller. */
    crystal_timer_start(&coord->reset_timer, coord->loop, 0, stage_reset, coord);
}

/* --- clients --- */

struct client *crystal_coord_rank(const struct crystal_coord *coord, uint32_t lrank)
{
    struct client *c = coord->clients;

    while (c && (c->role != CRYSTAL_ROLE_RANK || !c->in_stage || c->lrank != lrank))
        c = c->next;
    return c;
}

void crystal_coord_notice(void *context, const char *text)
{
    struct crystal_coord *coord = context;

    crystal_log(CRYSTAL_LOG_INFO, "coordinator", "%s", text);
    for (struct client *c = coord->clients; c; c = c->next)
        if (c->role == CRYSTAL_ROLE_AGENT && c->in_stage)
            crystal_link_send(c->link, CRYSTAL_MSG_NOTICE, 0, text, strlen(text));
}

static int has_agents(const struct crystal_coord *coord)
{
    for (const struct client *c = coord->clients; c; c = c->next)
        if (c->role == CRYSTAL_ROLE_AGENT && c->in_stage)
            return 1;
    return 0;
}

/* --- messages --- */

static void answer_error(struct client *c, const char *sentence)
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
        answer_error(c, crystal_error_text(&err));
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
        !has_agents(coord)) {
        if (crystal_coord_stage_begin(coord, (enum stage)begin.stage, begin.slice, c,
                                      &err) < 0) {
            answer_error(c, crystal_error_text(&err));
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

static void finish_now(void *context);

static int on_finish(struct client *c, const struct crystal_message_head *head)
{
    struct crystal_coord *coord = c->coord;

    if (c->role != CRYSTAL_ROLE_CONTROL)
        return -EBADMSG;
    if (coord->finishing) {
        answer_error(c, "coordinator: the job is being finished already");
        return 0;
    }
    coord->finishing = 1;
    coord->finisher = c;
    coord->finish_request = head->request;
    for (struct client *other = coord->clients; other; other = other->next)
        if (other->role == CRYSTAL_ROLE_AGENT)
            crystal_coord_tell_stop(other, "");
        else if (other->role == CRYSTAL_ROLE_RANK)
            crystal_coord_tell_stop(other, "coordinator: the job is being finished");
    crystal_timer_start(&coord->finish_timer, coord->loop,
                        has_agents(coord) ? AGENT_END_NS : 0, finish_now, coord);
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
    if (coord->finishing && coord->finish_timer.loop && !has_agents(coord))
        crystal_timer_start(&coord->finish_timer, coord->loop, 0, finish_now, coord);
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

/* --- clients come and go --- */

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

static void on_listener(void *context, uint32_t events)
{
    struct crystal_coord *coord = context;
    int fd;

    (void)events;
    while (crystal_accept(coord->listen_fd, coord->access, "coord", &fd) == 0)
        client_create(coord, fd);
}

/* --- the end --- */

static void quit(void *context)
{
    struct crystal_coord *coord = context;

    crystal_loop_quit(coord->loop);
}

static void finish_now(void *context)
{
    struct crystal_coord *coord = context;
    struct crystal_error err = {0};
    struct client *c = coord->finisher;
    int rc = 0;

    if (has_agents(coord))
        crystal_log(CRYSTAL_LOG_WARNING, "coordinator",
                    "an agent did not finish within %d s, going on without it",
                    (int)(AGENT_END_NS / 1000000000U));
    if (coord->emulated && !coord->failed && coord->config.report)
        rc = coord->config.report(crystal_jobdir_path(coord->config.dir), &err);
    if (rc < 0) {
        crystal_log(CRYSTAL_LOG_ERROR, "coordinator", "%s", crystal_error_text(&err));
        coord->result = rc;
    }
    if (c && rc < 0)
        answer_error(c, crystal_error_text(&err));
    else if (c)
        crystal_link_send(c->link, CRYSTAL_MSG_OK, coord->finish_request, NULL, 0);
    crystal_timer_start(&coord->finish_timer, coord->loop,
                        c && !crystal_link_is_flushed(c->link) ? FLUSH_NS : 0, quit,
                        coord);
}

static void on_signal(void *context, uint32_t events)
{
    struct crystal_coord *coord = context;
    struct signalfd_siginfo info;

    (void)events;
    if (read(coord->signal_fd, &info, sizeof info) != (ssize_t)sizeof info)
        return;
    coord->result = -EINTR;
    coord->failed = 0; /* whatever was said before, this is the end */
    for (struct client *c = coord->clients; c; c = c->next)
        if (c->role)
            crystal_coord_tell_stop(c, "coordinator: it was told to end by a signal");
    crystal_timer_start(&coord->finish_timer, coord->loop, 0, quit, coord);
}

/* --- life --- */

static int open_signals(struct crystal_coord *coord, struct crystal_error *err)
{
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGHUP);
    (void)sigprocmask(SIG_BLOCK, &set, NULL); /* cannot fail with these arguments */
    coord->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (coord->signal_fd < 0)
        return crystal_error_set(err, errno, "coordinator: signals: %s",
                                 strerror(errno));
    return crystal_watch_start(&coord->signals, coord->loop, coord->signal_fd, EPOLLIN,
                               on_signal, coord, err);
}

/* At the port that was asked for, else at one of port_range. */
static int open_port(const struct crystal_coord *coord, uint16_t port,
                     const char *option, int *ret_fd, uint16_t *ret_port,
                     struct crystal_error *err)
{
    if (port)
        return crystal_listen(port, option, ret_fd, ret_port, err);
    return crystal_listen_within(&coord->config.layout->ports, ret_fd, ret_port, err);
}

static int open_ports(struct crystal_coord *coord, struct crystal_error *err)
{
    struct crystal_store_hooks hooks = crystal_coord_store_hooks;
    int store_fd, rc;

    rc = open_port(coord, coord->config.port, "--port", &coord->listen_fd, &coord->port,
                   err);
    if (rc == 0)
        rc = crystal_watch_start(&coord->listener, coord->loop, coord->listen_fd,
                                 EPOLLIN, on_listener, coord, err);
    if (rc == 0)
        rc = open_port(coord, coord->config.store_port, "--store-port (MASTER_PORT)",
                       &store_fd, &coord->store_port, err);
    if (rc < 0)
        return rc;
    hooks.context = coord;
    coord->store =
        crystal_store_create(coord->loop, store_fd, coord->access, &hooks, err);
    if (!coord->store)
        (void)close(store_fd);
    return coord->store ? 0 : -EIO;
}

struct crystal_coord *crystal_coord_create(const struct crystal_coord_config *config,
                                           struct crystal_error *err)
{
    struct crystal_coord *coord = calloc(1, sizeof *coord);

    if (!coord) {
        (void)crystal_error_set(err, ENOMEM, "coordinator: out of memory");
        return NULL;
    }
    coord->config = *config;
    if (!coord->config.hang_ns)
        coord->config.hang_ns = crystal_coord_hang_ns(getenv(CRYSTAL_ENV_HANG_SECONDS));
    coord->listen_fd = coord->signal_fd = -1;
    if (snprintf(coord->host, sizeof coord->host, "%s",
                 config->host ? config->host : "127.0.0.1") >=
        (int)sizeof coord->host) {
        (void)crystal_error_set(err, EINVAL, "--host is too long");
        goto err_destroy;
    }
    coord->loop = crystal_loop_create(err);
    coord->access = coord->loop ? crystal_access_create(config->allow, err) : NULL;
    if (!coord->access || open_ports(coord, err) < 0 ||
        (config->handle_signals && open_signals(coord, err) < 0) ||
        crystal_coord_write_files(coord, err) < 0)
        goto err_destroy;
    return coord;
err_destroy:
    if (err && strncmp(err->text, "coordinator: ", 13) != 0)
        crystal_error_prefix(err, "coordinator");
    crystal_coord_destroy(coord);
    return NULL;
}

uint16_t crystal_coord_store_port(const struct crystal_coord *coord)
{
    return coord->store_port;
}

int crystal_coord_run(struct crystal_coord *coord, struct crystal_error *err)
{
    int rc = crystal_loop_run(coord->loop, err);

    return rc < 0 ? rc : coord->result;
}

void crystal_coord_destroy(struct crystal_coord *coord)
{
    if (!coord)
        return;
    if (coord->files_written)
        crystal_coord_remove_files(coord);
    while (coord->clients) {
        struct client *gone = coord->clients;

        coord->clients = gone->next;
        crystal_link_destroy(gone->link);
        free(gone);
    }
    crystal_coord_stage_end(coord);
    crystal_timer_stop(&coord->finish_timer);
    crystal_store_destroy(coord->store);
    crystal_watch_stop(&coord->listener);
    if (coord->listen_fd >= 0)
        (void)close(coord->listen_fd);
    crystal_watch_stop(&coord->signals);
    if (coord->signal_fd >= 0)
        (void)close(coord->signal_fd);
    crystal_access_destroy(coord->access);
    crystal_loop_destroy(coord->loop);
    free(coord);
}
