/* A virtual rank that is late makes the real ones wait in an all-to-all, a gather and a
 * scatter. timed_train computes by sleeping and waits for every call, so an iteration
 * takes as long as the slowest rank computes, and what the calls themselves need.
 */
#include "config.h"

#include "tests/by_hand_nodes.h"

#define COMPUTE_MS 20.0
#define OPTIONS    "--layout=calls --compute-us 20000 --elements 256 --slow 6=1.5"
#define RANK_COUNT 2
#define ITERATIONS 10
/* of the late rank: two all-to-alls, two gathers and two scatters */
#define LATE_MS (1.5 * 4 * COMPUTE_MS)
/* Others compute two thirds of that. Where a rank begins late, all is as much shorter.
 */
#define LEAST_MS (0.9 * LATE_MS)
/* The calls need some ms; a loaded machine may need many times as much. */
#define MOST_MS (4 * LATE_MS)

/* Of all iterations that the last command printed. */
static double mean_ms(void)
{
    double sum_ms = 0;
    int count = 0;

    for (const char *at = output; (at = strstr(at, "rank ")); at++) {
        unsigned lrank, iteration;
        double ms;

        if (sscanf(at, "rank %u iteration %u ms %lf", &lrank, &iteration, &ms) != 3)
            continue;
        sum_ms += ms;
        count++;
    }
    CHECK_EQ(count, RANK_COUNT * ITERATIONS);
    return count ? sum_ms / count : 0;
}

static void real_ranks_wait_for_a_late_virtual_one(void)
{
    char line[PATH_MAX + 64];
    double ms;

    prepare_nodes(8, RANK_COUNT, "0-1", "");
    run_stages(OPTIONS);
    CHECK_EQ(finish(start("exec %s emulate --job %s -- %s --iterations %d %s", scrystal,
                          job_dir, program, ITERATIONS, OPTIONS)),
             0);
    CHECK(!strstr(output, "never come"));
    ms = mean_ms();
    printf("# %.2f ms an iteration, the late rank computes %.2f\n", ms, LATE_MS);
    CHECK(ms >= LEAST_MS);
    CHECK(ms <= MOST_MS);
    (void)snprintf(line, sizeof line,
                   "grep -q '^timeline: follows' %s/runs/001/run.yaml", job_dir);
    CHECK_EQ(system(line), 0);
    nothing_is_left();
}

int main(void)
{
    char parent[] = "/tmp/crystal-calls-time.XXXXXX", *at;

    if (nodes_begin(parent))
        return 1;
    at = strstr(program, "exactprog");
    (void)snprintf(at, sizeof program - (size_t)(at - program), "timed_train");
    check_begin();
    CHECK_RUN(real_ranks_wait_for_a_late_virtual_one);
    by_hand_end(parent);
    return check_end();
}
