/* The real wire by hand, on this machine: sandbox nodes and assistants as several
 * agents. Every rank compares every result with its closed form
 * (tests/programs/exactprog.c), and what virtual ranks send it has come from an
 * assistant, whichever way the operation goes.
 */
#include "config.h"

#include "runtime/filehead.h"

#include "tests/by_hand_nodes.h"

#include <inttypes.h>
#include <stdio.h>

static int file_has(const char *name, const char *text)
{
    char line[PATH_MAX + 256];

    (void)snprintf(line, sizeof line, "grep -q '%s' %s/%s", text, job_dir, name);
    return system(line) == 0;
}

/* Agents that have ended well; assistants speak between these lines. */
static void all_are_well(unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        char text[32];

        (void)snprintf(text, sizeof text, "agent %u code 0\n", i);
        CHECK_HAS(output, text);
    }
}

/* An assistant has sent and taken something. */
static void assistant_says(unsigned node)
{
    char text[64];
    const char *at;
    double sent = 0, taken = 0;

    (void)snprintf(text, sizeof text, "crystal: emulate: node %u, an assistant, ",
                   node);
    at = strstr(output, text);
    CHECK(at && sscanf(at + strlen(text), "has sent %lf MB and taken %lf MB", &sent,
                       &taken) == 2);
    CHECK(sent > 0.1 && taken > 0.1);
}

/* Bytes in what assistant `node` of the first run has written down. */
static uint64_t assistant_bytes(unsigned node, const char *key)
{
    char path[PATH_MAX + 64], format[64], line[128];
    uint64_t bytes = UINT64_MAX;
    FILE *in;

    (void)snprintf(path, sizeof path, "%s/runs/001/assistant.%u.yaml", job_dir, node);
    (void)snprintf(format, sizeof format, "%s: %%" SCNu64, key);
    in = fopen(path, "re");
    CHECK(in != NULL);
    while (in && fgets(line, sizeof line, in))
        (void)sscanf(line, format, &bytes);
    if (in)
        (void)fclose(in);
    return bytes;
}

/* It has made all that it has sent, of contributions and of what it has taken. */
static void assistant_makes_all(unsigned node)
{
    CHECK(assistant_bytes(node, "sent_bytes") > 100000);
    CHECK_EQ(assistant_bytes(node, "given_bytes"), 0);
}

/* The sandbox makes some of it: where another assistant has what is passed on, or an
 * operation goes over a tree. */
static void assistant_is_given_some(unsigned node)
{
    const uint64_t given = assistant_bytes(node, "given_bytes");

    CHECK(given > 0 && given < assistant_bytes(node, "sent_bytes"));
}

static void without_agents(void)
{
    own_job("alone");
    prepare("0-3,12-15", "--wire=real");
    run_stages("");
    CHECK_EQ(
        finish(start("exec %s emulate --job %s -- %s", scrystal, job_dir, program)), 0);
    CHECK_HAS(output, "rank 3 exact 196602\n");
    CHECK_HAS(output, "rank 15 exact 199602\n");
    assistant_says(1);
    assistant_is_given_some(1);
    assistant_says(2); /* one for each node that the sandbox is meant for */
    CHECK(file_has("runs/001/run.yaml", "^  kind: real$"));
    CHECK(file_has("runs/001/run.yaml", "^  transport: host memory, TCP to 2 assist"));
    CHECK(file_has("report.txt", "^Wire: real, host memory, TCP to 2 assistant nodes"));
    nothing_is_left();
}

/* Two sandbox nodes and one assistant for both; floats, all of them recorded. */
static void two_nodes_and_one_assistant(void)
{
    own_job("two");
    prepare("0-3,12-15", "--wire=real --assistants=1 --payload=all --iterations=2");
    run_stages("--elements 17000 --floats");
    CHECK_EQ(emulate_on(3, "--elements 17000 --iterations 2 --floats", ""), 0);
    all_are_well(3);
    CHECK_HAS(output, "rank 3 exact 2227068\n");
    CHECK_HAS(output, "rank 12 exact 2227068\n");
    CHECK_HAS(output, "rank 15 exact 2261068\n");
    assistant_says(2);
    assistant_makes_all(2);
    CHECK(file_has("runs/001/run.1.yaml",
                   "^  transport: host memory, TCP between nodes and to 1 assistant"));
    nothing_is_left();
}

