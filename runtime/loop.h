/* An event loop: file descriptors, a few timers, one thread.
 *
 * Watches and timers are the caller's storage (usually a field of a larger struct);
 * removing one inside any callback is safe, and no callback of it follows. Level
 * triggered. Not thread-safe.
 */
#ifndef CRYSTAL_LOOP_H
#define CRYSTAL_LOOP_H

#include "runtime/error.h"

#include <stdint.h>
#include <sys/epoll.h>

struct crystal_loop;

struct crystal_watch {
    struct crystal_loop *loop; /* NULL: not watched */
    int fd;                    /* the caller's; the loop never closes it */
    uint32_t events;           /* EPOLLIN, EPOLLOUT; 0 still reports EPOLLHUP */
    void (*fn)(void *context, uint32_t events);
    void *context;
};

struct crystal_timer {
    struct crystal_loop *loop; /* NULL: not running */
    struct crystal_timer *next;
    uint64_t at_ns; /* CLOCK_MONOTONIC */
    void (*fn)(void *context);
    void *context;
};

struct crystal_loop *crystal_loop_create(struct crystal_error *err);
void crystal_loop_destroy(struct crystal_loop *loop);

int crystal_watch_start(struct crystal_watch *watch, struct crystal_loop *loop, int fd,
                        uint32_t events, void (*fn)(void *context, uint32_t events),
                        void *context, struct crystal_error *err);
void crystal_watch_events(struct crystal_watch *watch, uint32_t events);
void crystal_watch_stop(struct crystal_watch *watch);

/* Fires once, after delay_ns; starting a running timer moves it. */
void crystal_timer_start(struct crystal_timer *timer, struct crystal_loop *loop,
                         uint64_t delay_ns, void (*fn)(void *context), void *context);
void crystal_timer_stop(struct crystal_timer *timer);

/* Runs until crystal_loop_quit; it may run again afterwards. */
int crystal_loop_run(struct crystal_loop *loop, struct crystal_error *err);
void crystal_loop_quit(struct crystal_loop *loop);
/* One round: waits at most timeout_ms (negative: for ever) and runs what is due. */
int crystal_loop_step(struct crystal_loop *loop, int timeout_ms,
                      struct crystal_error *err);

#endif
