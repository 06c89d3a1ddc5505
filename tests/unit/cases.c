/* Cases of communication in the capture stage by hand (tests/programs/caseprog.c):
 * children of communicators; calls that do not fit and waits that never end, five of
 * them from public reports, each told with both sides, where they were called, and what
 * every rank does.
 */
#include "config.h"

#include "tests/by_hand.h"

static void make_all_live(unsigned ranks)
{
    CHECK_EQ(finish(start("rm -rf %s && mkdir -m 700 %s && exec %s layout "
                          "--logical-ranks=%u --ranks-per-node=%u --live=all "
                          "--job-dir=%s --write",
                          job_dir, job_dir, scrystal, ranks, ranks, job_dir)),
             0);
}

/* The four ranks by themselves, one after the other, under injection rules. */
static void make_list(const char *rules)
{
    char path[PATH_MAX + 16];
    FILE *out;

    (void)snprintf(path, sizeof path, "%s.yaml", job_dir);
    out = fopen(path, "w");
    CHECK(out != NULL);
    if (out) {
        fprintf(out, "inject:\n%s", rules);
        CHECK_EQ(fclose(out), 0);
    }
    CHECK_EQ(finish(start("rm -rf %s && mkdir -m 700 %s && exec %s layout "
                          "--logical-ranks=4 --ranks-per-node=4 --live=0-3 "
                          "--config=%s --job-dir=%s --write",
                          job_dir, job_dir, scrystal, path, job_dir)),
             0);
}

static int run_case(const char *name)
{
    return finish(
        start("exec %s capture --job %s -- %s %s", scrystal, job_dir, program, name));
}

/* Everything that rank printed. */
static const char *printed(unsigned rank)
{
    static char text[16384];
    char path[PATH_MAX + 64];
    size_t count;
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/log/capture.%u.log", job_dir, rank);
    file = fopen(path, "r");
    count = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[count] = 0;
    if (file)
        (void)fclose(file); /* read-only */
    return text;
}

/* --- children of communicators --- */

static void children_have_their_members(void)
{
    char text[4096] = "", path[PATH_MAX + 16];
    FILE *comms;

    make_all_live(5);
    CHECK_EQ(run_case("split"), 0);
    CHECK_HAS(printed(0), "rank 0: 2 of 3, sum 6\n");
    CHECK_HAS(printed(0), "rank 0: shrunk 1 of 2, sum 2\n");
    CHECK_HAS(printed(0), "rank 0: no rest: 1\n");
    CHECK_HAS(printed(1), "rank 1: 1 of 2, sum 4\n");
    CHECK_HAS(printed(1), "rank 1: shrunk 0 of 1, sum 1\n");
    CHECK_HAS(printed(3), "rank 3: 0 of 2, sum 4\n");
    CHECK_HAS(printed(4), "rank 4: 0 of 3, sum 6\n");
    CHECK_HAS(printed(4), "rank 4: rest 10\n");
    (void)snprintf(path, sizeof path, "%s/comms.tab", job_dir);
    comms = fopen(path, "r");
    CHECK(comms && fread(text, 1, sizeof text - 1, comms) > 0);
    if (comms)
        (void)fclose(comms); /* read-only */
    CHECK_HAS(text, "/default_pg/0//cpu//0/split0:0\t3\t4,2,0\n");
    CHECK_HAS(text, "/default_pg/0//cpu//0/split0:1\t2\t3,1\n");
    CHECK_HAS(text, "/default_pg/0//cpu//0/split0:0/shrink0\t2\t2,0\n");
    CHECK_HAS(text, "/default_pg/0//cpu//0/split0:1/shrink0\t1\t1\n");
    CHECK_HAS(text, "/default_pg/0//cpu//0/split1:5\t4\t1-4\n");
    CHECK_EQ(finish(start("exec %s graph --job %s", scrystal, job_dir)), 0);
}

/* --- ranks by themselves --- */

static void absent_ranks_follow_rules(void)
{
    char rules[1024], path[PATH_MAX + 16];
    const int64_t seventy_seven[2] = {77, 78};
    FILE *out;

    (void)snprintf(path, sizeof path, "%s.value", job_dir);
    out = fopen(path, "wb");
    CHECK(out && fwrite(seventy_seven, sizeof seventy_seven, 1, out) == 1 &&
          fclose(out) == 0);
    (void)snprintf(rules, sizeof rules,
                   "  - op=allreduce dtype=int64 bytes=8 from=1-2 value=constant:10\n"
                   "  - \"comm=*cpu?*0 op=allreduce site=*caseprog* value=replicate\"\n"
                   "  - op=broadcast bytes=8-64 value=file:%s\n"
                   "  - op=recv from=3 value=constant:2.5\n",
                   path);
    make_list(rules);
    CHECK_EQ(run_case("values"), 0);
    /* own 1, twice 10, and rank 3 as rank 0 does */
    CHECK_HAS(printed(0), "rank 0: sum 22, told 77, got 2.5\n");
    CHECK_HAS(printed(1), "rank 1: sum 16, told 7, got 30\n");
    CHECK_HAS(printed(3), "rank 3: sum 28, told 77, got 30\n");
}

