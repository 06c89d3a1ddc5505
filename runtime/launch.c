/* Starting and ending the ranks of a node. See launch.h. */
#include "config.h"

#include "runtime/launch.h"

#include "runtime/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define GRACE_MS 3000
#define POLL_MS  100 /* where SIGCHLD goes to another thread */

struct child {
    uint32_t lrank;
    pid_t pid; /* and process group; 0: nothing of it is left */
    int is_running;
    int pidfd; /* on ends_fd until its end was told; -1: none */
};

struct crystal_launch {
    struct child *children; /* owned */
    uint32_t count, capacity;
    uint32_t running;
    struct crystal_guard *guard; /* owned */
    int ends_fd; /* epoll over the children's pidfds: their ends in order; -1: none */
    sigset_t before; /* the caller's signal mask */
    sigset_t ranks;  /* the ranks': the same without the signals that we wait for */
};

struct crystal_launch *crystal_launch_create(struct crystal_error *err)
{
    struct crystal_launch *l = calloc(1, sizeof *l);
    sigset_t signals;

    if (!l) {
        (void)crystal_error_set(err, ENOMEM, "launch: out of memory");
        return NULL;
    }
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGCHLD);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGHUP);
    (void)sigaddset(&signals, SIGPIPE); /* a dead guard is an error code */
    (void)pthread_sigmask(SIG_BLOCK, &signals, &l->before);
    l->ranks = l->before; /* another launch may have blocked them before */
    for (int signal = 1; signal < NSIG; signal++)
        if (sigismember(&signals, signal) == 1)
            (void)sigdelset(&l->ranks, signal);
    l->guard = crystal_guard_create(err);
    if (!l->guard) {
        (void)pthread_sigmask(SIG_SETMASK, &l->before, NULL);
        free(l);
        return NULL;
    }
    l->ends_fd = epoll_create1(EPOLL_CLOEXEC); /* without it, by number */
    return l;
}

void crystal_launch_keep_clean(struct crystal_launch *l, const char *directory)
{
    crystal_guard_directory(l->guard, directory);
}

/* --- starting --- */

extern char **environ;

static size_t name_bytes(const char *entry)
{
    const char *equals = strchr(entry, '=');

    return equals ? (size_t)(equals - entry) + 1 : strlen(entry);
}

/* The own environment with additions over it; caller frees the array. */
static char **environment(char *const *additions)
{
    size_t own = 0, added = 0, count = 0;
    char **all;

    while (environ && environ[own])
        own++;
    while (additions && additions[added])
        added++;
    all = malloc((own + added + 1) * sizeof *all);
    if (!all)
        return NULL;
    for (size_t i = 0; i < own; i++) {
        size_t k = 0;

        while (k < added &&
               strncmp(environ[i], additions[k], name_bytes(additions[k])) != 0)
            k++;
        if (k == added)
            all[count++] = environ[i];
    }
    for (size_t i = 0; i < added; i++)
        all[count++] = additions[i];
    all[count] = NULL;
    return all;
}

/* The child between fork and exec: only calls that are safe there. */
static void child_main(const struct crystal_launch_rank *rank, char **env,
                       const sigset_t *mask, int in, int out, int status, pid_t parent)
{
    int code;

    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, rank->death_signal ? rank->death_signal : SIGKILL);
    if (getppid() != parent)
        _exit(127); /* it died before the line above */
    if ((in >= 0 && dup2(in, STDIN_FILENO) < 0) ||
        (out >= 0 && (dup2(out, STDOUT_FILENO) < 0 || dup2(out, STDERR_FILENO) < 0)))
        goto err;
    (void)signal(SIGXFSZ, SIG_DFL); /* scrystal ignores it */
    (void)sigprocmask(SIG_SETMASK, mask, NULL);
    (void)execvpe(rank->argv[0], rank->argv, env);
err:
    code = errno;
    if (write(status, &code, sizeof code) < 0)
        _exit(126);
    _exit(127);
}

