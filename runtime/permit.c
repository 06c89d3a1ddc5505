/* See permit.h. */
#include "config.h"

#include "runtime/permit.h"

#include <errno.h>
#include <fts.h>
#include <grp.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int is_among(const struct crystal_words *names, const char *name)
{
    for (uint32_t i = 0; i < names->count; i++)
        if (strcmp(names->v[i], name) == 0)
            return 1;
    return 0;
}

static int has_group(const gid_t *own, int count, gid_t gid)
{
    int found = getegid() == gid;

    for (int i = 0; i < count; i++)
        found |= own[i] == gid;
    return found;
}

/* The caller's own groups, as the login gave them. */
static int is_member(const struct crystal_words *groups)
{
    int count = getgroups(0, NULL), found = 0;
    gid_t *own = calloc((size_t)(count > 0 ? count : 1), sizeof *own);

    if (!own)
        return 0;
    count = getgroups(count, own);
    for (uint32_t i = 0; i < groups->count && !found; i++) {
        const struct group *group = getgrnam(groups->v[i]);

        found = group && has_group(own, count, group->gr_gid);
    }
    free(own);
    return found;
}

static int check_asker(const struct crystal_conf *conf,
                       const struct crystal_permit_asker *asker,
                       struct crystal_error *err)
{
    if (conf->allow_groups.count && !is_member(&conf->allow_groups))
        return crystal_error_set(err, EPERM,
                                 "you are in none of the groups that may emulate "
                                 "(allow.groups); ask the cluster's admin");
    if (conf->allow_accounts.count && asker->account &&
        !is_among(&conf->allow_accounts, asker->account))
        return crystal_error_set(err, EPERM,
                                 "account '%s' is none that may emulate "
                                 "(allow.accounts); give another --account",
                                 asker->account);
    if (conf->allow_partitions.count && asker->partition &&
        !is_among(&conf->allow_partitions, asker->partition))
        return crystal_error_set(err, EPERM,
                                 "partition '%s' is none for emulated jobs "
                                 "(allow.partitions); use --partition=%s",
                                 asker->partition, conf->allow_partitions.v[0]);
    return 0;
}

int crystal_permit(const struct crystal_conf *conf,
                   const struct crystal_permit_asker *asker,
                   const struct crystal_layout *layout, struct crystal_error *err)
{
    uint32_t nodes = layout->sandbox_count / layout->ranks_per_node;

    if (!conf->enabled)
        return crystal_error_set(err, EPERM,
                                 "crystal is switched off on this cluster (enabled: "
                                 "no)");
    if (layout->lrank_count > conf->logical_ranks_max)
        return crystal_error_set(err, EINVAL,
                                 "%u logical ranks are more than the %" PRIi64
                                 " of limits.logical_ranks",
                                 layout->lrank_count, conf->logical_ranks_max);
    if (conf->sandbox_nodes_max && nodes > conf->sandbox_nodes_max)
        return crystal_error_set(err, EINVAL,
                                 "--crystal-sandbox: needs %u nodes, limits."
                                 "sandbox_nodes lets a job have %" PRIi64
                                 "; name fewer ranks",
                                 nodes, conf->sandbox_nodes_max);
    if (conf->assistants_max && layout->assistant_count > conf->assistants_max)
        return crystal_error_set(
            err, EINVAL,
            "--crystal-wire=real: %u assistant nodes are more than "
            "the %" PRIi64 " of assistants.max; ask for fewer with "
            "--crystal-assistants",
            layout->assistant_count, conf->assistants_max);
    return check_asker(conf, asker, err);
}

/* What the regular files below path take on disk. */
static uint64_t bytes_below(const char *path)
{
    char *const roots[] = {(char *)path, NULL}; /* fts only reads it */
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_XDEV | FTS_NOCHDIR, NULL);
    uint64_t bytes = 0;
    FTSENT *entry;

    while (walk && (entry = fts_read(walk)) != NULL)
        if (entry->fts_info == FTS_F)
            bytes += (uint64_t)entry->fts_statp->st_blocks * 512;
    if (walk)
        (void)fts_close(walk); /* only read */
    return bytes;
}

int crystal_permit_bytes(const struct crystal_conf *conf, const char *path,
                         struct crystal_error *err)
{
    uint64_t bytes;

    if (!conf->job_dir_bytes_max || access(path, R_OK) < 0)
        return 0; /* no limit, or nothing there yet */
    bytes = bytes_below(path);
    if (bytes <= conf->job_dir_bytes_max)
        return 0;
    return crystal_error_set(err, EDQUOT,
                             "job directory %s holds %" PRIu64 " bytes, more than the "
                             "%" PRIu64 " of limits.job_dir_bytes; remove it or parts "
                             "of it, or use another --crystal-job-dir",
                             path, bytes, conf->job_dir_bytes_max);
}