/* Without rules the ranks before count, and what the live rank does itself. */
static void absent_ranks_have_recorded(void)
{
    make_list("  - op=allreduce from=2-3 value=replicate\n"
              "  - op=allreduce from=0 value=own\n");
    CHECK_EQ(run_case("values"), 0);
    CHECK_HAS(printed(0), "rank 0: sum 4, told -1, got 0\n");
    CHECK_HAS(printed(1), "rank 1: sum 7, told 7, got 30\n");  /* 1, 2, 2, 2 */
    CHECK_HAS(printed(3), "rank 3: sum 11, told 7, got 30\n"); /* 1, 2, 4, 4 */
    make_list("  - op=allreduce value=own\n");
    CHECK(run_case("values") != 0);
    CHECK_HAS(output,
              "'op=allreduce value=own' of inject: in crystal.yaml wants what "
              "rank 1 recorded of a allreduce on '/default_pg/0//cpu//0', which "
              "it has not; put it before the live rank in --crystal-live, or "
              "give another value=");
    make_list("  - op=broadcast value=file:/nowhere/to/be/found\n");
    CHECK(run_case("values") != 0);
    CHECK_HAS(output, "/nowhere/to/be/found");
    make_list("  - value=replicate\n");
    CHECK(run_case("values") != 0);
    CHECK_HAS(output, "would replicate what the live rank puts into a message that it "
                      "receives");
}

/* The colours of ranks that do not run are not known. */
static void virtual_members_cannot_be_split(void)
{
    make_job("");
    CHECK(run_case("split") != 0);
    CHECK_HAS(printed(0), "ncclCommSplit of communicator '/default_pg/0//cpu//0': its "
                          "rank 4 is not live, so that its part cannot be known; use "
                          "--crystal-live=all");
    nothing_is_left();
}

/* --- faults --- */

#define WORLD "'/default_pg/0//cpu//0'"

/* The page of what every rank does. */
static const char *page(void)
{
    static char text[16384];
    char path[PATH_MAX + 64];
    size_t count;
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/diagnosis.txt", job_dir);
    file = fopen(path, "r");
    count = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[count] = 0;
    if (file)
        (void)fclose(file); /* read-only */
    return text;
}

/* The case ends the stage: the sentence has all parts, the page the ones behind an
 * empty one. Within seconds: most of the time is starting and ending processes. */
static void fails(const char *name, const char *const *parts)
{
    struct timespec from, to;

    make_all_live(4);
    (void)clock_gettime(CLOCK_MONOTONIC, &from);
    CHECK_EQ(run_case(name), 70);
    (void)clock_gettime(CLOCK_MONOTONIC, &to);
    printf("# %s: %.2f s\n", name,
           (double)(to.tv_sec - from.tv_sec) +
               (double)(to.tv_nsec - from.tv_nsec) / 1e9);
    for (; *parts && **parts; parts++)
        CHECK_HAS(output, *parts);
    if (*parts)
        for (parts++; *parts; parts++)
            CHECK_HAS(page(), *parts);
    nothing_is_left();
}

static void another_order(void)
{
    fails("order",
          (const char *const[]){"mismatch in operation 0 of communicator " WORLD,
                                "calls allreduce of 4 x float32 (sum) at "
                                "caseprog+0x",
                                "rank 2 calls allgather of 4 x float32 at "
                                "caseprog+0x",
                                NULL});
}

static void another_count(void)
{
    fails("count",
          (const char *const[]){"mismatch in operation 1 of communicator " WORLD,
                                "rank 0 calls allreduce of 32 x float32 (sum) at "
                                "caseprog+0x",
                                "calls allreduce of 16 x float32 (sum) at caseprog+0x",
                                "; every rank: ", "", "rank 3 (pid ", NULL});
}

static void another_type(void)
{
    fails("type", (const char *const[]){"rank 3 calls allreduce of 16 x bfloat16 (sum)",
                                        "calls allreduce of 16 x float32 (sum)", NULL});
}

static void another_root(void)
{
    fails("root",
          (const char *const[]){"rank 1 calls broadcast of 8 x float32 with "
                                "root 1 at caseprog+0x",
                                "calls broadcast of 8 x float32 with root 0", NULL});
}

static void other_members(void)
{
    fails("membership",
          (const char *const[]){"group '1' has ", "members for one rank",
                                "do all ranks make the same groups in the "
                                "same order?",
                                NULL});
}

static void a_stage_skips_a_reduction(void)
{
    fails("moe-stage",
          (const char *const[]){"mismatch in operation 1 of communicator " WORLD,
                                "calls allreduce of 1 x float32 (sum) at caseprog+0x",
                                "calls allreduce of 2 x float32 (sum) at caseprog+0x",
                                NULL});
}

