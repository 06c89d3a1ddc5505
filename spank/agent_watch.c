/* See agent_watch.h.
 *
 * An agent that fails outlasts its tasks and ends with its own code, and one that Slurm
 * ends with the whole job ends by SIGTERM, as its tasks do. What is left is an agent
 * that was killed, or whose srun was, which slurmstepd kills then.
 */
#include "config.h"

#include "spank/agent_watch.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    GRACE_MS = 10000, /* for a program that ends by itself, or with the job */
    CHECK_MS = 100
};

/* The thread, or crystal_agent_watch_end, whoever is first. */
static atomic_bool is_over;

/* How the agents' srun ended; false where that needs nobody. */
static bool is_lost(const siginfo_t *info, char *text, size_t text_bytes)
{
    const int status = info->si_status;

    if (info->si_code != CLD_EXITED)
        (void)snprintf(text, text_bytes, "the agents' srun was ended by signal %d (%s)",
                       status, strsignal(status));
    else if (status > 128)
        (void)snprintf(text, text_bytes, "an agent was ended by signal %d (%s)",
                       status - 128, strsignal(status - 128));
    else
        (void)snprintf(text, text_bytes, "the agents have ended with exit code %d",
                       status);
    return info->si_code != CLD_EXITED || (status != 0 && status != 128 + SIGTERM);
}

static void *watch(void *context)
{
    static const struct timespec pause = {0, CHECK_MS * 1000000L};
    const pid_t agent = (pid_t)(intptr_t)context;
    siginfo_t info = {0};
    char text[160];

    while (waitid(P_PID, (id_t)agent, &info, WEXITED | WNOWAIT) < 0 && errno == EINTR)
        ;
    if (info.si_pid != agent || !is_lost(&info, text, sizeof text))
        return NULL;
    for (int waited_ms = 0; waited_ms < GRACE_MS; waited_ms += CHECK_MS) {
        if (atomic_load(&is_over))
            return NULL;
        (void)nanosleep(&pause, NULL);
    }
    if (atomic_exchange(&is_over, true))
        return NULL;
    dprintf(2, "crystal: %s and the program goes on without, ending it\n", text);
    (void)kill(getpid(), SIGTERM);
    return NULL;
}

void crystal_agent_watch_begin(pid_t agent)
{
    sigset_t all, before;
    pthread_t thread;

    if (!agent)
        return;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are srun's */
    if (pthread_create(&thread, NULL, watch, (void *)(intptr_t)agent) == 0)
        (void)pthread_detach(thread); /* else the user has Ctrl-C */
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void crystal_agent_watch_end(void)
{
    atomic_store(&is_over, true);
}
