/* See node_directory.h. A directory without a lock that is older than a minute belongs
 * to a killed process; its memory is given back when the next service starts. */
#include "config.h"

#include "replay/node_directory.h"

#include "runtime/guard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PARENT          "/dev/shm"
#define ABANDONED_AGE_S 60

static void remove_if_abandoned(const char *name)
{
    char path[300];
    struct stat s;
    int fd;

    (void)snprintf(path, sizeof path, PARENT "/%s", name);
    fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &s) == 0 && s.st_uid == geteuid() &&
        time(NULL) - s.st_mtime > ABANDONED_AGE_S && flock(fd, LOCK_EX | LOCK_NB) == 0)
        crystal_guard_remove_directory(path);
    (void)close(fd);
}

static void sweep(void)
{
    DIR *list = opendir(PARENT);
    const struct dirent *entry;
    char prefix[32];
    size_t length;

    if (!list)
        return;
    length = (size_t)snprintf(prefix, sizeof prefix, "crystal-%u-", geteuid());
    while ((entry = readdir(list)))
        if (strncmp(entry->d_name, prefix, length) == 0)
            remove_if_abandoned(entry->d_name);
    (void)closedir(list);
}

int crystal_node_directory_create(struct crystal_node_directory *ret,
                                  struct crystal_error *err)
{
    struct crystal_node_directory made = {.lock_fd = -1};
    int code;

    ret->lock_fd = -1;
    sweep();
    (void)snprintf(made.path, sizeof made.path, PARENT "/crystal-%u-XXXXXX", geteuid());
    if (!mkdtemp(made.path)) /* mode 0700 */
        return crystal_error_set(err, errno,
                                 "node: cannot make a directory in " PARENT
                                 ": %s; the board needs shared memory there",
                                 strerror(errno));
    made.lock_fd = open(made.path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (made.lock_fd < 0 || flock(made.lock_fd, LOCK_EX | LOCK_NB) < 0) {
        code = errno;
        if (made.lock_fd >= 0)
            (void)close(made.lock_fd);
        (void)rmdir(made.path); /* empty; else the next sweep takes it */
        return crystal_error_set(err, code, "node: cannot lock '%s': %s", made.path,
                                 strerror(code));
    }
    *ret = made;
    return 0;
}

void crystal_node_directory_remove(struct crystal_node_directory *directory)
{
    if (directory->lock_fd < 0)
        return;
    crystal_guard_remove_directory(directory->path);
    (void)close(directory->lock_fd);
    directory->lock_fd = -1;
}