/* All calls are alike, so that only the end shows it. */
static void two_ranks_are_ahead(void)
{
    fails("ahead", (const char *const[]){
                       "the live ranks wait for ever: rank 1 waits in allreduce 5 "
                       "of " WORLD " (called at caseprog+0x",
                       "for rank 0, which has ended; rank 3 waits in allreduce 5", "",
                       "rank 0 has ended\n", "rank 2 has ended\n", NULL});
}

static void sizes_and_data_in_another_order(void)
{
    fails("variable-length",
          (const char *const[]){"mismatch on communicator " WORLD
                                ": rank 1 sends 24 bytes at caseprog+0x",
                                "rank 2 receives 256 bytes at caseprog+0x", NULL});
}

static void an_exchange_without_one_rank(void)
{
    fails("empty-output",
          (const char *const[]){"the live ranks wait for ever: rank 0 waits to receive "
                                "from rank 2 on " WORLD " (called at caseprog+0x",
                                "", "rank 2 (pid ",
                                "waits in allreduce 0 of " WORLD " (called at "
                                "caseprog+0x",
                                NULL});
}

static void a_cycle_of_receives(void)
{
    fails("cycle", (const char *const[]){
                       "the live ranks wait for ever: rank 0 waits to receive "
                       "from rank 3",
                       "rank 1 waits to receive from rank 0", "and 2 more ranks", "",
                       "waits to receive from rank 2 on " WORLD, NULL});
}

static void a_message_for_nobody(void)
{
    fails("unreceived",
          (const char *const[]){
              "rank 1 waits to receive from rank 2, which has ended,", "",
              "rank 0 sent 1 message to rank 1 on " WORLD
              " that it has not received, the first of 16 bytes at caseprog+0x",
              NULL});
}

static void a_rank_ends_before_the_others(void)
{
    fails("early", (const char *const[]){"waits in allreduce 1 of " WORLD,
                                         "for rank 1, which has "
                                         "ended",
                                         NULL});
}

static void a_rank_never_comes(void)
{
    fails("never", (const char *const[]){"rank 1 has ended without any NCCL call while "
                                         "others go on",
                                         NULL});
}

/* Told after two seconds; that it hangs, where it has slept for two more. */
static void a_rank_hangs(void)
{
    (void)setenv("CRYSTAL_HANG_SECONDS", "2", 1);
    fails("hang", (const char *const[]){
                      "crystal: coordinator: nothing has come for 2 s (no error while "
                      "a rank computes); rank 1 computes "
                      "after allreduce on " WORLD " (called at caseprog+0x",
                      ", asleep; meanwhile rank 0 waits in allreduce 1 of " WORLD,
                      "a rank hangs: rank 1 computes after allreduce on " WORLD, NULL});
    (void)unsetenv("CRYSTAL_HANG_SECONDS");
}

static void a_slow_rank_is_waited_for(void)
{
    make_all_live(4);
    CHECK_EQ(run_case("slow"), 0);
    CHECK_HAS(output, "crystal: coordinator: nothing has come for 2 s (no error while "
                      "a rank computes); rank 1 computes after");
    CHECK_STR(page(), "");
}

static void a_key_never_comes(void)
{
    fails("key", (const char *const[]){"the live ranks wait for ever: ",
                                       "rank 2 waits in the store for the key "
                                       "'/ready/1'",
                                       NULL});
}

static void a_rank_only_polls(void)
{
    fails("poll", (const char *const[]){"the live ranks wait for ever: rank 0 waits to "
                                        "receive from rank 3 on " WORLD,
                                        NULL});
}

int main(void)
{
    char parent[] = "/tmp/crystal-cases.XXXXXX", *at;

    if (by_hand_begin(parent))
        return 1;
    at = strstr(program, "ncclprog");
    memcpy(at, "caseprog", strlen("caseprog"));
    check_begin();
    CHECK_RUN(children_have_their_members);
    CHECK_RUN(virtual_members_cannot_be_split);
    CHECK_RUN(absent_ranks_follow_rules);
    CHECK_RUN(absent_ranks_have_recorded);
    CHECK_RUN(another_order);
    CHECK_RUN(another_count);
    CHECK_RUN(another_type);
    CHECK_RUN(another_root);
    CHECK_RUN(other_members);
    CHECK_RUN(a_stage_skips_a_reduction);
    CHECK_RUN(two_ranks_are_ahead);
    CHECK_RUN(sizes_and_data_in_another_order);
    CHECK_RUN(an_exchange_without_one_rank);
    CHECK_RUN(a_cycle_of_receives);
    CHECK_RUN(a_message_for_nobody);
    CHECK_RUN(a_rank_ends_before_the_others);
    CHECK_RUN(a_rank_never_comes);
    CHECK_RUN(a_rank_hangs);
    CHECK_RUN(a_slow_rank_is_waited_for);
    CHECK_RUN(a_key_never_comes);
    CHECK_RUN(a_rank_only_polls);
    by_hand_end(parent);
    return check_end();
}