static int add_child(struct crystal_launch *l, uint32_t lrank, pid_t pid)
{
    if (l->count == l->capacity) {
        uint32_t capacity = l->capacity ? 2 * l->capacity : 16;
        struct child *bigger = realloc(l->children, capacity * sizeof *bigger);

        if (!bigger)
            return -ENOMEM;
        l->children = bigger;
        l->capacity = capacity;
    }
    l->children[l->count++] = (struct child){lrank, pid, pid != 0, -1};
    return 0;
}

/* The kernel queues pidfds as their processes end. Where it has none, or no file is
 * left, ends are found by number. */
static void watch_end(struct crystal_launch *l, uint32_t index)
{
    struct child *child = &l->children[index];
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = index};

    if (l->ends_fd < 0)
        return;
    child->pidfd = (int)syscall(SYS_pidfd_open, child->pid, 0); /* close-on-exec */
    if (child->pidfd < 0 ||
        epoll_ctl(l->ends_fd, EPOLL_CTL_ADD, child->pidfd, &event) == 0)
        return;
    (void)close(child->pidfd);
    child->pidfd = -1;
}

static void unwatch_end(struct crystal_launch *l, struct child *child)
{
    if (child->pidfd < 0)
        return;
    (void)epoll_ctl(l->ends_fd, EPOLL_CTL_DEL, child->pidfd, NULL); /* it is there */
    (void)close(child->pidfd);
    child->pidfd = -1;
}

int crystal_launch_start(struct crystal_launch *l,
                         const struct crystal_launch_rank *rank,
                         struct crystal_error *err)
{
    char **env = environment(rank->env);
    int in = -1, out = -1, status[2] = {-1, -1}, exec_errno = 0, code = 0;
    pid_t pid, parent = getpid();

    if (!env || add_child(l, rank->lrank, 0)) {
        code = crystal_error_set(err, ENOMEM, "launch: out of memory");
        goto out_free;
    }
    l->count--; /* there is room now */
    if (!rank->keeps_stdin)
        in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (rank->log_path)
        out = open(rank->log_path,
                   O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW,
                   0600);
    if (rank->log_path && out < 0) {
        code = crystal_error_set(err, errno, "launch: %s: %s", rank->log_path,
                                 strerror(errno));
        goto out_close;
    }
    if (pipe2(status, O_CLOEXEC) < 0 || (pid = fork()) < 0) {
        code = crystal_error_set(err, errno, "launch: rank %u: %s", rank->lrank,
                                 strerror(errno));
        goto out_close;
    }
    if (pid == 0)
        child_main(rank, env, &l->ranks, in, out, status[1], parent);
    (void)setpgid(pid, pid); /* whoever is first */
    (void)close(status[1]);
    status[1] = -1;
    while (read(status[0], &exec_errno, sizeof exec_errno) < 0 && errno == EINTR)
        ;
    if (exec_errno) {
        (void)waitpid(pid, NULL, 0);
        code = crystal_error_set(err, exec_errno, "launch: cannot run '%s': %s",
                                 rank->argv[0], strerror(exec_errno));
        goto out_close;
    }
    (void)add_child(l, rank->lrank, pid); /* room was made above */
    watch_end(l, l->count - 1);
    l->running++;
    crystal_guard_group(l->guard, pid);

out_close:
    if (status[0] >= 0)
        (void)close(status[0]);
    if (status[1] >= 0)
        (void)close(status[1]);
    if (in >= 0)
        (void)close(in);
    if (out >= 0)
        (void)close(out);
out_free:
    free(env);
    return code;
}

pid_t crystal_launch_pid(const struct crystal_launch *l, uint32_t lrank)
{
    for (uint32_t i = 0; i < l->count; i++)
        if (l->children[i].lrank == lrank)
            return l->children[i].pid;
    return 0;
}

uint32_t crystal_launch_running(const struct crystal_launch *l)
{
    return l->running;
}

/* --- watching --- */

/* 1: this child has ended. */
static int reap(struct crystal_launch *l, struct child *child,
                struct crystal_launch_end *ret)
{
    int status;

