/* Launching ranks: environment, logs, exit codes, and that nothing is left behind,
 * however the launching process ends.
 */
#include "config.h"

#include "runtime/launch.h"

#include "tests/check.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

static char directory[64], log_path[128];

static int start_shell(struct crystal_launch *l, uint32_t lrank, const char *script,
                       const char *log, char *const *env, struct crystal_error *err)
{
    char *argv[] = {(char *)"sh", (char *)"-c", (char *)(uintptr_t)script, NULL};
    struct crystal_launch_rank rank = {
        .lrank = lrank, .argv = argv, .env = env, .log_path = log};

    return crystal_launch_start(l, &rank, err);
}

static const char *slurp(const char *path)
{
    static char text[4096];
    FILE *file = fopen(path, "r");
    size_t count = file ? fread(text, 1, sizeof text - 1, file) : 0;

    text[count] = 0;
    if (file)
        (void)fclose(file); /* read-only */
    return text;
}

static void codes_and_signals(void)
{
    struct crystal_error err = {0};
    struct crystal_launch *l = crystal_launch_create(&err);
    struct crystal_launch_end end;
    int codes[3] = {-1, -1, -1}, signals[3] = {-1, -1, -1}, signal;
    char text[128];

    CHECK(l != NULL);
    if (!l)
        return;
    CHECK_EQ(start_shell(l, 0, "exit 0", log_path, NULL, &err), 0);
    CHECK_EQ(start_shell(l, 1, "exit 7", log_path, NULL, &err), 0);
    CHECK_EQ(start_shell(l, 2, "kill -SEGV $$", log_path, NULL, &err), 0);
    CHECK_EQ(crystal_launch_running(l), 3);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(crystal_launch_wait(l, 5000, &end, &signal), 1);
        if (end.lrank < 3) {
            codes[end.lrank] = end.code;
            signals[end.lrank] = end.signal;
        }
    }
    CHECK_EQ(codes[0], 0);
    CHECK_EQ(codes[1], 7);
    CHECK_EQ(codes[2], 128 + SIGSEGV);
    CHECK_EQ(signals[1], 0);
    CHECK_EQ(signals[2], SIGSEGV);
    CHECK_EQ(crystal_launch_running(l), 0);
    CHECK_EQ(crystal_launch_wait(l, 0, &end, &signal), 0);
    crystal_launch_end_text(&(struct crystal_launch_end){0, 7, 0}, text, sizeof text);
    CHECK_STR(text, "ended with code 7");
    crystal_launch_end_text(&(struct crystal_launch_end){0, 139, 11}, text,
                            sizeof text);
    CHECK_STR(text, "was ended by signal 11 (Segmentation fault)");
    crystal_launch_destroy(l);
}

/* Ranks that have all ended before anybody looks are told in the order of their ends.
 */
static void ends_in_their_order(void)
{
    static const uint32_t order[] = {2, 0, 3, 1};
    const struct timespec pause = {1, 500000000};
    struct crystal_error err = {0};
    struct crystal_launch *l = crystal_launch_create(&err);
    struct crystal_launch_end end;
    char script[64];
    int signal;

    if (!l)
        return;
    for (uint32_t lrank = 0; lrank < 4; lrank++) {
        uint32_t at = 0;

        while (order[at] != lrank)
            at++;
        (void)snprintf(script, sizeof script, "sleep %.1f; exit %u", 0.1 + 0.3 * at,
                       lrank);
        CHECK_EQ(start_shell(l, lrank, script, log_path, NULL, &err), 0);
    }
    while (nanosleep(&pause, NULL) < 0) /* SIGCHLD is blocked, but whatever comes */
        ;
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(crystal_launch_wait(l, 5000, &end, &signal), 1);
        CHECK_EQ(end.lrank, order[i]);
        CHECK_EQ(end.code, order[i]);
    }
    CHECK_EQ(crystal_launch_running(l), 0);
    crystal_launch_destroy(l);
}

