/* An event loop on epoll. See loop.h. Timers are a short list: there are few. */
#include "config.h"

#include "runtime/loop.h"

#include "runtime/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCH 64

struct crystal_loop {
    int epoll_fd;
    int quit;
    int ready_count; /* events of the present round */
    int ready_at;
    struct epoll_event ready[BATCH];
    struct crystal_timer *timers;
};

struct crystal_loop *crystal_loop_create(struct crystal_error *err)
{
    struct crystal_loop *loop = calloc(1, sizeof *loop);

    if (!loop) {
        (void)crystal_error_set(err, ENOMEM, "out of memory");
        return NULL;
    }
    loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll_fd < 0) {
        (void)crystal_error_set(err, errno, "cannot make an epoll: %s",
                                strerror(errno));
        free(loop);
        return NULL;
    }
    return loop;
}

void crystal_loop_destroy(struct crystal_loop *loop)
{
    if (!loop)
        return;
    (void)close(loop->epoll_fd);
    free(loop);
}

int crystal_watch_start(struct crystal_watch *watch, struct crystal_loop *loop, int fd,
                        uint32_t events, void (*fn)(void *context, uint32_t events),
                        void *context, struct crystal_error *err)
{
    struct epoll_event e = {.events = events, .data.ptr = watch};

    if (epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &e) < 0)
        return crystal_error_set(err, errno, "cannot watch a connection: %s",
                                 strerror(errno));
    *watch = (struct crystal_watch){
        .loop = loop, .fd = fd, .events = events, .fn = fn, .context = context};
    return 0;
}

void crystal_watch_events(struct crystal_watch *watch, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.ptr = watch};

    if (!watch->loop || watch->events == events)
        return;
    watch->events = events;
    /* Cannot fail: the descriptor is in the set. */
    (void)epoll_ctl(watch->loop->epoll_fd, EPOLL_CTL_MOD, watch->fd, &e);
}

void crystal_watch_stop(struct crystal_watch *watch)
{
    struct crystal_loop *loop = watch->loop;

    if (!loop)
        return;
    (void)epoll_ctl(loop->epoll_fd, EPOLL_CTL_DEL, watch->fd, NULL);
    for (int i = loop->ready_at; i < loop->ready_count; i++)
        if (loop->ready[i].data.ptr == watch)
            loop->ready[i].data.ptr = NULL;
    watch->loop = NULL;
}

void crystal_timer_start(struct crystal_timer *timer, struct crystal_loop *loop,
                         uint64_t delay_ns, void (*fn)(void *context), void *context)
{
    crystal_timer_stop(timer);
    *timer = (struct crystal_timer){.loop = loop,
                                    .next = loop->timers,
                                    .at_ns = crystal_now_ns() + delay_ns,
                                    .fn = fn,
                                    .context = context};
    loop->timers = timer;
}

void crystal_timer_stop(struct crystal_timer *timer)
{
    struct crystal_timer **at;

    if (!timer->loop)
        return;
    for (at = &timer->loop->timers; *at != timer; at = &(*at)->next)
        continue;
    *at = timer->next;
    timer->loop = NULL;
}

static struct crystal_timer *first_timer(struct crystal_loop *loop)
{
    struct crystal_timer *first = loop->timers;

    for (struct crystal_timer *t = first; t; t = t->next)
        if (t->at_ns < first->at_ns)
            first = t;
    return first;
}

static int timeout_of(struct crystal_loop *loop, int timeout_ms)
{
    const struct crystal_timer *first = first_timer(loop);
    uint64_t now, left_ms;

    if (!first)
        return timeout_ms;
    now = crystal_now_ns();
    if (first->at_ns <= now)
        return 0;
    left_ms = (first->at_ns - now + 999999) / 1000000;
    if (timeout_ms >= 0 && left_ms > (uint64_t)timeout_ms)
        return timeout_ms;
    return left_ms > 3600000 ? 3600000 : (int)left_ms;
}

int crystal_loop_step(struct crystal_loop *loop, int timeout_ms,
                      struct crystal_error *err)
{
    int n =
        epoll_wait(loop->epoll_fd, loop->ready, BATCH, timeout_of(loop, timeout_ms));
    struct crystal_timer *due;
    uint64_t now;

    if (n < 0 && errno != EINTR)
        return crystal_error_set(err, errno, "cannot wait for connections: %s",
                                 strerror(errno));
    loop->ready_count = n < 0 ? 0 : n;
    for (loop->ready_at = 0; loop->ready_at < loop->ready_count;) {
        const struct epoll_event *e = &loop->ready[loop->ready_at++];
        struct crystal_watch *watch = e->data.ptr;

        if (watch)
            watch->fn(watch->context, e->events);
    }
    loop->ready_at = loop->ready_count = 0;
    if (!loop->timers)
        return 0;
    now = crystal_now_ns();
    while ((due = first_timer(loop)) && due->at_ns <= now) {
        crystal_timer_stop(due);
        due->fn(due->context);
    }
    return 0;
}

int crystal_loop_run(struct crystal_loop *loop, struct crystal_error *err)
{
    int rc = 0;

    loop->quit = 0;
    while (rc == 0 && !loop->quit)
        rc = crystal_loop_step(loop, -1, err);
    return rc;
}

void crystal_loop_quit(struct crystal_loop *loop)
{
    loop->quit = 1;
}
