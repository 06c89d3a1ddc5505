/* A sandbox of several target nodes by hand: one agent that hosts all of it, and
 * several agents on this machine, each with a board of its own. Every rank compares
 * every result with its closed form (tests/programs/exactprog.c). Then what is said,
 * and left, where one of the nodes fails.
 */
#include "config.h"

#include "runtime/filehead.h"

#include "tests/by_hand_nodes.h"

#define RESULTS_OF_3                                                 \
    196602 /* of 3 iterations of 1000 elements, but for a first rank \
            */

static void every_rank_is_exact(const unsigned *ranks, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        char line[64];

        (void)snprintf(line, sizeof line, "rank %u exact %d\n", ranks[i],
                       ranks[i] % 5 ? RESULTS_OF_3 : RESULTS_OF_3 + 3000);
        CHECK_HAS(output, line);
    }
}

static int file_has(const char *name, const char *text)
{
    char line[PATH_MAX + 256];

    (void)snprintf(line, sizeof line, "grep -q '%s' %s/%s", text, job_dir, name);
    return system(line) == 0;
}

static const unsigned apart[8] = {0, 1, 2, 3, 12, 13, 14, 15};

static void one_agent_hosts_two_nodes(void)
{
    prepare("0-3,12-15", "");
    run_stages("");
    CHECK_HAS(output, "crystal: plan: ranks 0-3 of the sandbox (1 of 2)\n");
    CHECK_HAS(output, "crystal: plan: ranks 12-15 of the sandbox (2 of 2)\n");
    CHECK_EQ(
        finish(start("exec %s emulate --job %s -- %s", scrystal, job_dir, program)), 0);
    every_rank_is_exact(apart, 8);
    nothing_is_left();
    CHECK(file_has("runs/001/run.yaml", "^nodes: 1$"));
    CHECK(file_has("runs/001/run.yaml", "host memory, no network"));
}

static void two_agents(void)
{
    CHECK_EQ(emulate_on(2, "", ""), 0);
    CHECK_HAS(output, "agent 0 code 0\n");
    CHECK_HAS(output, "agent 1 code 0\n");
    CHECK_HAS(output, "coordinator code 0\n");
    every_rank_is_exact(apart, 8);
    nothing_is_left();
    CHECK(file_has("runs/002/run.yaml", "^nodes: 2$"));
    CHECK(file_has("runs/002/run.yaml", "^timeline: fini\\|^timeline: foll"));
    CHECK(file_has("runs/002/run.1.yaml", "^timeline: fini\\|^timeline: foll"));
    CHECK(file_has("runs/002/run.yaml", "host memory, TCP between nodes"));
    CHECK(file_has("runs/002/run.yaml", "^failure: \"\"$"));
    CHECK(file_has("runs/002/run.1.yaml", "^failure: \"\"$"));
    CHECK(file_has("report.txt", "^ *15 "));
    CHECK(file_has("report.txt", "TCP between nodes"));
}

/* The second one's is the second run of the same job. */
static void one_agent_then_two(void)
{
    own_job("apart");
    one_agent_hosts_two_nodes();
    two_agents();
}

/* What a real rank sends into the virtual region at one node has passed through it when
 * it comes out at the other: as many chunks as the recording has bytes for. */
static void large_payload(void)
{
    own_job("large");
    prepare("0-3,12-15", "--payload=all --iterations=2");
    run_stages("--elements 17000");
    CHECK_EQ(emulate_on(2, "--elements 17000 --iterations 2", ""), 0);
    CHECK_HAS(output, "agent 0 code 0\n");
    CHECK_HAS(output, "agent 1 code 0\n");
    CHECK_HAS(output, "rank 3 exact 2227068\n");
    CHECK_HAS(output, "rank 12 exact 2227068\n");
    CHECK_HAS(output, "rank 15 exact 2261068\n");
    nothing_is_left();
}

static void three_agents_of_which_two_are_neighbours(void)
{
    static const unsigned ranks[12] = {0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15};

    own_job("three");
    prepare("0-3,8-15", "");
    run_stages("");
    CHECK_EQ(emulate_on(3, "", ""), 0);
    CHECK_HAS(output, "agent 0 code 0\n");
    CHECK_HAS(output, "agent 1 code 0\n");
    CHECK_HAS(output, "agent 2 code 0\n");
    every_rank_is_exact(ranks, 12);
    nothing_is_left();
}

/* Its root, and rank 0 with it, run on neither node; groups are made of the world. */
static void nodes_in_the_middle(void)
{
    static const unsigned ranks[8] = {4, 5, 6, 7, 8, 9, 10, 11};

    own_job("middle");
    prepare("4-11", "");
    run_stages("--split");
    CHECK_EQ(emulate_on(2, "--split", ""), 0);
    CHECK_HAS(output, "agent 0 code 0\n");
    CHECK_HAS(output, "agent 1 code 0\n");
    every_rank_is_exact(ranks, 8);
    CHECK(file_has("runs/001/run.yaml", "origin: split"));
    nothing_is_left();
}

