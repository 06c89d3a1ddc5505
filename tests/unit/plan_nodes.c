/* Plan by agents of several nodes by hand: each measures its share of the slices at the
 * same time, and what comes out is what one node finds out. Then one of them fails, and
 * what was measured by then is kept.
 */
#include "config.h"

#include "runtime/profile.h"

#include "tests/by_hand_nodes.h"

#define COMPUTE_US 100000 /* of timed_train; half of it for each bucket */
#define BUCKETS    4
#define OPTIONS    "--layout=dp --compute-us 100000 --elements 4096"
#define MOST       2 /* of that, in the best of the tries */
#define TRIES      10
#define RANKS      16

static void use_program(const char *name)
{
    char *at = strrchr(program, '/') + 1;

    (void)snprintf(at, sizeof program - (size_t)(at - program), "%s", name);
}

static void capture_job(const char *options)
{
    CHECK_EQ(finish(start("exec %s capture --job %s -- %s --iterations 5 %s", scrystal,
                          job_dir, program, options)),
             0);
    CHECK_EQ(finish(start("exec %s graph --job %s", scrystal, job_dir)), 0);
}

static int exists(const char *name)
{
    char path[PATH_MAX + 64];

    (void)snprintf(path, sizeof path, "%s/%s", job_dir, name);
    return access(path, F_OK) == 0;
}

/* --- the same plan --- */

struct found {
    double mean_ns[RANKS], gaps_ns[RANKS]; /* iteration; sum of computation */
    uint32_t ops[RANKS], measured;
};

static void read_profile(struct found *ret)
{
    struct crystal_error err = {0};
    char path[PATH_MAX + 64];
    struct crystal_profile *p;

    memset(ret, 0, sizeof *ret);
    (void)snprintf(path, sizeof path, "%s/job.profile", job_dir);
    p = crystal_profile_open(path, &err);
    CHECK(p);
    if (!p)
        return;
    CHECK_EQ(crystal_profile_head(p)->rep_count, RANKS);
    ret->measured = crystal_profile_head(p)->measured_count;
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct crystal_profile_rep *rep = crystal_profile_rep(p, r);

        ret->mean_ns[r] = (double)crystal_profile_iteration(p, r)->mean_ns;
        ret->ops[r] = rep->instr_count;
        for (uint32_t i = 0; i < rep->instr_count; i++)
            ret->gaps_ns[r] += (double)crystal_profile_ops(p, r)[i].gap_ns;
    }
    crystal_profile_close(p);
}

/* What one rank computes in an iteration is known, and nothing else takes long;
 * sleeping takes longer on a loaded machine, never less. */
static int is_closed_form(const struct found *f)
{
    const double sleep_ns = 1e3 * COMPUTE_US * (1 + BUCKETS / 2.0);
    int is = 1;

    CHECK_EQ(f->measured, RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        CHECK_EQ(f->ops[r], f->ops[0]);
        CHECK(f->gaps_ns[r] >= sleep_ns * 0.99 &&
              f->mean_ns[r] >= f->gaps_ns[r] * 0.99);
        is &= f->mean_ns[r] <= sleep_ns * MOST;
    }
    return is;
}

static void two_nodes_find_what_one_does(void)
{
    struct found one = {0}, two = {0};
    int is_near = 0;

    own_job("same");
    use_program("timed_train");
    prepare("0-3,12-15", "--parallel=dp=16");
    capture_job(OPTIONS);
    CHECK_EQ(finish(start("exec %s plan --job %s -- %s %s", scrystal, job_dir, program,
                          OPTIONS)),
             0);
    read_profile(&one);
    (void)is_closed_form(&one);
    for (int i = 0; i < TRIES && !is_near; i++) {
        CHECK_EQ(stage_on("plan", 2, OPTIONS, ""), 0);
        read_profile(&two);
        is_near = is_closed_form(&two);
        CHECK_EQ(one.ops[0], two.ops[0]);
        printf("# one node %.2f ms an iteration, two nodes %.2f ms\n",
               one.mean_ns[0] / 1e6, two.mean_ns[0] / 1e6);
    }
    CHECK(is_near);
    CHECK_HAS(output, "agent 0 code 0\n");
    CHECK_HAS(output, "agent 1 code 0\n");
    CHECK_HAS(output, "coordinator code 0\n");
    CHECK_HAS(output, "plan: ranks 0-3 of the sandbox (1 of 2), on node 0\n");
    CHECK_HAS(output, "plan: ranks 12-15 of the sandbox (2 of 2), on node 1\n");
    CHECK_HAS(output, "plan: ranks 4-7, which the sandbox does not stand for (1 of 2), "
                      "on node 0\n");
    CHECK_HAS(output, "plan: ranks 8-11, which the sandbox does not stand for (2 of "
                      "2), on node 1\n");
    CHECK_EQ(times_said("plan: measured 16 of 16 ranks, composed "), 1);
    CHECK(!exists("plan/progress") && !exists("plan/0.done"));
    CHECK(!exists("coord.0") && !exists("coord.1") && !exists("token.1"));
    nothing_is_left();
}

