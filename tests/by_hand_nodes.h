/* For tests of a sandbox of several nodes by hand: 16 ranks on 4 target nodes, the
 * program that compares every result (tests/programs/exactprog.c), and several agents
 * on this machine.
 */
#ifndef CRYSTAL_TESTS_BY_HAND_NODES_H
#define CRYSTAL_TESTS_BY_HAND_NODES_H

#include "tests/by_hand.h"

/* One pass of plan will do: what it measures plays no part. */
static inline void prepare_nodes(unsigned ranks, unsigned per_node, const char *sandbox,
                                 const char *options)
{
    CHECK_EQ(finish(start("rm -rf %s && mkdir -m 700 %s && cd %s && "
                          "printf 'plan:\n  passes: 1\n' >one-pass.yaml && "
                          "exec %s layout --config=one-pass.yaml --logical-ranks=%u "
                          "--ranks-per-node=%u --live=all --iterations=3 --sandbox=%s "
                          "--job-dir=%s --write %s",
                          job_dir, job_dir, job_dir, scrystal, ranks, per_node, sandbox,
                          job_dir, options)),
             0);
}

static inline void prepare(const char *sandbox, const char *options)
{
    prepare_nodes(16, 4, sandbox, options);
}

static inline void run_stages(const char *options)
{
    CHECK_EQ(finish(start("exec %s capture --job %s -- %s --iterations 5 %s", scrystal,
                          job_dir, program, options)),
             0);
    CHECK_EQ(finish(start("exec %s graph --job %s", scrystal, job_dir)), 0);
    CHECK_STR(output, "");
    CHECK_EQ(finish(start("exec %s plan --job %s -- %s --iterations 5 %s", scrystal,
                          job_dir, program, options)),
             0);
}

/* Coordinator and agents of a stage; `during` is a shell line that runs beside them,
 * with $1 ... the agents' process ids; has_begun RANK... there waits until these ranks
 * are in the program's iteration 1. Prints the agents' exit codes. */
static inline int stage_on(const char *stage, unsigned nodes, const char *options,
                           const char *during)
{
    return finish(start(
        "export EXACT_BEGUN=%s.begun; rm -rf $EXACT_BEGUN; mkdir $EXACT_BEGUN\n"
        "has_begun() { for r; do i=0; until [ -e $EXACT_BEGUN/$r ] ||\n"
        "  [ $((i += 1)) = 6000 ]; do sleep 0.02; done; done; }\n"
        "rm -f %s/coord; %s coord --job %s >%s/coord.out 2>&1 & coord=$!\n"
        "while [ ! -e %s/coord ]; do sleep 0.02; done\n"
        "for k in $(seq 0 %u); do\n"
        "  %s agent --job %s --stage %s --node $k --nodes %u -- %s %s &\n"
        "  agents=\"$agents $!\"\n"
        "done\n"
        "set -- $agents\n"
        "%s\n"
        "k=0; for a in $agents; do wait $a; echo agent $k code $?; k=$((k+1)); "
        "done\n"
        "%s coord --finish --job %s >/dev/null 2>&1; wait $coord\n"
        "echo coordinator code $?\n",
        job_dir, job_dir, scrystal, job_dir, job_dir, job_dir, nodes - 1, scrystal,
        job_dir, stage, nodes, program, options, during, scrystal, job_dir));
}

static inline int emulate_on(unsigned nodes, const char *options, const char *during)
{
    return stage_on("emulate", nodes, options, during);
}

static inline unsigned times_said(const char *text)
{
    unsigned count = 0;

    for (const char *at = output; (at = strstr(at, text)); at += strlen(text))
        count++;
    return count;
}

static inline int nodes_begin(char *parent)
{
    char *at;

    if (by_hand_begin(parent))
        return -1;
    at = strstr(program, "ncclprog");
    (void)snprintf(at, sizeof program - (size_t)(at - program), "exactprog");
    return 0;
}

/* A test program whose cases run together, each with jobs of its own below a folder
 * that mkdtemp makes of `parent`. Returns main's. */
static inline int nodes_together(char *parent, const struct check_case *cases,
                                 size_t count)
{
    if (nodes_begin(parent))
        return 1;
    check_begin();
    check_together(cases, count);
    by_hand_end(parent);
    return check_end();
}

#endif
