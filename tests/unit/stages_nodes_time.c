/* The time of an iteration is the same whether one agent hosts the whole sandbox or two
 * agents host a node each: what one node's ranks do reaches the virtual ranks of the
 * other's board in time. timed_train computes by sleeping, so a loaded machine does
 * not matter much; the best of three tries counts.
 */
#include "config.h"

#include "tests/by_hand_nodes.h"

#define OPTIONS "--layout=1f1b --pp 4 --compute-us 10000 --elements 4096 --slow 1=1.3"
#define SUMS    "--layout=dp --compute-us 10000 --elements 4096 --slow 1=1.3"
/* forward, and half of it for each of 4 buckets, but for the clock's last digits */
#define SUMS_SLOW_MS (30 * 1.3 * 0.99)
#define TOLERANCE    0.03
#define RANK_COUNT   8
#define ITERATIONS   6
#define SKIP         2 /* they fill the pipeline */
#define TRIES        3

/* Mean of the iterations of all ranks that the last command printed. */
static double mean_ms(void)
{
    double sum = 0;
    int count = 0;

    for (const char *at = output; (at = strstr(at, "rank ")); at++) {
        unsigned lrank, iteration;
        double ms;

        if (sscanf(at, "rank %u iteration %u ms %lf", &lrank, &iteration, &ms) != 3 ||
            iteration < SKIP)
            continue;
        sum += ms;
        count++;
    }
    CHECK_EQ(count, RANK_COUNT * (ITERATIONS - SKIP));
    return count ? sum / count : 1;
}

static int is_near(double value)
{
    return value <= TOLERANCE && value >= -TOLERANCE;
}

static void take_as_long(const char *parallel, const char *sort, double least_ms)
{
    double off = 1;

    prepare("0-3,12-15", parallel);
    run_stages(sort);
    for (int i = 0; i < TRIES && !is_near(off); i++) {
        char options[160];
        double one;

        (void)snprintf(options, sizeof options, "%s --iterations %d", sort, ITERATIONS);
        CHECK_EQ(finish(start("exec %s emulate --job %s -- %s %s", scrystal, job_dir,
                              program, options)),
                 0);
        one = mean_ms();
        CHECK_EQ(emulate_on(2, options, ""), 0);
        CHECK_HAS(output, "agent 0 code 0\n");
        CHECK_HAS(output, "agent 1 code 0\n");
        off = mean_ms() / one - 1;
        printf("# one agent %.2f ms an iteration, two agents %+.2f %%\n", one,
               100 * off);
        CHECK(one >= least_ms && one * (1 + off) >= least_ms);
    }
    CHECK(is_near(off));
    nothing_is_left();
}

static void two_nodes_take_as_long_as_one(void)
{
    take_as_long("--parallel=pp=4,dp=4", OPTIONS, 0);
}

/* Rank 1's part of a sum reaches the ranks of the other node through virtual ones of
 * NCCL's tree, as late as it is: nobody is faster than the slowest. */
static void all_wait_for_the_slow_one_over_the_tree(void)
{
    (void)setenv("NCCL_ALGO", "Tree", 1);
    take_as_long("--parallel=dp=16", SUMS, SUMS_SLOW_MS);
    (void)unsetenv("NCCL_ALGO");
}

int main(void)
{
    char parent[] = "/tmp/crystal-nodes-time.XXXXXX", *at;

    if (nodes_begin(parent))
        return 1;
    at = strstr(program, "exactprog");
    (void)snprintf(at, sizeof program - (size_t)(at - program), "timed_train");
    check_begin();
    CHECK_RUN(two_nodes_take_as_long_as_one);
    CHECK_RUN(all_wait_for_the_slow_one_over_the_tree);
    by_hand_end(parent);
    return check_end();
}
