/* The job directory is private, locked while in use, and every fault has a sentence. */
#include "config.h"

#include "runtime/jobdir.h"

#include "tests/check.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char base[] = "/tmp/crystal-jobdir-XXXXXX";

static void made_private(void)
{
    struct crystal_error err = {0};
    char path[64], file[PATH_MAX], small[8];
    struct crystal_jobdir *dir;
    struct stat st;

    snprintf(path, sizeof path, "%s/a", base);
    CHECK(crystal_jobdir_open(path, 0, &err) == NULL);
    CHECK_HAS(crystal_error_text(&err), "No such file");
    dir = crystal_jobdir_open(path, 1, &err);
    CHECK(dir != NULL);
    CHECK_EQ(stat(path, &st), 0);
    CHECK_EQ(st.st_mode & 07777, 0700);
    CHECK_EQ(crystal_jobdir_mkdir(dir, "ranks", &err), 0);
    CHECK_EQ(crystal_jobdir_mkdir(dir, "ranks", &err), 0);
    CHECK_EQ(crystal_jobdir_file(dir, file, sizeof file, &err, "ranks/%d.trace", 7), 0);
    CHECK_HAS(file, "/a/ranks/7.trace");
    CHECK_EQ(crystal_jobdir_file(dir, small, sizeof small, &err, "x"), -ENAMETOOLONG);
    crystal_jobdir_close(dir);
    CHECK_EQ(chmod(path, 0770), 0);
    CHECK(crystal_jobdir_open(path, 1, &err) == NULL);
    CHECK_HAS(crystal_error_text(&err), "others can write");
}

static void one_user_at_a_time(void)
{
    struct crystal_error err = {0};
    char path[64];
    struct crystal_jobdir *first, *second;

    snprintf(path, sizeof path, "%s/b", base);
    first = crystal_jobdir_open(path, 1, &err);
    second = crystal_jobdir_open(path, 1, &err);
    CHECK(first && second);
    CHECK_EQ(crystal_jobdir_lock(first, &err), 0);
    CHECK_EQ(crystal_jobdir_lock(second, &err), -EBUSY);
    CHECK_HAS(crystal_error_text(&err), "in use by process");
    crystal_jobdir_close(first);
    CHECK_EQ(crystal_jobdir_lock(second, &err), 0);
    crystal_jobdir_close(second);
}

/* A holder that is killed leaves no lock behind. */
static void killed_holder(void)
{
    struct crystal_error err = {0};
    char path[64], byte;
    struct crystal_jobdir *dir;
    int pipes[2], status;
    pid_t pid;

    snprintf(path, sizeof path, "%s/c", base);
    CHECK_EQ(pipe(pipes), 0);
    pid = fork();
    if (pid == 0) {
        dir = crystal_jobdir_open(path, 1, NULL);
        byte = dir && crystal_jobdir_lock(dir, NULL) == 0 ? 'y' : 'n';
        if (write(pipes[1], &byte, 1) != 1)
            _exit(1);
        pause();
        _exit(0);
    }
    CHECK_EQ(read(pipes[0], &byte, 1), 1);
    CHECK_EQ(byte, 'y');
    dir = crystal_jobdir_open(path, 0, &err);
    CHECK(dir != NULL);
    CHECK_EQ(crystal_jobdir_lock(dir, &err), -EBUSY);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    CHECK_EQ(crystal_jobdir_lock(dir, &err), 0);
    crystal_jobdir_close(dir);
}

int main(void)
{
    char command[64];

    check_begin();
    if (!mkdtemp(base))
        return 1;
    CHECK_RUN(made_private);
    CHECK_RUN(one_user_at_a_time);
    CHECK_RUN(killed_holder);
    snprintf(command, sizeof command, "rm -rf %s", base);
    if (system(command))
        return 1;
    return check_end();
}