/* An all-to-all in which a third of the shares is empty: from real to virtual ranks,
 * from virtual to real ones, and between the nodes. */
static void empty_shares(const char *how)
{
    char options[64], want[96];

    (void)snprintf(options, sizeof options, "--shares %s", how);
    prepare("0-3,12-15", "");
    run_stages(options);
    CHECK_EQ(finish(start("exec %s emulate --job %s -- %s %s", scrystal, job_dir,
                          program, options)),
             0);
    CHECK_EQ(emulate_on(2, options, ""), 0);
    CHECK_HAS(output, "agent 0 code 0\n");
    CHECK_HAS(output, "agent 1 code 0\n");
    for (unsigned i = 0; i < 8; i++) {
        (void)snprintf(want, sizeof want, "rank %u exact %d\n", apart[i],
                       RESULTS_OF_3 + 3 * 16000 + (apart[i] % 5 ? 0 : 3000));
        CHECK_HAS(output, want);
    }
    nothing_is_left();
}

static void empty_shares_that_are_sent(void)
{
    own_job("sent");
    empty_shares("sent");
}

static void empty_shares_that_are_left_out(void)
{
    own_job("out");
    empty_shares("left-out");
}

/* Who gets nothing is another one in each iteration: results are right, and what is not
 * is said. */
static void empty_shares_that_move(void)
{
    own_job("moving");
    prepare("0-3,12-15", "");
    CHECK_EQ(finish(start("exec %s capture --job %s -- %s --iterations 5 --shares "
                          "moving",
                          scrystal, job_dir, program)),
             0);
    CHECK_EQ(finish(start("exec %s graph --job %s", scrystal, job_dir)), 0);
    CHECK_HAS(output, "calls something else in each iteration");
    CHECK_EQ(finish(start("exec %s plan --job %s -- %s --iterations 5 --shares moving",
                          scrystal, job_dir, program)),
             0);
    CHECK_EQ(emulate_on(2, "--shares moving", ""), 0);
    CHECK_HAS(output, "agent 0 code 0\n");
    CHECK_HAS(output, "agent 1 code 0\n");
    CHECK_HAS(output, "rank 3 exact 244602\n");
    CHECK_HAS(output, "rank 15 exact 247602\n");
    nothing_is_left();
}

/* Real ranks with virtual ones between them in NCCL's tree, of one node and of several:
 * one above another, and several without any above. */
static void over_the_tree(void)
{
    static const unsigned ranks[12] = {0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15};

    own_job("tree");
    (void)setenv("NCCL_ALGO", "Tree", 1);
    prepare("0-3,8-15", "");
    run_stages("");
    CHECK_EQ(
        finish(start("exec %s emulate --job %s -- %s", scrystal, job_dir, program)), 0);
    every_rank_is_exact(ranks, 12);
    CHECK_EQ(emulate_on(3, "", ""), 0);
    CHECK_HAS(output, "agent 0 code 0\n");
    CHECK_HAS(output, "agent 1 code 0\n");
    CHECK_HAS(output, "agent 2 code 0\n");
    every_rank_is_exact(ranks, 12);
    CHECK(file_has("runs/002/run.yaml", "^failure: \"\"$"));
    nothing_is_left();
}

/* Two messages on each connection; rank 0 is the root, and rank 5's parent is not
 * there. */
static void long_messages_over_the_tree(void)
{
    own_job("long-tree");
    (void)setenv("NCCL_ALGO", "Tree", 1);
    prepare_nodes(8, 1, "0,5", "--payload=all --iterations=2");
    run_stages("--per-node 1 --elements 66000");
    CHECK_EQ(emulate_on(2, "--per-node 1 --elements 66000 --iterations 2", ""), 0);
    CHECK_HAS(output, "agent 0 code 0\n");
    CHECK_HAS(output, "agent 1 code 0\n");
    /* 2 (23 e + 23 (e + 1) + 8 (e / 2 + 1)): exactprog.c's everything() */
    CHECK_HAS(output, "rank 0 exact 6600062\n");
    CHECK_HAS(output, "rank 5 exact 6600062\n");
    nothing_is_left();
}

int main(void)
{
    static const struct check_case cases[] = {
        CHECK_CASE(one_agent_then_two),
        CHECK_CASE(large_payload),
        CHECK_CASE(three_agents_of_which_two_are_neighbours),
        CHECK_CASE(nodes_in_the_middle),
        CHECK_CASE(empty_shares_that_are_sent),
        CHECK_CASE(empty_shares_that_are_left_out),
        CHECK_CASE(empty_shares_that_move),
        CHECK_CASE(over_the_tree),
        CHECK_CASE(long_messages_over_the_tree),
    };
    char parent[] = "/tmp/crystal-nodes.XXXXXX";

    return nodes_together(parent, cases, sizeof cases / sizeof *cases);
}