/* From real to virtual ranks and from virtual to real ones, and empty ones. */
static void messages_of_two(void)
{
    own_job("shares");
    prepare("0-3,12-15", "--wire=real");
    run_stages("--shares sent");
    CHECK_EQ(emulate_on(4, "--shares sent", ""), 0);
    all_are_well(4);
    CHECK_HAS(output, "rank 3 exact 244602\n");
    CHECK_HAS(output, "rank 15 exact 247602\n");
    assistant_says(2);
    assistant_says(3);
    nothing_is_left();
}

static void over_the_tree(void)
{
    own_job("tree");
    (void)setenv("NCCL_ALGO", "Tree", 1);
    prepare_nodes(8, 1, "0,5", "--payload=all --iterations=2 --wire=real");
    run_stages("--per-node 1 --elements 66000");
    CHECK_EQ(emulate_on(4, "--per-node 1 --elements 66000 --iterations 2", ""), 0);
    all_are_well(4);
    CHECK_HAS(output, "rank 0 exact 6600062\n");
    CHECK_HAS(output, "rank 5 exact 6600062\n");
    assistant_says(2);
    assistant_is_given_some(2);
    assistant_says(3);
    nothing_is_left();
}

static void with_flags(void)
{
    own_job("ll");
    (void)setenv("NCCL_PROTO", "LL", 1);
    prepare_nodes(8, 2, "2-3", "--wire=real");
    run_stages("--per-node 2");
    CHECK_EQ(finish(start("exec %s emulate --job %s -- %s --per-node 2", scrystal,
                          job_dir, program)),
             0);
    CHECK_HAS(output, "rank 2 exact 133584\n");
    CHECK_HAS(output, "rank 3 exact 133584\n");
    assistant_says(1);
    assistant_makes_all(1);
    nothing_is_left();
}

/* Agents of sandbox nodes alone. */
static void too_few_nodes(void)
{
    own_job("few");
    prepare("0-3,12-15", "--wire=real");
    run_stages("");
    CHECK_EQ(emulate_on(2, "", ""), 0);
    CHECK_HAS(output, "agent 0 code 70\n");
    CHECK_HAS(output, "agent 1 code 70\n");
    CHECK_EQ(times_said("crystal: emulate: the wire is real, with 2 assistant nodes "
                        "beside those of the sandbox, and the stage has 2 nodes; give "
                        "it more or use --wire=modelled\n"),
             2); /* each before it has met the other */
    nothing_is_left();
}

/* An assistant that dies while a rank is between its operations. */
static void an_assistant_dies(void)
{
    own_job("dies");
    prepare("0-3,12-15", "--wire=real --assistants=1");
    run_stages("");
    CHECK_EQ(emulate_on(3, "--fail hang --fail-rank 13",
                        "has_begun 0 1 2 3 12 13 14 15; kill -9 $3"),
             0);
    CHECK_HAS(output, "agent 0 code 70\n");
    CHECK_HAS(output, "agent 1 code 70\n");
    CHECK_HAS(output, "agent 2 code 137\n");
    CHECK_EQ(times_said("crystal: emulate: the agent of node 2 (pid "), 1);
    nothing_is_left();
}

int main(void)
{
    static const struct check_case cases[] = {
        CHECK_CASE(without_agents),    CHECK_CASE(two_nodes_and_one_assistant),
        CHECK_CASE(messages_of_two),   CHECK_CASE(over_the_tree),
        CHECK_CASE(with_flags),        CHECK_CASE(too_few_nodes),
        CHECK_CASE(an_assistant_dies),
    };
    char parent[] = "/tmp/crystal-wire.XXXXXX";

    return nodes_together(parent, cases, sizeof cases / sizeof *cases);
}