static void environment_log_and_stdin(void)
{
    char *env[] = {(char *)"RANK=5", (char *)"LAUNCH_OLD=new", NULL};
    struct crystal_error err = {0};
    struct crystal_launch *l = crystal_launch_create(&err);
    struct crystal_launch_end end;
    struct stat st;
    int signal;

    if (!l)
        return;
    CHECK_EQ(setenv("LAUNCH_OLD", "old", 1), 0);
    CHECK_EQ(setenv("LAUNCH_KEPT", "kept", 1), 0);
    CHECK_EQ(start_shell(l, 5,
                         "echo $RANK $LAUNCH_OLD $LAUNCH_KEPT; echo oops >&2; cat; "
                         "test $(ps -o pgid= $$) = $$ && echo leader",
                         log_path, env, &err),
             0);
    CHECK_EQ(crystal_launch_wait(l, 5000, &end, &signal), 1);
    CHECK_EQ(end.code, 0);
    CHECK_STR(slurp(log_path), "5 new kept\noops\nleader\n");
    CHECK_EQ(stat(log_path, &st), 0);
    CHECK_EQ(st.st_mode & 0777, 0600);
    crystal_launch_destroy(l);
}

static void what_cannot_run(void)
{
    char *argv[] = {(char *)"crystal-no-such-program", NULL};
    struct crystal_launch_rank rank = {.lrank = 1, .argv = argv};
    struct crystal_error err = {0};
    struct crystal_launch *l = crystal_launch_create(&err);

    if (!l)
        return;
    CHECK_EQ(crystal_launch_start(l, &rank, &err), -ENOENT);
    CHECK_STR(
        err.text,
        "launch: cannot run 'crystal-no-such-program': No such file or directory");
    CHECK_EQ(crystal_launch_running(l), 0);
    CHECK_EQ(start_shell(l, 0, "exit 0", "/nonexistent/log", NULL, &err), -ENOENT);
    CHECK_STR(err.text, "launch: /nonexistent/log: No such file or directory");
    crystal_launch_destroy(l);
}

/* Zombies whose new parent has not looked yet count as dead. */
static int is_alive(const char *pid_file)
{
    char path[64], state = 0;
    FILE *file;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", atoi(slurp(pid_file)));
    file = fopen(path, "r");
    if (!file)
        return 0;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
        state = 0;
    (void)fclose(file); /* read-only */
    return state && state != 'Z';
}

static void wait_for(const char *pid_file)
{
    const struct timespec pause = {0, 10000000};

    for (int i = 0; i < 6000 && !slurp(pid_file)[0]; i++)
        (void)nanosleep(&pause, NULL);
}

static void wait_gone(const char *pid_file)
{
    const struct timespec pause = {0, 10000000};

    for (int i = 0; i < 6000 && is_alive(pid_file); i++)
        (void)nanosleep(&pause, NULL);
}

/* A rank that ignores SIGTERM, and its own child that does not. */
#define STUBBORN \
    "sleep 60 & echo $! >%s/child; trap '' TERM; echo $$ >%s/own; wait; sleep 60"

