/* Who may emulate, and how much: each refusal names its key. */
#include "config.h"

#include "runtime/permit.h"

#include "tests/check.h"

#include <errno.h>
#include <grp.h>
#include <sys/stat.h>

static struct crystal_error err;

/* The answer of a file with this text, for 64 ranks with two sandbox nodes of 8 and
 * three assistants. */
static int ask(const char *text, const char *account, const char *partition)
{
    const struct crystal_permit_asker asker = {account, partition};
    struct crystal_layout layout = {.lrank_count = 64,
                                    .ranks_per_node = 8,
                                    .sandbox_count = 16,
                                    .assistant_count = 3};
    char path[] = "/tmp/crystal-check-XXXXXX";
    struct crystal_conf conf;
    int fd = mkstemp(path), code;

    memset(&err, 0, sizeof err);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) ||
        crystal_conf_read(path, &conf, &err))
        return 1;
    close(fd);
    unlink(path);
    code = crystal_permit(&conf, &asker, &layout, &err);
    crystal_conf_fini(&conf);
    return code;
}

static void who(void)
{
    const struct group *own = getgrgid(getegid());
    char text[256];

    CHECK_EQ(ask("", "a", "p"), 0);
    CHECK_EQ(ask("enabled: no\n", NULL, NULL), -EPERM);
    snprintf(text, sizeof text, "allow: {groups: [nobody-has-this, %s]}\n",
             own ? own->gr_name : "?");
    CHECK_EQ(ask(text, NULL, NULL), 0);
    CHECK_EQ(ask("allow: {groups: nobody-has-this}\n", NULL, NULL), -EPERM);
    CHECK_HAS(crystal_error_text(&err), "allow.groups");
    CHECK_EQ(ask("allow: {accounts: [a, b]}\n", "b", NULL), 0);
    CHECK_EQ(ask("allow: {accounts: [a, b]}\n", NULL, NULL), 0); /* not known yet */
    CHECK_EQ(ask("allow: {accounts: [a, b]}\n", "c", NULL), -EPERM);
    CHECK_HAS(crystal_error_text(&err), "account 'c'");
    CHECK_EQ(ask("allow: {partitions: gpu}\n", NULL, "gpu"), 0);
    CHECK_EQ(ask("allow: {partitions: gpu}\n", NULL, "gpu2"), -EPERM);
    CHECK_HAS(crystal_error_text(&err), "use --partition=gpu");
}

static void how_much(void)
{
    CHECK_EQ(ask("limits: {logical_ranks: 64, sandbox_nodes: 2}\n", NULL, NULL), 0);
    CHECK_EQ(ask("limits: {logical_ranks: 63}\n", NULL, NULL), -EINVAL);
    CHECK_HAS(crystal_error_text(&err), "limits.logical_ranks");
    CHECK_EQ(ask("limits: {sandbox_nodes: 1}\n", NULL, NULL), -EINVAL);
    CHECK_HAS(crystal_error_text(&err),
              "needs 2 nodes, limits.sandbox_nodes lets a job have 1");
    CHECK_EQ(ask("assistants: {max: 3}\n", NULL, NULL), 0);
    CHECK_EQ(ask("assistants: {max: 2}\n", NULL, NULL), -EINVAL);
    CHECK_HAS(crystal_error_text(&err),
              "3 assistant nodes are more than the 2 of assistants.max");
}

static void bytes(void)
{
    char dir[] = "/tmp/crystal-bytes-XXXXXX", path[64];
    struct crystal_conf conf = {.job_dir_bytes_max = 1 << 20};
    static const char block[65536] = "x";
    FILE *file;

    CHECK(mkdtemp(dir) != NULL);
    CHECK_EQ(crystal_permit_bytes(&conf, dir, &err), 0);
    snprintf(path, sizeof path, "%s/sub", dir);
    CHECK_EQ(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/sub/file", dir);
    file = fopen(path, "w");
    for (int i = 0; file && i < 32; i++)
        CHECK_EQ(fwrite(block, 1, sizeof block, file), sizeof block);
    CHECK(file && fclose(file) == 0);
    CHECK_EQ(crystal_permit_bytes(&conf, dir, &err), -EDQUOT);
    CHECK_HAS(crystal_error_text(&err), "limits.job_dir_bytes");
    conf.job_dir_bytes_max = 4 << 20;
    CHECK_EQ(crystal_permit_bytes(&conf, dir, &err), 0);
    conf.job_dir_bytes_max = 0;
    CHECK_EQ(crystal_permit_bytes(&conf, dir, &err), 0);
    CHECK_EQ(crystal_permit_bytes(&conf, "/nowhere", &err), 0);
    unlink(path);
    path[strlen(path) - 5] = 0;
    rmdir(path);
    rmdir(dir);
}

int main(void)
{
    check_begin();
    CHECK_RUN(who);
    CHECK_RUN(how_much);
    CHECK_RUN(bytes);
    return check_end();
}
