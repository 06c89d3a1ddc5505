/* DIR/token and DIR/coord, by which clients find the coordinator. See jobdir.h. */
#include "config.h"

#include "runtime/coord_state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static int write_secret(const struct crystal_coord *coord, const char *name,
                        const char *text, struct crystal_error *err)
{
    char path[PATH_MAX], temporary[PATH_MAX];
    size_t bytes = strlen(text);
    int fd, rc;

    rc = crystal_jobdir_file(coord->config.dir, path, sizeof path, err, "%s", name);
    if (rc == 0)
        rc = crystal_jobdir_file(coord->config.dir, temporary, sizeof temporary, err,
                                 "%s.tmp", name);
    if (rc < 0)
        return rc;
    (void)unlink(temporary); /* a leftover may have another mode */
    fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return crystal_error_set(err, errno, "coordinator: %s: %s", temporary,
                                 strerror(errno));
    rc = write(fd, text, bytes) == (ssize_t)bytes ? 0 : -(errno ? errno : EIO);
    if (close(fd) < 0 && rc == 0)
        rc = -errno;
    if (rc == 0 && rename(temporary, path) < 0)
        rc = -errno;
    if (rc == 0)
        return 0;
    (void)unlink(temporary);
    return crystal_error_set(err, -rc, "coordinator: cannot write %s: %s", path,
                             strerror(-rc));
}

int crystal_coord_write_files(struct crystal_coord *coord, struct crystal_error *err)
{
    char hex[2 * CRYSTAL_TOKEN_BYTES + 2], text[512];
    int rc;

    if (getrandom(coord->token, sizeof coord->token, 0) != (ssize_t)sizeof coord->token)
        return crystal_error_set(err, EIO,
                                 "coordinator: no random numbers for the token");
    for (size_t i = 0; i < CRYSTAL_TOKEN_BYTES; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", coord->token[i]);
    strcat(hex, "\n");
    coord->files_written = 1;
    rc = write_secret(coord, "token", hex, err);
    memset(hex, 0, sizeof hex);
    if (rc < 0)
        return rc;
    (void)snprintf(text, sizeof text, "host=%s\nport=%u\nstore_port=%u\n", coord->host,
                   coord->port, coord->store_port);
    return write_secret(coord, "coord", text, err); /* last: clients wait for it */
}

void crystal_coord_remove_files(const struct crystal_coord *coord)
{
    static const char *const names[] = {"coord", "token"};
    char path[PATH_MAX];

    for (size_t i = 0; i < 2; i++)
        if (crystal_jobdir_file(coord->config.dir, path, sizeof path, NULL, "%s",
                                names[i]) == 0)
            (void)unlink(path); /* nothing more to do about it */
}
