/* Child processes of srun, sbatch and salloc. */
#include "config.h"

#include "spank/process.h"

#include "runtime/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const int ending_signals[] = {SIGINT,  SIGTERM, SIGHUP,
                                     SIGQUIT, SIGUSR1, SIGUSR2};

uint64_t crystal_process_now_ms(void)
{
    return crystal_now_ns() / 1000000;
}

const char *crystal_process_self(char *out, size_t out_bytes)
{
    ssize_t bytes = readlink("/proc/self/exe", out, out_bytes - 1);

    out[bytes > 0 ? bytes : 0] = '\0';
    if (bytes <= 0 || (size_t)bytes == out_bytes - 1 || access(out, X_OK) < 0)
        snprintf(out, out_bytes, "/proc/self/exe");
    return out;
}

void crystal_process_reset_signals(void)
{
    sigset_t none;

    for (int i = 1; i < NSIG; i++)
        (void)signal(i, SIG_DFL); /* fails for SIGKILL and SIGSTOP only */
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* How signals reach us: srun of Slurm 22.05 blocks them before it loads plugins, newer
 * ones have threads of their own that would take them. So a handler, which runs in any
 * thread, writes them into a pipe. One per process, until exec or exit. */
static int signal_pipe[2] = {-1, -1};

struct signal_note {
    int number;
    bool from_terminal; /* the whole process group has got it */
};

static void note_signal(int number, siginfo_t *info, void *context)
{
    struct signal_note note = {number, info->si_code == SI_KERNEL};
    int saved = errno;

    (void)context;
    if (write(signal_pipe[1], &note, sizeof note) < 0)
        errno = saved; /* full: enough of them are known */
    errno = saved;
}

static void ending_set(sigset_t *set)
{
    (void)sigemptyset(set);
    for (size_t i = 0; i < sizeof ending_signals / sizeof ending_signals[0]; i++)
        (void)sigaddset(set, ending_signals[i]);
}

int crystal_process_watch_signals(struct crystal_error *err)
{
    struct sigaction action = {.sa_sigaction = note_signal,
                               .sa_flags = SA_SIGINFO | SA_RESTART};
    sigset_t set;

    if (pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK) < 0)
        return crystal_error_set(err, errno, "pipe: %s", strerror(errno));
    (void)sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof ending_signals / sizeof ending_signals[0]; i++)
        (void)sigaction(ending_signals[i], &action, NULL); /* all are valid */
    ending_set(&set);
    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL); /* one that has waited comes now */
    return 0;
}

/* Takes one signal, 0 = none has come. */
static int take_signal(bool *ret_from_terminal)
{
    struct signal_note note;

    if (read(signal_pipe[0], &note, sizeof note) != (ssize_t)sizeof note)
        return 0;
    *ret_from_terminal = note.from_terminal;
    return note.number;
}

int crystal_process_pending_signal(void)
{
    bool from_terminal;

    return take_signal(&from_terminal);
}

/* Child only, so without allocation: no descriptor above 2 survives exec. */
static void close_above_stderr(void)
{
    long max;

#ifdef SYS_close_range
    if (syscall(SYS_close_range, 3U, ~0U, 0U) == 0)
        return;
#endif
    max = sysconf(_SC_OPEN_MAX);
    for (int fd = 3; fd < (max > 0 && max < 65536 ? max : 65536); fd++)
        (void)close(fd);
}

/* The child from fork to exec. out_fd becomes 1, err_fd becomes 2. */
static void become(const struct crystal_process_spec *spec, pid_t parent, int out_fd,
                   int err_fd)
{
    int null_fd = open("/dev/null", O_RDONLY);

    (void)prctl(PR_SET_PDEATHSIG, SIGTERM); /* cannot fail for a valid signal */
    if (getppid() != parent)
        _exit(128 + SIGTERM);
    if (spec->background)
        (void)setpgid(0, 0); /* cannot fail for a fresh child */
    crystal_process_reset_signals();
    if (null_fd < 0 || dup2(null_fd, 0) < 0 || dup2(out_fd, 1) < 0 ||
        dup2(err_fd, 2) < 0)
        _exit(126);
    close_above_stderr();
    if (spec->prepare)
        spec->prepare(spec->context);
    execvp(spec->path, spec->argv->v);
    dprintf(2, "crystal: %s: %s\n", spec->path, strerror(errno));
    _exit(127);
}

