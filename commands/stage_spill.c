/* See stage_spill.h. Several nodes may be at it at once. */
#include "config.h"

#include "commands/stage_spill.h"

#include "runtime/jobdir.h"
#include "runtime/payload.h"
#include "runtime/space.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRIES = 16 };

/* The directories above path. */
static int make_parents(const char *path, struct crystal_error *err)
{
    char part[PATH_MAX];

    for (const char *c = strchr(path + 1, '/'); c; c = strchr(c + 1, '/')) {
        (void)snprintf(part, sizeof part, "%.*s", (int)(c - path), path);
        if (mkdir(part, 0700) < 0 && errno != EEXIST)
            return crystal_error_set(err, errno, "spill_dir %s: %s", part,
                                     strerror(errno));
    }
    return 0;
}

static int open_directory(const char *path, struct crystal_error *err)
{
    char real[PATH_MAX];
    int code = make_parents(path, err);

    if (!code)
        code = crystal_jobdir_private("spill_dir", path, 1, real, err);
    if (!code && access(path, W_OK | X_OK) < 0)
        code = crystal_error_set(err, errno, "spill_dir %s: %s", path, strerror(errno));
    return code ? code : crystal_space_check(path, err);
}

static int leads_to(const char *link_path, const char *target)
{
    char old[PATH_MAX];
    ssize_t bytes = readlink(link_path, old, sizeof old - 1);

    if (bytes < 0)
        return 0;
    old[bytes] = 0;
    return strcmp(old, target) == 0;
}

int stage_spill_open(const struct stage *stage, struct crystal_error *err)
{
    const char *target = stage->layout.spill_dir;
    char path[PATH_MAX];
    int code = stage_path(stage, path, err, "ranks/" CRYSTAL_PAYLOAD_SPILL);

    if (!code && target)
        code = open_directory(target, err);
    if (code)
        return code;
    for (int i = 0; i < TRIES && target; i++) {
        if (leads_to(path, target) || symlink(target, path) == 0)
            return 0;
        if (errno != EEXIST)
            break;
        (void)unlink(path); /* of an earlier capture; symlink tells what is wrong */
    }
    if (!target && (unlink(path) == 0 || errno == ENOENT))
        return 0;
    return crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
}
