/* Checks for the unit tests: TAP on standard output, alive in every build type.
 *
 * A test program is a list of CHECK_RUN(function) between check_begin() and
 * check_end(). A failing check prints its place and both values and marks the running
 * test function as failed; the others go on. Every program ends itself after
 * CHECK_LIMIT_S, with the processes that it has made: a limit for what stands still,
 * not for what is slow on a loaded machine.
 */
#ifndef CRYSTAL_TESTS_CHECK_H
#define CRYSTAL_TESTS_CHECK_H

#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK_LIMIT_S 600

static int check_count, check_failed_count;
static bool check_ok;

#define CHECK(condition)                                             \
    do {                                                             \
        if (!(condition)) {                                          \
            printf("# %s:%d: %s\n", __FILE__, __LINE__, #condition); \
            check_ok = false;                                        \
        }                                                            \
    } while (0)

#define CHECK_EQ(got, want)                                                            \
    do {                                                                               \
        long long got_ = (long long)(got), want_ = (long long)(want);                  \
        if (got_ != want_) {                                                           \
            printf("# %s:%d: %s is %lld, want %lld\n", __FILE__, __LINE__, #got, got_, \
                   want_);                                                             \
            check_ok = false;                                                          \
        }                                                                              \
    } while (0)

#define CHECK_STR(got, want)                                                     \
    do {                                                                         \
        const char *got_ = (got), *want_ = (want);                               \
        if (!got_ || strcmp(got_, want_) != 0) {                                 \
            printf("# %s:%d: %s is '%s', want '%s'\n", __FILE__, __LINE__, #got, \
                   got_ ? got_ : "(null)", want_);                               \
            check_ok = false;                                                    \
        }                                                                        \
    } while (0)

/* got contains part */
#define CHECK_HAS(got, part)                                                           \
    do {                                                                               \
        const char *got_ = (got), *part_ = (part);                                     \
        if (!got_ || !strstr(got_, part_)) {                                           \
            printf("# %s:%d: %s is '%s', want '%s' in it\n", __FILE__, __LINE__, #got, \
                   got_ ? got_ : "(null)", part_);                                     \
            check_ok = false;                                                          \
        }                                                                              \
    } while (0)

#define CHECK_RUN(function)                                                         \
    do {                                                                            \
        check_ok = true;                                                            \
        function();                                                                 \
        check_count++;                                                              \
        if (!check_ok)                                                              \
            check_failed_count++;                                                   \
        printf("%s %d - %s\n", check_ok ? "ok" : "not ok", check_count, #function); \
        fflush(stdout);                                                             \
    } while (0)

/* In a process that checks on its own and ends with check_ok: it ends before the
 * program that waits for it, and where that is ended. */
static inline void check_begin_child(void)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)alarm(CHECK_LIMIT_S / 2);
    check_ok = true;
}

/* Functions that mostly wait, each in a process of its own, all at once; told in order.
 * One that ends its process in any other way has failed. Nothing of the caller's is
 * changed. */
struct check_case {
    const char *name;
    void (*run)(void);
};

#define CHECK_CASE(function) \
    {                        \
#function, function  \
    }

static inline pid_t check_start(const struct check_case *run, int out)
{
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        (void)dup2(out, STDOUT_FILENO);
        check_begin_child();
        run->run();
        exit(check_ok ? 0 : 1);
    }
    return pid;
}

static inline void check_tell(const struct check_case *run, pid_t pid, FILE *out)
{
    char text[4096];
    int status = -1;
    size_t count;

    (void)waitpid(pid, &status, 0);
    rewind(out);
    while ((count = fread(text, 1, sizeof text, out)) > 0)
        (void)fwrite(text, 1, count, stdout);
    (void)fclose(out);
    check_count++;
    if (status != 0)
        check_failed_count++;
    printf("%s %d - %s\n", status == 0 ? "ok" : "not ok", check_count, run->name);
}

static inline void check_together(const struct check_case *cases, size_t count)
{
    FILE *outs[16];
    pid_t pids[16];

    for (size_t i = 0; i < count; i++) {
        outs[i] = i < 16 ? tmpfile() : NULL;
        pids[i] = outs[i] ? check_start(&cases[i], fileno(outs[i])) : -1;
        if (pids[i] < 0) {
            printf("Bail out! cannot start %s\n", cases[i].name);
            exit(1);
        }
    }
    for (size_t i = 0; i < count; i++)
        check_tell(&cases[i], pids[i], outs[i]);
}

static inline void check_begin(void)
{
    (void)alarm(CHECK_LIMIT_S);
}

static inline int check_end(void)
{
    printf("1..%d\n", check_count);
    return check_failed_count ? 1 : 0;
}

#endif
