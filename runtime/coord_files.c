/* DIR/token and DIR/coord, with the coordinator's suffix, by which clients find the
 * coordinator. See jobdir.h. */
#include "config.h"

#include "runtime/coord_state.h"
#include "runtime/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static int path_of(const struct crystal_coord *coord, const char *name,
                   char path[PATH_MAX], struct crystal_error *err)
{
    const char *suffix = coord->config.suffix;

    return crystal_jobdir_file(coord->config.dir, path, PATH_MAX, err, "%s%s", name,
                               suffix ? suffix : "");
}

static int write_secret(const struct crystal_coord *coord, const char *name,
                        const char *text, struct crystal_error *err)
{
    struct crystal_outfile f = {0};
    char path[PATH_MAX];
    int code = path_of(coord, name, path, err);

    if (!code)
        code = crystal_outfile_open(&f, path, CRYSTAL_OUTFILE_PRIVATE, err);
    if (!code) {
        (void)fputs(text, f.stream); /* close tells */
        code = crystal_outfile_close(&f, 0, err);
    }
    if (code)
        crystal_error_prefix(err, "coordinator");
    return code;
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
    (void)snprintf(text, sizeof text, "host=%s\nport=%u\nstore_port=%u\npid=%d\n%s%s%s",
                   coord->host, coord->port, coord->store_port, (int)getpid(),
                   coord->config.claim ? "claim=" : "",
                   coord->config.claim ? coord->config.claim : "",
                   coord->config.claim ? "\n" : "");
    return write_secret(coord, "coord", text, err); /* last: clients wait for it */
}

void crystal_coord_remove_files(const struct crystal_coord *coord)
{
    static const char *const names[] = {"coord", "token"};
    char path[PATH_MAX];

    for (size_t i = 0; i < 2; i++)
        if (path_of(coord, names[i], path, NULL) == 0)
            (void)unlink(path); /* nothing more to do about it */
}
