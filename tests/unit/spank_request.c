/* What the plugin reads from scrystal layout --request, and what a task's environment
 * is made of. */
#include "config.h"

#include "spank/request.h"
#include "spank/task.h"

#include "tests/check.h"

#include <errno.h>
#include <fcntl.h>

static const char good[] =
    "version=5\nnodes=1\nassistants=2\nntasks=8\nntasks_per_node=8\n"
    "logical_ranks=64\nlogical_nodes=8\nranks_per_node=8\n"
    "assistants_place=het\nassistants_partition=cpus\n"
    "sandbox=8-15\nlive=0-7\niterations=3\n"
    "job_dir=/tmp/a%20b%25\njob_name=x\nstages=capture,emulate\n"
    "gres_per_node=\nstore_port=0\nsomething_new=1\nlog=debug\n"
    "allocation=--partition=gpu\n"
    "allocation=--comment=two%20words\n"
    "notice=one\nnotice=two%0Alines\nslurm_env=physical\n"
    "wrapper=nice\nwrapper=-n 5\nargument=--x=1\n";

static void answer(void)
{
    struct crystal_request r;
    struct crystal_error err = {0};

    CHECK_EQ(crystal_request_parse(good, &r, &err), 0);
    CHECK_STR(crystal_error_text(&err), "unknown error");
    CHECK_EQ(r.node_count, 1);
    CHECK_EQ(r.assistant_count, 2);
    CHECK_EQ(r.is_apart, true);
    CHECK_STR(r.assistant_partition, "cpus");
    CHECK_EQ(r.task_count, 8);
    CHECK_EQ(r.tasks_per_node, 8);
    CHECK_EQ(r.logical_rank_count, 64);
    CHECK_EQ(r.live_count, 8);
    CHECK_EQ(r.iterations, 3);
    CHECK_EQ(r.stages, CRYSTAL_STAGE_BIT_CAPTURE | CRYSTAL_STAGE_BIT_EMULATE);
    CHECK_STR(r.job_dir, "/tmp/a b%");
    CHECK_STR(r.gres_per_node, "");
    CHECK_EQ(r.notices.count, 2);
    CHECK_STR(r.notices.v[1], "two\nlines");
    CHECK_STR(r.slurm_env, "physical");
    CHECK_EQ(r.wrapper.count, 2);
    CHECK_STR(r.wrapper.v[1], "-n 5");
    CHECK_EQ(r.arguments.count, 1);
    CHECK_STR(r.arguments.v[0], "--x=1");
    CHECK_STR(r.log, "debug");
    CHECK_EQ(r.allocation.count, 2);
    CHECK_STR(r.allocation.v[0], "--partition=gpu");
    CHECK_STR(r.allocation.v[1], "--comment=two words");
    crystal_request_fini(&r);
}

/* A copy of the good answer with one line replaced. */
static int parse_changed(const char *key, const char *line, struct crystal_error *err)
{
    struct crystal_request r;
    char text[sizeof good + 128], *at, *end;
    int rc;

    snprintf(text, sizeof text, "\n%s", good);
    at = strstr(text, key);
    end = strchr(at + 1, '\n');
    memmove(at + strlen(line), end, strlen(end) + 1);
    memcpy(at, line, strlen(line));
    rc = crystal_request_parse(text + 1, &r, err);
    if (rc == 0)
        crystal_request_fini(&r);
    return rc;
}