static int start(const struct crystal_process_spec *spec, int out_fd, int err_fd,
                 pid_t *ret_pid, struct crystal_error *err)
{
    pid_t parent = getpid(), pid;

    if (!crystal_argv_is_ok(spec->argv))
        return crystal_error_set(err, ENOMEM, "out of memory");
    pid = fork();
    if (pid < 0)
        return crystal_error_set(err, errno, "fork: %s", strerror(errno));
    if (pid == 0)
        become(spec, parent, out_fd, err_fd);
    *ret_pid = pid;
    return 0;
}

int crystal_process_start(const struct crystal_process_spec *spec, pid_t *ret_pid,
                          struct crystal_error *err)
{
    int fd = 2, rc;

    if (spec->log) {
        fd = open(spec->log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
        if (fd < 0)
            return crystal_error_set(err, errno, "%s: %s", spec->log, strerror(errno));
    }
    rc = start(spec, fd, fd, ret_pid, err);
    if (fd > 2)
        (void)close(fd); /* the child writes it */
    return rc;
}

static int exit_code(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Blocks until pid has ended. */
static int reap(pid_t pid)
{
    int status;

    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return exit_code(status);
}

bool crystal_process_wait(pid_t pid, uint64_t timeout_ms, int *ret_code)
{
    static const struct timespec pause = {0, 20 * 1000 * 1000};
    uint64_t deadline_ms = crystal_process_now_ms() + timeout_ms;

    for (;;) {
        int status;
        pid_t got = waitpid(pid, &status, WNOHANG);

        if (got == pid || (got < 0 && errno != EINTR)) {
            *ret_code = got == pid ? exit_code(status) : 0;
            return true;
        }
        if (crystal_process_now_ms() >= deadline_ms)
            return false;
        (void)nanosleep(&pause, NULL);
    }
}

void crystal_process_end(pid_t pid)
{
    int code;

    (void)kill(pid, SIGTERM); /* may have ended already */
    if (crystal_process_wait(pid, 5000, &code))
        return;
    (void)kill(pid, SIGKILL);
    (void)reap(pid);
}

int crystal_process_read(const struct crystal_process_spec *spec, char **ret_text,
                         struct crystal_error *err)
{
    int fds[2], rc, code;
    size_t used = 0, size = 4096;
    char *text;
    pid_t pid;
    ssize_t got;

    if (pipe2(fds, O_CLOEXEC) < 0)
        return crystal_error_set(err, errno, "pipe: %s", strerror(errno));
    rc = start(spec, fds[1], 2, &pid, err);
    (void)close(fds[1]);
    if (rc < 0) {
        (void)close(fds[0]);
        return rc;
    }
    text = malloc(size);
    while (text && ((got = read(fds[0], text + used, size - used - 1)) > 0 ||
                    (got < 0 && errno == EINTR))) {
        used += got > 0 ? (size_t)got : 0;
        if (used + 1 == size) {
            char *larger = size < (64U << 20) ? realloc(text, size * 2) : NULL;

            if (!larger)
                free(text);
            text = larger;
            size *= 2;
        }
    }
    (void)close(fds[0]);
    code = reap(pid);
    if (!text)
        return crystal_error_set(err, ENOMEM, "out of memory");
    text[used] = '\0';
    *ret_text = text;
    return code;
}

/* The open line of a stage. On a terminal it shows at once, elsewhere when it is done
 * or when something is to be printed below it. */
struct line {
    const char *title;
    bool shown; /* title stands there without a line end */
    bool broken;
};

static void line_begin(struct line *line)
{
    if (isatty(2)) {
        dprintf(2, "crystal: %s ...", line->title);
        line->shown = true;
    }
}

static void line_break(struct line *line)
{
    if (line->broken)
        return;
    dprintf(2, line->shown ? "\n" : "crystal: %s ...\n", line->title);
    line->broken = true;
}

static void line_end(struct line *line, double seconds, int code)
{
    const char *what = code == 0 ? "" : " (failed)";

    if (line->shown && !line->broken)
        dprintf(2, " %.1f s%s\n", seconds, what);
    else
        dprintf(2, "crystal: %s ... %.1f s%s\n", line->title, seconds, what);
}

/* Passes what has arrived on fd to standard error. False = end of file. */
static bool pump(int fd, struct line *line)
{
    char buffer[4096];
    ssize_t got = read(fd, buffer, sizeof buffer);

    if (got <= 0)
        return got < 0 && (errno == EINTR || errno == EAGAIN);
    line_break(line);
    for (ssize_t done = 0; done < got;) {
        ssize_t put = write(2, buffer + done, (size_t)(got - done));

        if (put < 0 && errno != EINTR)
            break; /* nobody reads our standard error: go on without */
        done += put > 0 ? put : 0;
    }
    return true;
}

/* Until the child has ended; the exit code. Its descendants may hold the pipe longer,
 * so that its end counts, not the pipe's. */
static int attend(pid_t pid, int fd, struct line *line, pid_t watch,
                  bool *ret_watch_ended)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    int status = 0, killed = 0;
    uint64_t watch_ended_ms = 0;

    for (;;) {
        pid_t got = waitpid(pid, &status, WNOHANG);
        bool from_terminal = false;
        siginfo_t info = {0};
        int number;

        if (got == pid || (got < 0 && errno != EINTR))
            break;
        number = take_signal(&from_terminal);
        if (number) {
            killed = number;
            if (!from_terminal)
                (void)kill(pid, number);
        }
        /* The child should notice itself that the watched process is gone, and say
         * more about it than we can: it has 5 s. */
        if (watch > 0 && !watch_ended_ms &&
            waitid(P_PID, (id_t)watch, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            info.si_pid == watch)
            watch_ended_ms = crystal_process_now_ms();
        if (watch_ended_ms && crystal_process_now_ms() - watch_ended_ms > 5000) {
            *ret_watch_ended = true;
            crystal_process_end(pid);
            killed = SIGTERM;
            break;
        }
        if (poll(&poll_fd, 1, 50) > 0 && !pump(fd, line))
            poll_fd.fd = -1;
    }
    while (poll_fd.fd >= 0 && poll(&poll_fd, 1, 0) > 0 && pump(fd, line))
        ;
    if (exit_code(status) == 0 && killed)
        return 128 + killed;
    return exit_code(status);
}

int crystal_process_stage(const struct crystal_process_spec *spec, const char *title,
                          pid_t watch, bool *ret_watch_ended, struct crystal_error *err)
{
    uint64_t start_ms = crystal_process_now_ms();
    struct line line = {.title = title};
    int fds[2], rc;
    pid_t pid;

    *ret_watch_ended = false;
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return crystal_error_set(err, errno, "pipe: %s", strerror(errno));
    /* The child's end blocks as a terminal would. */
    (void)fcntl(fds[1], F_SETFL, 0);
    line_begin(&line);
    rc = start(spec, fds[1], fds[1], &pid, err);
    (void)close(fds[1]);
    if (rc == 0) {
        rc = attend(pid, fds[0], &line, watch, ret_watch_ended);
        line_end(&line, (double)(crystal_process_now_ms() - start_ms) / 1e3, rc);
    }
    (void)close(fds[0]);
    return rc;
}
