/* The coordinator of one job: its life and its end. See coord.h; coord_clients.c has
 * the clients, coord_stage.c the stages. */
#include "config.h"

#include "runtime/coord.h"

#include "runtime/coord_state.h"
#include "runtime/env.h"
#include "runtime/log.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define AGENT_END_NS 10000000000U /* agents get this long to finish */
#define FLUSH_NS     2000000000U  /* and the last answers this long to leave */

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

    if (crystal_coord_has_agents(coord))
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
        crystal_coord_answer_error(c, crystal_error_text(&err));
    else if (c)
        crystal_link_send(c->link, CRYSTAL_MSG_OK, coord->finish_request, NULL, 0);
    crystal_timer_start(&coord->finish_timer, coord->loop,
                        c && !crystal_link_is_flushed(c->link) ? FLUSH_NS : 0, quit,
                        coord);
}

void crystal_coord_finish(struct client *c, uint32_t request)
{
    struct crystal_coord *coord = c->coord;

    coord->finishing = 1;
    coord->finisher = c;
    coord->finish_request = request;
    for (struct client *other = coord->clients; other; other = other->next)
        if (other->role == CRYSTAL_ROLE_AGENT)
            crystal_coord_tell_stop(other, "");
        else if (other->role == CRYSTAL_ROLE_RANK)
            crystal_coord_tell_stop(other, "coordinator: the job is being finished");
    crystal_timer_start(&coord->finish_timer, coord->loop,
                        crystal_coord_has_agents(coord) ? AGENT_END_NS : 0, finish_now,
                        coord);
}

void crystal_coord_finish_soon(struct crystal_coord *coord)
{
    if (coord->finishing && coord->finish_timer.loop &&
        !crystal_coord_has_agents(coord))
        crystal_timer_start(&coord->finish_timer, coord->loop, 0, finish_now, coord);
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
                                 EPOLLIN, crystal_coord_on_listener, coord, err);
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