/* Later passes keep the time of the first one's profile on all nodes. */
static void passes_of_three_nodes(void)
{
    own_job("passes");
    use_program("exactprog");
    CHECK_EQ(finish(start("rm -rf %s && mkdir -m 700 %s && cd %s && printf 'plan:\n  "
                          "passes: 3\n  tolerance: 0.001\n' >passes.yaml && "
                          "exec %s layout --config=passes.yaml --logical-ranks=16 "
                          "--ranks-per-node=4 --live=all --sandbox=0-11 --job-dir=%s "
                          "--iterations=3 --write",
                          job_dir, job_dir, job_dir, scrystal, job_dir)),
             0);
    capture_job("");
    CHECK_EQ(stage_on("plan", 3, "", ""), 0);
    CHECK_HAS(output, "agent 0 code 0\n");
    CHECK_HAS(output, "agent 1 code 0\n");
    CHECK_HAS(output, "agent 2 code 0\n");
    CHECK_HAS(output, "plan: pass 2 of at most 3, in the time of the one before: ");
    CHECK(times_said("plan: ranks 4-7 of the sandbox (2 of 3), on node 1\n") >= 2);
    CHECK_EQ(times_said("plan: ranks 4-7 of the sandbox (2 of 3), on node 1\n"),
             times_said("plan: ranks 12-15, which the sandbox does not stand for (1 of "
                        "1), on node 0\n"));
    nothing_is_left();
}

/* --- faults --- */

static void an_agent_is_killed(void)
{
    struct crystal_trace trace = {0};

    CHECK_EQ(stage_on("plan", 2, "--fail hang --fail-rank 13",
                      "while [ ! -e plan/0.done ]; do sleep 0.05; done; kill -9 $2"),
             0);
    CHECK_HAS(output, "agent 0 code 70\n");
    CHECK_HAS(output, "agent 1 code 137\n");
    CHECK_EQ(times_said("crystal: plan: the agent of node 1 (pid "), 1);
    CHECK_HAS(output, ") died during plan; see log/ in the job directory\n");
    CHECK(!exists("job.profile"));
    nothing_is_left();
    /* what the first node has measured is there for the next plan */
    CHECK_EQ(read_trace("plan", 0, &trace), 0);
    crystal_trace_fini(&trace);
    CHECK_EQ(finish(start("touch -d 2001-01-01 %s/plan/0.trace", job_dir)), 0);
    CHECK_EQ(stage_on("plan", 2, "", ""), 0);
    CHECK_HAS(output, "agent 0 code 0\n");
    CHECK_HAS(output, "agent 1 code 0\n");
    CHECK_EQ(times_said("plan: ranks 0-3 of the sandbox"), 0);
    CHECK_EQ(times_said("plan: ranks 12-15 of the sandbox (2 of 2), on node 1\n"), 1);
    CHECK_HAS(output, "plan: kept 1 slice of a plan that was stopped\n");
    CHECK(exists("job.profile") && !exists("plan/progress"));
    CHECK_EQ(finish(start("[ %s/plan/0.trace -ot %s/layout.yaml ]", job_dir, job_dir)),
             0);
    nothing_is_left();
    /* which is one that begins anew */
    CHECK_EQ(stage_on("plan", 2, "", ""), 0);
    CHECK_EQ(times_said("plan: ranks 0-3 of the sandbox (1 of 2), on node 0\n"), 1);
    nothing_is_left();
}

/* What a plan that has failed left is measured anew. */
static void forget(void)
{
    CHECK_EQ(finish(start("rm -f %s/plan/progress", job_dir)), 0);
}

static void a_rank_of_the_other_node_is_killed(void)
{
    forget();
    CHECK_EQ(stage_on("plan", 2, "--fail kill --fail-rank 13", ""), 0);
    CHECK_HAS(output, "agent 0 code 70\n");
    CHECK_HAS(output, "agent 1 code 70\n");
    CHECK_EQ(times_said("crystal: plan: rank 13 was ended by signal 9 (Killed); see "),
             1);
    CHECK_EQ(times_said("crystal: coordinator: "), 0);
    nothing_is_left();
}

static void a_rank_of_the_first_node_exits(void)
{
    forget();
    CHECK_EQ(stage_on("plan", 2, "--fail exit --fail-rank 2", ""), 0);
    CHECK_HAS(output, "agent 0 code 70\n");
    CHECK_HAS(output, "agent 1 code 70\n");
    CHECK_EQ(times_said("crystal: plan: rank 2 ended with code 7; see "), 1);
    nothing_is_left();
}

/* An agent that waits for the others hears a signal. */
static void an_agent_is_stopped(void)
{
    forget();
    CHECK_EQ(stage_on("plan", 2, "--fail hang --fail-rank 13",
                      "while [ ! -e plan/1.done ]; do sleep 0.05; done; kill $1"),
             0);
    CHECK_HAS(output, "agent 0 code 143\n");
    CHECK_HAS(output, "agent 1 code 70\n");
    CHECK_EQ(times_said("crystal: plan: stopped by signal 15 (Terminated)"), 1);
    nothing_is_left();
}

static void graph_is_missing(void)
{
    CHECK_EQ(finish(start("rm %s/job.graph", job_dir)), 0);
    CHECK_EQ(stage_on("plan", 2, "", ""), 0);
    CHECK_HAS(output, "agent 0 code 70\n");
    CHECK_HAS(output, "agent 1 code 70\n");
    CHECK_EQ(times_said("crystal: plan: "), 1);
    CHECK_HAS(output, "job.graph");
    nothing_is_left();
}

static void faults(void)
{
    own_job("faults");
    use_program("exactprog");
    prepare("0-3,12-15", "");
    CHECK_EQ(chdir(job_dir), 0); /* for the shell lines */
    capture_job("");
    an_agent_is_killed();
    a_rank_of_the_other_node_is_killed();
    a_rank_of_the_first_node_exits();
    an_agent_is_stopped();
    graph_is_missing();
}

int main(void)
{
    static const struct check_case cases[] = {
        CHECK_CASE(two_nodes_find_what_one_does),
        CHECK_CASE(passes_of_three_nodes),
        CHECK_CASE(faults),
    };
    char parent[] = "/tmp/crystal-plan-nodes.XXXXXX";

    return nodes_together(parent, cases, sizeof cases / sizeof *cases);
}
