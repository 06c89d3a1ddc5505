/* See guard.h. The guard reads notes from a pipe whose writing end only its maker has;
 * at the end of the stream the maker is dead. */
#include "config.h"

#include "runtime/guard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GRACE_MS 3000
#define DYING_MS 500 /* after SIGKILL; who is left then is a zombie of others */
#define GROUPS   4096

/* Short enough to be written at once. */
struct note {
    int32_t group;                      /* 0: the directory */
    char directory[CRYSTAL_GUARD_PATH]; /* "": none */
};

struct crystal_guard {
    int fd; /* writing end */
    pid_t pid;
};

static void pause_ms(long ms)
{
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000L};

    while (nanosleep(&pause, &pause) < 0 && errno == EINTR)
        ;
}

void crystal_guard_end_groups(pid_t *groups, uint32_t count, int grace_ms, int reap)
{
    for (int waited_ms = 0;; waited_ms += 20) {
        int signal = waited_ms == 0 ? SIGTERM : waited_ms >= grace_ms ? SIGKILL : 0;
        uint32_t left = 0;

        for (uint32_t i = 0; i < count; i++) {
            if (!groups[i])
                continue;
            if (reap)
                (void)waitpid(groups[i], NULL, WNOHANG); /* else it stays a zombie */
            if (kill(-groups[i], signal) < 0 && errno == ESRCH)
                groups[i] = 0;
            else
                left++;
        }
        if (!left || waited_ms > grace_ms + DYING_MS)
            return;
        pause_ms(20);
    }
}

void crystal_guard_remove_directory(const char *path)
{
    DIR *list = *path ? opendir(path) : NULL;
    const struct dirent *entry;

    if (!list)
        return;
    while ((entry = readdir(list)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            (void)unlinkat(dirfd(list), entry->d_name, 0); /* else rmdir says so */
    (void)closedir(list);
    (void)rmdir(path); /* what is left is no longer ours */
}

static void guard_main(int fd) __attribute__((noreturn));

static void guard_main(int fd)
{
    static pid_t groups[GROUPS];
    int null = open("/dev/null", O_RDWR);
    char directory[CRYSTAL_GUARD_PATH] = "";
    struct note note;
    ssize_t done;

    (void)setpgid(0, 0); /* a terminal's Ctrl-C is not for the guard */
    (void)prctl(PR_SET_NAME, "crystal-guard");
    for (int i = 0; i < 3 && null >= 0; i++)
        (void)dup2(null, i); /* nobody must wait for our copies of the outputs */
    for (int i = 3; i < 1024; i++)
        if (i != fd)
            (void)close(i);
    while ((done = read(fd, &note, sizeof note)) != 0) {
        int at = 0;

        if (done < 0 && errno == EINTR)
            continue;
        if (done != (ssize_t)sizeof note)
            break;
        if (!note.group) {
            memcpy(directory, note.directory, sizeof directory);
            continue;
        }
        while (at < GROUPS && groups[at] != (note.group < 0 ? -note.group : 0))
            at++;
        if (at < GROUPS)
            groups[at] = note.group < 0 ? 0 : note.group;
    }
    crystal_guard_end_groups(groups, GROUPS, GRACE_MS, 0);
    crystal_guard_remove_directory(directory); /* nobody uses it any more */
    _exit(0);
}

static void tell(struct crystal_guard *guard, const struct note *note)
{
    if (write(guard->fd, note, sizeof *note) < 0)
        return; /* without the guard, PDEATHSIG remains */
}

void crystal_guard_group(struct crystal_guard *guard, pid_t group)
{
    const struct note note = {.group = group};

    tell(guard, &note);
}

void crystal_guard_directory(struct crystal_guard *guard, const char *path)
{
    struct note note = {0};

    if (path && strlen(path) < sizeof note.directory)
        memcpy(note.directory, path, strlen(path));
    tell(guard, &note);
}

struct crystal_guard *crystal_guard_create(struct crystal_error *err)
{
    struct crystal_guard *guard = calloc(1, sizeof *guard);
    int ends[2];

    if (!guard || pipe2(ends, O_CLOEXEC) < 0) {
        (void)crystal_error_set(err, guard ? errno : ENOMEM, "launch: pipe: %s",
                                strerror(guard ? errno : ENOMEM));
        free(guard);
        return NULL;
    }
    guard->pid = fork();
    if (guard->pid == 0) {
        (void)close(ends[1]);
        guard_main(ends[0]);
    }
    (void)close(ends[0]);
    guard->fd = ends[1];
    if (guard->pid < 0) {
        (void)crystal_error_set(err, errno, "launch: fork: %s", strerror(errno));
        (void)close(ends[1]);
        free(guard);
        return NULL;
    }
    return guard;
}

void crystal_guard_destroy(struct crystal_guard *guard)
{
    if (!guard)
        return;
    (void)close(guard->fd); /* the guard's end */
    while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    free(guard);
}