static void stop_kills_the_stubborn(void)
{
    struct crystal_error err = {0};
    struct crystal_launch *l = crystal_launch_create(&err);
    char script[512], own[128], child[128];
    struct timespec from, to;

    if (!l)
        return;
    (void)snprintf(script, sizeof script, STUBBORN, directory, directory);
    (void)snprintf(own, sizeof own, "%s/own", directory);
    (void)snprintf(child, sizeof child, "%s/child", directory);
    CHECK_EQ(start_shell(l, 0, script, log_path, NULL, &err), 0);
    wait_for(own);
    CHECK(is_alive(own) && is_alive(child));
    (void)clock_gettime(CLOCK_MONOTONIC, &from);
    crystal_launch_stop(l, 300);
    (void)clock_gettime(CLOCK_MONOTONIC, &to);
    CHECK((to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000 >=
          290);
    CHECK(!is_alive(own) && !is_alive(child));
    CHECK_EQ(crystal_launch_running(l), 0);
    crystal_launch_destroy(l);
    (void)unlink(own);
    (void)unlink(child);
}

static void death_of_the_launcher_leaves_nothing(void)
{
    char script[512], own[128], child[128], file[64];
    char gone[] = "/tmp/crystal-gone.XXXXXX", kept[] = "/tmp/crystal-kept.XXXXXX";
    pid_t launcher;

    (void)snprintf(script, sizeof script, STUBBORN, directory, directory);
    (void)snprintf(own, sizeof own, "%s/own", directory);
    (void)snprintf(child, sizeof child, "%s/child", directory);
    CHECK(mkdtemp(gone) && mkdtemp(kept));
    (void)snprintf(file, sizeof file, "%s/file", gone);
    CHECK_EQ(close(open(file, O_WRONLY | O_CREAT, 0600)), 0);
    launcher = fork();
    if (launcher == 0) {
        struct crystal_launch *l = crystal_launch_create(NULL);

        if (!l)
            _exit(1);
        crystal_launch_keep_clean(l, kept);
        crystal_launch_keep_clean(l, NULL);
        crystal_launch_keep_clean(l, gone);
        if (start_shell(l, 0, script, log_path, NULL, NULL))
            _exit(1);
        (void)pause();
        _exit(1);
    }
    wait_for(own);
    CHECK(is_alive(own) && is_alive(child));
    CHECK_EQ(kill(launcher, SIGKILL), 0);
    CHECK_EQ(waitpid(launcher, NULL, 0), launcher);
    wait_gone(own);
    wait_gone(child);
    CHECK(!is_alive(own) && !is_alive(child));
    for (int i = 0; i < 6000 && access(gone, F_OK) == 0; i++)
        (void)nanosleep(&(struct timespec){0, 10000000}, NULL);
    CHECK_EQ(access(gone, F_OK), -1);
    CHECK_EQ(rmdir(kept), 0);
    (void)unlink(own);
    (void)unlink(child);
}

static void signals_ask_to_stop(void)
{
    struct crystal_error err = {0};
    struct crystal_launch *l = crystal_launch_create(&err);
    struct crystal_launch_end end;
    int signal = 0;

    if (!l)
        return;
    CHECK_EQ(start_shell(l, 0, "sleep 60", log_path, NULL, &err), 0);
    CHECK_EQ(kill(getpid(), SIGTERM), 0);
    CHECK_EQ(crystal_launch_wait(l, 5000, &end, &signal), -EINTR);
    CHECK_EQ(signal, SIGTERM);
    crystal_launch_destroy(l);
}

/* Ends with another signal than SIGKILL, to tidy up. */
static void its_own_death_signal(void)
{
    char script[512], own[128], tidy[128];
    pid_t launcher;

    (void)snprintf(own, sizeof own, "%s/own", directory);
    (void)snprintf(tidy, sizeof tidy, "%s/tidy", directory);
    (void)snprintf(script, sizeof script,
                   "trap 'echo done >%s; exit' TERM; echo $$ >%s; while :; do sleep "
                   "0.05; done",
                   tidy, own);
    launcher = fork();
    if (launcher == 0) {
        char *argv[] = {(char *)"sh", (char *)"-c", script, NULL};
        struct crystal_launch_rank rank = {
            .argv = argv, .log_path = log_path, .death_signal = SIGTERM};
        struct crystal_launch *l = crystal_launch_create(NULL);

        if (!l || crystal_launch_start(l, &rank, NULL))
            _exit(1);
        (void)pause();
        _exit(1);
    }
    wait_for(own);
    CHECK_EQ(kill(launcher, SIGKILL), 0);
    CHECK_EQ(waitpid(launcher, NULL, 0), launcher);
    wait_gone(own);
    CHECK_STR(slurp(tidy), "done\n");
    (void)unlink(own);
    (void)unlink(tidy);
}

/* Where the launching process blocks signals already, its ranks do not. */
static void ranks_take_signals(void)
{
    struct crystal_error err = {0};
    struct crystal_launch *first = crystal_launch_create(&err);
    struct crystal_launch *second = crystal_launch_create(&err);
    struct crystal_launch_end end = {0};
    int signal;

    if (!first || !second)
        return;
    CHECK_EQ(start_shell(second, 0, "kill -TERM $$; sleep 60", log_path, NULL, &err),
             0);
    CHECK_EQ(crystal_launch_wait(second, 5000, &end, &signal), 1);
    CHECK_EQ(end.signal, SIGTERM);
    crystal_launch_destroy(second);
    crystal_launch_destroy(first);
}

int main(void)
{
    check_begin();
    (void)snprintf(directory, sizeof directory, "/tmp/crystal-launch.XXXXXX");
    if (!mkdtemp(directory))
        return 1;
    (void)snprintf(log_path, sizeof log_path, "%s/log", directory);
    CHECK_RUN(codes_and_signals);
    CHECK_RUN(ends_in_their_order);
    CHECK_RUN(environment_log_and_stdin);
    CHECK_RUN(what_cannot_run);
    CHECK_RUN(stop_kills_the_stubborn);
    CHECK_RUN(death_of_the_launcher_leaves_nothing);
    CHECK_RUN(its_own_death_signal);
    CHECK_RUN(signals_ask_to_stop);
    CHECK_RUN(ranks_take_signals);
    (void)unlink(log_path);
    (void)rmdir(directory);
    return check_end();
}
