/* Cases of communication in the capture stage by hand: children of communicators.
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
    by_hand_end(parent);
    return check_end();
}
