/* See pending.h.
 *
 * salloc says the job's number to nobody before it starts, so the child looks for jobs
 * of that name that this session has submitted and that wait. That salloc has its job
 * shows in its having started the command: then slurmctld is not asked at all.
 */
#include "config.h"

#include "spank/pending.h"

#include "spank/ask.h"
#include "spank/process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum {
    FIRST_LOOK_S = 5,
    LONGEST_PAUSE_S = 60 /* between looks: slurmctld has others to answer */
};

/* Jobs that wait and may be ours. */
struct found {
    unsigned long id; /* of the last one */
    unsigned count;
    char reason[64];
};

/* "12|0|4711|Resources": number, component, session, reason. */
static void take_line(const char *line, struct found *ret)
{
    unsigned long id, component = 0, session;
    char part[16], reason[64];

    if (sscanf(line, " %lu | %15[^|]| %lu | %63s", &id, part, &session, reason) != 4 ||
        session != (unsigned long)getsid(0))
        return;
    (void)sscanf(part, "%lu", &component); /* no number: it is not one of several */
    if (component || strcmp(reason, "None") == 0)
        return; /* slurmctld has not looked at it yet */
    ret->id = id;
    ret->count++;
    (void)snprintf(ret->reason, sizeof ret->reason, "%s", reason);
}

static struct found look(const struct crystal_pending *pending)
{
    char user[32], name[300];
    const char *words[] = {
        "--noheader",
        "--states=PENDING",
        "--Format=JobID:.20|,HetJobOffset:.15|,AllocSID:.20|,Reason:.63",
        user,
        name,
        NULL};
    struct found found = {0};
    char *text, *rest, *line;

    (void)snprintf(user, sizeof user, "--user=%lu", (unsigned long)getuid());
    (void)snprintf(name, sizeof name, "--name=%s", pending->job_name);
    text = rest = crystal_ask_slurm("squeue", pending->cluster, words);
    while ((line = strsep(&rest, "\n")))
        take_line(line, &found);
    free(text);
    return found;
}

/* salloc has a child beside us: the command, so the job has started. */
static bool has_started(pid_t salloc)
{
    char path[64];
    long pid;
    bool other = false;
    FILE *file;

    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)salloc,
                   (int)salloc);
    file = fopen(path, "re");
    while (file && !other && fscanf(file, "%ld", &pid) == 1)
        other = pid != (long)getpid();
    if (file)
        (void)fclose(file); /* only read */
    return other;
}

static void say(const struct crystal_pending *pending, const struct found *found)
{
    const char *s = pending->node_count == 1 ? "" : "s";
    char number[32] = "the job";

    if (found->count == 1) /* else which one is ours is not known */
        (void)snprintf(number, sizeof number, "job %lu", found->id);
    dprintf(2, "crystal: %s waits for %u node%s (%s); Ctrl-C gives up\n", number,
            pending->node_count, s, found->reason);
}

static void watch(const struct crystal_pending *pending, pid_t salloc)
{
    for (unsigned pause_s = FIRST_LOOK_S;;) {
        struct found found;

        (void)sleep(pause_s);
        if (has_started(salloc))
            return;
        found = look(pending);
        if (found.count && !has_started(salloc)) {
            say(pending, &found);
            return;
        }
        pause_s = pause_s * 2 < LONGEST_PAUSE_S ? pause_s * 2 : LONGEST_PAUSE_S;
    }
}

void crystal_pending_tell(const struct crystal_pending *pending)
{
    pid_t salloc = getpid();
    int null_fd;

    if (fork() != 0)
        return;                             /* without it the job waits in silence */
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM); /* cannot fail for a valid signal */
    crystal_process_reset_signals();
    null_fd = open("/dev/null", O_RDWR);
    /* whoever reads the program's output waits for its end, not for ours */
    if (getppid() == salloc && null_fd >= 0 && dup2(null_fd, 0) == 0 &&
        dup2(null_fd, 1) == 1)
        watch(pending, salloc);
    _exit(0);
}
