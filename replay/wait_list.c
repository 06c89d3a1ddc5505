/* Waiting without spinning. See wait_list.h. ppoll takes descriptors and a timeout in
 * nanoseconds; the thread's timer slack (50 us by default) is set to 1 ns once, so that
 * modelled times are met.
 */
#include "config.h"

#include "replay/net_wait.h"
#include "replay/wait_list.h"

#include "replay/wire.h"
#include "runtime/clock.h"

#include <stdatomic.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define WAIT_FDS 256

struct wait_list {
    struct pollfd fds[WAIT_FDS + 1]; /* and the one that wakes */
    unsigned count;
    int polls;       /* something that no descriptor tells */
    uint64_t due_ns; /* 0 = none */
    bool waits;      /* this thread has called crystal_net_wait */
    bool is_more;
};

static _Thread_local struct wait_list list;

void crystal_wait_fd(int fd, short events)
{
    for (unsigned i = list.count; i-- > 0;)
        if (list.fds[i].fd == fd) {
            list.fds[i].events |= events;
            return;
        }
    if (list.count == WAIT_FDS) {
        list.polls = 1;
        return;
    }
    list.fds[list.count].fd = fd;
    list.fds[list.count].events = events;
    list.fds[list.count++].revents = 0;
}

bool crystal_wait_is_noted(int fd, short events)
{
    if (!list.waits)
        return false;
    for (unsigned i = list.count; i-- > 0;)
        if (list.fds[i].fd == fd)
            return (list.fds[i].events & events) == events;
    return false;
}

bool crystal_wait_sleeps(void)
{
    return list.waits;
}

void crystal_wait_forget(int fd)
{
    for (unsigned i = 0; i < list.count; i++)
        if (list.fds[i].fd == fd)
            list.fds[i--] = list.fds[--list.count];
}

__attribute__((visibility("default"))) void crystal_net_more(int more)
{
    list.is_more = more != 0;
}

bool crystal_wait_is_more(void)
{
    return list.is_more;
}

void crystal_wait_until(uint64_t at_ns)
{
    if (!list.due_ns || at_ns < list.due_ns)
        list.due_ns = at_ns ? at_ns : 1;
}

void crystal_wait_board(void)
{
    list.polls = 1;
}

/* An eventfd that wakes the waiting thread; -1 where the system has none to give, then
 * waits are short. Made by whoever comes first. */
static _Atomic int wake_fd_plus1;

static int wake_fd(void)
{
    int have = atomic_load_explicit(&wake_fd_plus1, memory_order_acquire), made;

    if (have)
        return have - 1;
    made = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (made < 0)
        return -1;
    if (atomic_compare_exchange_strong(&wake_fd_plus1, &have, made + 1))
        return made;
    (void)close(made); /* another thread was first */
    return have - 1;
}

__attribute__((visibility("default"))) void crystal_net_wake(void)
{
    uint64_t one = 1;
    int fd = wake_fd();

    if (fd >= 0 && write(fd, &one, sizeof one) < 0)
        return; /* full: it is awake already */
}

/* How long the notes allow to sleep. */
static uint64_t limit_ns(uint64_t max_ns)
{
    uint64_t now;

    if (list.polls || wake_fd() < 0)
        max_ns = max_ns < CRYSTAL_WAIT_POLL_NS ? max_ns : CRYSTAL_WAIT_POLL_NS;
    if (!list.due_ns)
        return max_ns;
    now = crystal_now_ns();
    if (list.due_ns <= now)
        return 0;
    return list.due_ns - now < max_ns ? list.due_ns - now : max_ns;
}

static void take_wakes(int fd)
{
    uint64_t wakes;

    if (read(fd, &wakes, sizeof wakes) < 0)
        return; /* another thread took them; this one is awake too */
}

static void forget_momentary(void)
{
    list.polls = 0;
    list.due_ns = 0;
}

static void forget_all(void)
{
    list.count = 0;
    forget_momentary();
}

static void forget_ready(void)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < list.count; i++)
        if (!list.fds[i].revents)
            list.fds[kept++] = list.fds[i];
    list.count = kept;
}

__attribute__((visibility("default"))) int crystal_net_wait(uint64_t max_ns)
{
    int fd = wake_fd();
    unsigned count = list.count;
    struct timespec limit;

    if (!max_ns) {
        forget_all();
        return 0;
    }
    if (!list.waits) {
        (void)prctl(PR_SET_TIMERSLACK, 1UL); /* without it waits are only less exact */
        list.waits = true;
    }
    max_ns = limit_ns(max_ns);
    if (max_ns) {
        limit.tv_sec = (time_t)(max_ns / 1000000000U);
        limit.tv_nsec = (long)(max_ns % 1000000000U);
        if (fd >= 0)
            list.fds[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
        /* an interrupted or refused wait is only shorter */
        if (ppoll(list.fds, count, &limit, NULL) > 0) {
            if (fd >= 0 && list.fds[count - 1].revents)
                take_wakes(fd);
            forget_ready();
        }
    }
    forget_momentary();
    return 0;
}
