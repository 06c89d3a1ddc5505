/* Calls that the library makes of sends and receives (all-to-all, gather, scatter),
 * among others: captured, planned, and emulated with some ranks real and the others
 * virtual. Integers, so every result is compared with its closed form
 * (tests/programs/exactprog.c); nobody waits for a rank that never comes.
 */
#include "config.h"

#include "tests/by_hand_nodes.h"

#define OPTIONS "--elements 20 --calls --shares sent"

static int is_timeline(const char *name, const char *state)
{
    char line[PATH_MAX + 256];

    (void)snprintf(line, sizeof line, "grep -q '^timeline: %s' %s/%s", state, job_dir,
                   name);
    return system(line) == 0;
}

static int follows(const char *name)
{
    return is_timeline(name, "follows");
}

static void all_are_exact(const unsigned *ranks, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        char line[64];

        (void)snprintf(line, sizeof line, "rank %u exact ", ranks[i]);
        CHECK_HAS(output, line);
    }
    CHECK(!strstr(output, "never come"));
}

static void emulate_once(const char *options, const unsigned *ranks, unsigned count)
{
    CHECK_EQ(finish(start("exec %s emulate --job %s -- %s %s", scrystal, job_dir,
                          program, options)),
             0);
    all_are_exact(ranks, count);
    nothing_is_left();
}

static void emulate_alone(const char *options, const unsigned *ranks, unsigned count)
{
    emulate_once(options, ranks, count);
    CHECK(follows("runs/001/run.yaml"));
}

/* Groups of 16 and 4; roots are real on this node, on the other, and virtual. */
static void one_agent_then_two(void)
{
    static const unsigned apart[8] = {0, 1, 2, 3, 12, 13, 14, 15};

    own_job("apart");
    prepare("0-3,12-15", "");
    run_stages(OPTIONS);
    emulate_alone(OPTIONS, apart, 8);
    CHECK_EQ(emulate_on(2, OPTIONS, ""), 0);
    CHECK_HAS(output, "agent 0 code 0\n");
    CHECK_HAS(output, "agent 1 code 0\n");
    all_are_exact(apart, 8);
    CHECK(follows("runs/002/run.yaml"));
    CHECK(follows("runs/002/run.1.yaml"));
    nothing_is_left();
}

/* Groups of 6, 3 and 2. */
static void small_groups(void)
{
    static const unsigned sandbox[2] = {0, 1};

    own_job("six");
    prepare_nodes(6, 2, "0-1", "");
    run_stages(OPTIONS " --per-node 2");
    emulate_alone(OPTIONS " --per-node 2", sandbox, 2);
}

/* Groups of 8, 4 and 2. */
static void one_real_rank(void)
{
    static const unsigned sandbox[1] = {2};

    own_job("one");
    prepare_nodes(8, 1, "2", "");
    run_stages(OPTIONS " --per-node 2");
    emulate_alone(OPTIONS " --per-node 2", sandbox, 1);
}

/* A program that ends by itself, with a sum that is none of an iteration: virtual ranks
 * have come to it, and do not wait for one more iteration. */
static void a_last_phase(void)
{
    static const char options[] = OPTIONS " --per-node 2 --iterations 3 --last";
    static const unsigned sandbox[1] = {2};

    own_job("last");
    prepare_nodes(8, 1, "2", "--iterations=10");
    run_stages(options);
    emulate_once(options, sandbox, 1);
    CHECK(is_timeline("runs/001/run.yaml", "finished"));
}

int main(void)
{
    static const struct check_case cases[] = {
        CHECK_CASE(one_agent_then_two),
        CHECK_CASE(small_groups),
        CHECK_CASE(one_real_rank),
        CHECK_CASE(a_last_phase),
    };

    char parent[] = "/tmp/crystal-calls.XXXXXX";

    return nodes_together(parent, cases, sizeof cases / sizeof *cases);
}