static void bad_answers(void)
{
    static const char *const cases[][3] = {
        {"\nversion=", "\nversion=4", "version 4"}, /* the form before this */
        {"\nversion=", "\nversion=", "'version'"},
        {"\nversion=", "\n", "version 0"},
        {"\nnodes=", "\nnodes=0", "incomplete"},
        {"\nnodes=", "\nnodes=-1", "'nodes'"},
        {"\nnodes=", "\nnodes=99999999999999999999", "'nodes'"},
        {"\nntasks=", "\nntasks=9", "incomplete"},
        {"\nsandbox=", "\nsandbox=8-", "incomplete"},
        {"\nsandbox=", "\nsandbox=15-8", "incomplete"},
        {"\nsandbox=", "\nsandbox=0-4294967295", "incomplete"},
        {"\nlive=", "\nlive=a", "'live'"},
        {"\njob_dir=", "\njob_dir=relative", "incomplete"},
        {"\njob_dir=", "\njob_dir=/%4", "'job_dir'"},
        {"\njob_dir=", "\njob_dir=/%00", "'job_dir'"},
        {"\nstages=", "\nstages=capture,predict", "'stages'"},
        {"\nnotice=", "\nnotice", "'notice'"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct crystal_error err = {0};

        CHECK_EQ(parse_changed(cases[i][0], cases[i][1], &err), -EPROTO);
        CHECK_HAS(err.text, cases[i][2]);
    }
}

static void rank_lists(void)
{
    CHECK_EQ(crystal_rank_list_count("0-7,16,24-31"), 17);
    CHECK_EQ(crystal_rank_list_at("0-7,16,24-31", 7), 7);
    CHECK_EQ(crystal_rank_list_at("0-7,16,24-31", 8), 16);
    CHECK_EQ(crystal_rank_list_at("0-7,16,24-31", 9), 24);
    CHECK_EQ(crystal_rank_list_at("0-7,16,24-31", 17), UINT32_MAX);
    CHECK_EQ(crystal_rank_list_count(""), 0);
    CHECK_EQ(crystal_rank_list_count("1,"), 0);
    CHECK_EQ(crystal_rank_list_count("1;2"), 0);
}

static char settings[4096];

static int collect(void *context, const char *name, const char *value)
{
    (void)context;
    strcat(strcat(strcat(strcat(settings, name), "="), value), "\n");
    return 0;
}

static void task_becomes_a_rank(void)
{
    char dir[] = "/tmp/crystal-task-XXXXXX", path[64];
    struct crystal_options options = {0};
    struct crystal_error err = {0};
    int fd;

    CHECK(mkdtemp(dir) != NULL);
    crystal_options_set(&options, CRYSTAL_OPTION_JOB_DIR, dir);
    crystal_options_set(&options, CRYSTAL_OPTION_LOGICAL_RANKS, "64");
    crystal_options_set(&options, CRYSTAL_OPTION_RANKS_PER_NODE, "8");
    crystal_options_set(&options, CRYSTAL_OPTION_SANDBOX, "8-15,24-31");
    snprintf(path, sizeof path, "%s/agent.1.env", dir);
    fd = open(path, O_WRONLY | O_CREAT, 0600);
    CHECK_EQ(write(fd, "MASTER_PORT=7\nA=b=c\n\nE=\n", 24), 24);
    CHECK_EQ(crystal_task_enter(&options, 1, 9, collect, NULL, &err), 0);
    CHECK_HAS(settings, "MASTER_PORT=7\nA=b=c\nE=\nCRYSTAL_STAGE=emulate\n");
    CHECK_HAS(settings, "\nRANK=25\nLOCAL_RANK=1\nWORLD_SIZE=64\n");
    CHECK_HAS(settings, "\nSLURM_PROCID=25\nSLURM_LOCALID=1\nSLURM_NODEID=3\n"
                        "SLURM_NTASKS=64\n");
    CHECK_HAS(settings, "\nSLURM_NNODES=8\n");
    CHECK_HAS(settings, "\nSLURM_NTASKS_PER_NODE=8\nSLURM_TASKS_PER_NODE=8(x8)\n");
    CHECK_EQ(crystal_task_enter(&options, 1, 16, collect, NULL, &err), -EINVAL);
    CHECK_HAS(err.text, "task 16 is no sandbox rank of '8-15,24-31'");
    CHECK_EQ(write(fd, "no setting\n", 11), 11);
    CHECK_EQ(crystal_task_enter(&options, 1, 0, collect, NULL, &err), -EPROTO);
    CHECK_HAS(err.text, "'no setting' is no NAME=VALUE line");
    (void)close(fd);
    (void)unlink(path);
    CHECK_EQ(crystal_task_mark_agent(&options, 2, &err), 0);
    snprintf(path, sizeof path, "%s/agent.2.spank", dir);
    CHECK_EQ(unlink(path), 0);
    (void)rmdir(dir);
    crystal_options_fini(&options);
}

int main(void)
{
    check_begin();
    CHECK_RUN(answer);
    CHECK_RUN(bad_answers);
    CHECK_RUN(rank_lists);
    CHECK_RUN(task_becomes_a_rank);
    return check_end();
}
