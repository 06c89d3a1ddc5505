/* For tests of the stages by hand: a job directory of 16 ranks of which 4 are live and
 * the sandbox, scrystal and ncclprog as child processes, and what they leave.
 */
#ifndef CRYSTAL_TESTS_BY_HAND_H
#define CRYSTAL_TESTS_BY_HAND_H

#include "runtime/filehead.h"

#include "tests/check.h"
#include "tests/folders.h"
#include "tests/traces.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#define LIVE 4

static char job_dir[PATH_MAX], scrystal[PATH_MAX], program[PATH_MAX];
static char output[16384]; /* what the last command printed */

static inline void pause_ms(long ms)
{
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000L};

    (void)nanosleep(&pause, NULL);
}

static inline pid_t start(const char *format, ...)
    __attribute__((format(printf, 1, 2)));

/* Runs a shell line in the background, output to a file. It ends with the test, where
 * that is cut off, and so do the stages and ranks that it has started. */
static inline pid_t start(const char *format, ...)
{
    static const char on_term[] = "trap 'trap - TERM; kill 0' TERM\n";
    char line[8192], path[PATH_MAX + 16];
    va_list args;
    pid_t pid;

    memcpy(line, on_term, sizeof on_term);
    va_start(args, format);
    (void)vsnprintf(line + sizeof on_term - 1, sizeof line - sizeof on_term + 1, format,
                    args);
    va_end(args);
    (void)snprintf(path, sizeof path, "%s.out", job_dir);
    pid = fork();
    if (pid == 0) {
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

        (void)setpgid(0, 0); /* whom "kill 0" means */
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
        (void)dup2(fd, 1);
        (void)dup2(fd, 2);
        (void)execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    return pid;
}

/* The exit code, 128 + signal; output is filled. */
static inline int finish(pid_t pid)
{
    char path[PATH_MAX + 16];
    int status = 0;
    FILE *file;
    size_t count;

    (void)waitpid(pid, &status, 0);
    (void)snprintf(path, sizeof path, "%s.out", job_dir);
    file = fopen(path, "r");
    count = file ? fread(output, 1, sizeof output - 1, file) : 0;
    output[count] = 0;
    if (file)
        (void)fclose(file); /* read-only */
    (void)unlink(path);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static inline void make_job(const char *layout_options)
{
    CHECK_EQ(finish(start("rm -rf %s && mkdir -m 700 %s && exec %s layout "
                          "--logical-ranks=16 --ranks-per-node=4 "
                          "--parallel=tp=2,pp=2,dp=4 --sandbox=0-3 --job-dir=%s "
                          "--write %s",
                          job_dir, job_dir, scrystal, job_dir, layout_options)),
             0);
}

static inline pid_t start_stage(const char *stage, const char *options)
{
    return start("exec %s %s --job %s -- %s --tp 2 --pp 2 %s", scrystal, stage, job_dir,
                 program, options);
}

static inline int read_trace(const char *sub, unsigned lrank, struct crystal_trace *ret)
{
    char directory[PATH_MAX];

    (void)snprintf(directory, sizeof directory, "%s/%s", job_dir, sub);
    return trace_read(directory, lrank, ret);
}

/* Processes with the job directory in their environment: ranks. */
static inline int rank_processes(void)
{
    static char environment[65536];
    DIR *dir = opendir("/proc");
    struct dirent *entry;
    int count = 0;

    while (dir && (entry = readdir(dir)) != NULL) {
        char path[300];
        ssize_t got;
        int fd;

        (void)snprintf(path, sizeof path, "/proc/%.200s/environ", entry->d_name);
        fd = open(path, O_RDONLY);
        if (fd < 0)
            continue;
        got = read(fd, environment, sizeof environment);
        (void)close(fd); /* read-only */
        if (got > 0 &&
            memmem(environment, (size_t)got, job_dir, strlen(job_dir)) != NULL)
            count++;
    }
    if (dir)
        (void)closedir(dir);
    return count;
}

static inline void nothing_is_left(void)
{
    for (int i = 0; i < 50 && rank_processes(); i++)
        pause_ms(100);
    CHECK_EQ(rank_processes(), 0);
}

static inline void all_traces_are_sealed(const char *sub)
{
    for (unsigned r = 0; r < LIVE; r++) {
        struct crystal_trace trace = {0};

        CHECK_EQ(read_trace(sub, r, &trace), 0);
        CHECK(trace.head.file_bytes != 0);
        CHECK(trace.op_count >= 1);
        crystal_trace_fini(&trace);
    }
}

/* Sets the paths; a new directory around the job's. */
static inline int by_hand_begin(char *parent)
{
    const char *build = build_folder(), *asan = getenv("ASAN_OPTIONS");
    char asan_options[512];

    if (!mkdtemp(parent))
        return -1;
    /* a rank that is to die of a signal must do so under AddressSanitizer, too */
    (void)snprintf(asan_options, sizeof asan_options, "%s:handle_segv=0",
                   asan ? asan : "");
    (void)setenv("ASAN_OPTIONS", asan_options, 1);
    (void)snprintf(job_dir, sizeof job_dir, "%s/job", parent);
    (void)snprintf(scrystal, sizeof scrystal, "%s/scrystal", build);
    (void)snprintf(program, sizeof program, "%s/tests/programs/ncclprog", build);
    return 0;
}

/* A job of its own for a case that runs beside others (check_together): a copy of what
 * there is. No name may begin with another one's. */
static inline void own_job(const char *name)
{
    char from[PATH_MAX];

    memcpy(from, job_dir, sizeof from);
    (void)snprintf(job_dir + strlen(job_dir), sizeof job_dir - strlen(job_dir), ".%s",
                   name);
    CHECK_EQ(finish(start("[ ! -e %s ] || exec cp -a %s %s", from, from, job_dir)), 0);
}

static inline void by_hand_end(const char *parent)
{
    CHECK_EQ(finish(start("rm -rf %s", parent)), 0);
}

#endif