    if (!child->is_running || waitpid(child->pid, &status, WNOHANG) != child->pid)
        return 0;
    unwatch_end(l, child);
    child->is_running = 0;
    l->running--;
    if (kill(-child->pid, 0) < 0 && errno == ESRCH) {
        crystal_guard_group(l->guard,
                            -child->pid); /* its number may be somebody else's soon */
        child->pid = 0;
    }
    ret->lrank = child->lrank;
    ret->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    ret->code = ret->signal ? 128 + ret->signal : WEXITSTATUS(status);
    return 1;
}

/* The child that ended first of those not told, if there is one. */
static int reap_one(struct crystal_launch *l, struct crystal_launch_end *ret)
{
    struct epoll_event event;

    if (l->ends_fd >= 0 && epoll_wait(l->ends_fd, &event, 1, 0) == 1 &&
        event.data.u32 < l->count && reap(l, &l->children[event.data.u32], ret))
        return 1;
    for (uint32_t i = 0; i < l->count; i++)
        if (l->children[i].pidfd < 0 && reap(l, &l->children[i], ret))
            return 1;
    return 0;
}

int crystal_launch_wait(struct crystal_launch *l, int timeout_ms,
                        struct crystal_launch_end *ret, int *ret_signal)
{
    sigset_t signals;

    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGCHLD);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGHUP);
    for (;;) {
        int part_ms = timeout_ms < POLL_MS ? timeout_ms : POLL_MS;
        struct timespec wait = {0, part_ms * 1000000L};
        int signal;

        if (reap_one(l, ret))
            return 1;
        signal = sigtimedwait(&signals, NULL, &wait);
        if (signal > 0 && signal != SIGCHLD) {
            *ret_signal = signal;
            return -EINTR;
        }
        if (signal > 0)
            continue; /* look which one; costs no time */
        timeout_ms -= part_ms;
        if (timeout_ms <= 0)
            return reap_one(l, ret);
    }
}

void crystal_launch_stop(struct crystal_launch *l, int grace_ms)
{
    pid_t *groups = calloc(l->count ? l->count : 1, sizeof *groups);

    /* Groups of ranks that have ended may hold what these started. */
    if (groups) {
        for (uint32_t i = 0; i < l->count; i++)
            groups[i] = l->children[i].pid;
        crystal_guard_end_groups(groups, l->count, grace_ms, 1);
        free(groups);
    } else {
        for (uint32_t i = 0; i < l->count; i++)
            if (l->children[i].pid)
                (void)kill(-l->children[i].pid, SIGKILL);
    }
    for (uint32_t i = 0; i < l->count; i++) {
        if (l->children[i].is_running)
            (void)waitpid(l->children[i].pid, NULL, 0); /* ECHILD: reaped above */
        if (l->children[i].pid)
            crystal_guard_group(l->guard, -l->children[i].pid);
        unwatch_end(l, &l->children[i]);
    }
    l->count = 0;
    l->running = 0;
}

void crystal_launch_destroy(struct crystal_launch *l)
{
    const struct timespec at_once = {0, 0};
    sigset_t pipe;

    if (!l)
        return;
    (void)sigemptyset(&pipe);
    (void)sigaddset(&pipe, SIGPIPE);
    crystal_launch_stop(l, GRACE_MS);
    if (l->ends_fd >= 0)
        (void)close(l->ends_fd); /* empty */
    crystal_guard_destroy(l->guard);
    if (sigismember(&l->before, SIGPIPE) == 0) /* of a dead guard: dealt with */
        (void)sigtimedwait(&pipe, NULL, &at_once);
    (void)pthread_sigmask(SIG_SETMASK, &l->before, NULL);
    free(l->children);
    free(l);
}

void crystal_launch_end_text(const struct crystal_launch_end *end, char *out,
                             size_t out_bytes)
{
    if (end->signal)
        (void)snprintf(out, out_bytes, "was ended by signal %d (%s)", end->signal,
                       strsignal(end->signal));
    else
        (void)snprintf(out, out_bytes, "ended with code %d", end->code);
}
