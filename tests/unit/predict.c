/* Predictions: paths without gaps, times that add up, and what ifs with known effect.
 */
#include "config.h"

#include "runtime/nccl_abi.h"
#include "runtime/predict_run.h"

#include "tests/check.h"
#include "tests/graph_edit.h"

#include <unistd.h>

static char path[64];
static struct crystal_graph *graph;
static struct crystal_predict predict;
static struct crystal_what_if what;

static void open_synth(const char *text)
{
    struct crystal_synth s;

    EDIT_MUST(crystal_synth_parse("t", text, strlen(text), &s, &edit_err));
    EDIT_MUST(crystal_synth_write(&s, path, &edit_err));
    graph = crystal_graph_open(path, &edit_err);
    EDIT_MUST(!graph);
    EDIT_MUST(crystal_predict_init(&predict, graph, NULL, 2, &edit_err));
    crystal_what_if_init(&what);
}

static void close_all(void)
{
    crystal_predict_fini(&predict);
    crystal_graph_close(graph);
}

static struct crystal_prediction *run(void)
{
    struct crystal_prediction *pr = crystal_predict_run(&predict, &what, 1, &edit_err);

    EDIT_MUST(!pr);
    return pr;
}

static uint64_t iteration_ns(void)
{
    struct crystal_prediction *pr = run();
    uint64_t ns = pr->stuck_count ? 0 : pr->iteration_ns;

    crystal_prediction_destroy(pr);
    return ns;
}

#define MANY                                                                       \
    "parallel: {tp: 2, cp: 2, dp: 4, pp: 2, ep: 2, interleave: 2}\n"               \
    "model: {layers: 8, hidden: 512, heads: 8, kv-heads: 2, ffn: 1, experts: 8,\n" \
    "  experts-per-token: 2, expert-ffn: 256, vocab: 32000}\n"                     \
    "batch: {sequence: 1024, microbatches: 4}\n"                                   \
    "network: {ranks-per-node: 4}\n"

/* From 0 to the end without a gap; the parts of all ranks' time make the whole; a walk
 * ends when the timeline said. */
static void everything_adds_up(void)
{
    struct crystal_walk walk = {0};
    struct crystal_prediction *pr;
    struct crystal_path critical;

    open_synth(MANY "hardware: {launch: 10us}\n");
    what.jitter_ppm = 50000;
    for (what.seed = 0; what.seed < 5; what.seed++) {
        uint64_t at_ns = 0;
        size_t gaps = 0;

        pr = run();
        EDIT_MUST(crystal_prediction_path(pr, &critical, &edit_err));
        CHECK(critical.count > 100);
        for (size_t i = 0; i < critical.count; i++) {
            gaps += critical.parts[i].from_ns != at_ns;
            at_ns = critical.parts[i].to_ns;
        }
        CHECK_EQ(gaps, 0);
        CHECK_EQ(at_ns, pr->iteration_ns);
        crystal_path_fini(&critical);
        for (uint32_t r = 0; r < 32; r++) {
            struct crystal_rank_stat s;

            CHECK_EQ(crystal_prediction_stat(pr, r, &walk, &s), 0);
            CHECK_EQ(walk.end_ns, pr->end_ns[r]);
            CHECK_EQ(s.compute_ns + s.exposed_ns + s.bubble_ns + s.idle_ns, s.total_ns);
            CHECK(s.comm_ns >= s.exposed_ns);
        }
        crystal_prediction_destroy(pr);
    }
    crystal_walk_fini(&walk);
    close_all();
}

/* Two replicas that compute and reduce: the slow one is the path. */
static void slow_ranks(void)
{
    struct crystal_prediction *pr;
    struct crystal_path critical;
    uint64_t base, kernels = 0, others = 0;

    open_synth(
        "parallel: {dp: 4}\nmodel: {layers: 2, hidden: 64, heads: 1, ffn: 64}\n"
        "batch: {sequence: 64, microbatches: 2}\nhardware: {launch: 0}\n"
        "network: {bandwidth: 0, latency: 0, node-bandwidth: 0, node-latency: 0}\n");
    base = iteration_ns();
    what.slow[0].lrank = 2;
    what.slow[0].ppm = 1500000;
    what.slow_count = 1;
    pr = run();
    CHECK_EQ(pr->iteration_ns, base + base / 2); /* nothing but kernels, of even ns */
    EDIT_MUST(crystal_prediction_path(pr, &critical, &edit_err));
    for (size_t i = 0; i < critical.count; i++)
        if (critical.parts[i].lrank == 2)
            kernels += critical.parts[i].to_ns - critical.parts[i].from_ns;
        else
            others += critical.parts[i].to_ns - critical.parts[i].from_ns;
    /* but for the optimizer, behind the last reduction, where all are as late */
    CHECK(kernels > 9 * others);
    crystal_path_fini(&critical);
    crystal_prediction_destroy(pr);
    what.slow_count = 0;
    what.compute_ppm = 500000;
    CHECK_EQ(iteration_ns(), base / 2);
    what.slow[0].lrank = 4;
    what.slow_count = 1;
    CHECK(!crystal_predict_run(&predict, &what, 0, &edit_err));
    CHECK_STR(crystal_error_text(&edit_err),
              "--slow-rank=4: the job has 4 ranks, from 0");
    close_all();
}

/* One all-gather on two nodes of one rank: bytes over bandwidth, twice as long over
 * half a link, and untouched by another one. */
static void slow_links(void)
{
    uint64_t base, half;

    open_synth(
        "parallel: {tp: 2}\nmodel: {layers: 1, hidden: 4096, heads: 32, ffn: 1}\n"
        "batch: {sequence: 8192, microbatches: 1}\n"
        "hardware: {launch: 0, kernel: 0, memory-bandwidth: 0}\n"
        "network: {ranks-per-node: 1, bandwidth: 1GB/s, latency: 0}\n");
    base = iteration_ns();
    what.links[0] = (struct crystal_network_link){1, 0, 500000};
    what.link_count = 1;
    half = iteration_ns();
    what.link_count = 0;
    what.bytes_per_s = 500000000;
    CHECK_EQ(iteration_ns(), half);
    what.bytes_per_s = 0;
    CHECK(half - iteration_ns() > 2 * (base - iteration_ns()) - 1000);
    CHECK(half - iteration_ns() < 2 * (base - iteration_ns()) + 1000);
    what.links[0].node_b = 2;
    what.link_count = 1;
    CHECK(!crystal_predict_run(&predict, &what, 0, &edit_err));
    CHECK_STR(crystal_error_text(&edit_err),
              "--slow-link=1:2: the job has 2 nodes, from 0");
    close_all();
}

/* Eight nodes of one rank where only latency costs: seven steps of a ring, three of
 * PAT; with two ranks on a node PAT is a ring. */
static void algorithms(void)
{
    static const char job[] =
        "parallel: {tp: 8}\nmodel: {layers: 1, hidden: 64, heads: 8, ffn: 8}\n"
        "batch: {sequence: 64, microbatches: 1}\n"
        "hardware: {launch: 0, kernel: 0, memory-bandwidth: 0}\n"
        "network: {ranks-per-node: %d, bandwidth: 0, latency: 1ms, node-bandwidth: 0, "
        "node-latency: 1ms}\n";
    char text[512];
    uint64_t ring, pat, none;

    (void)snprintf(text, sizeof text, job, 1);
    open_synth(text);
    ring = iteration_ns();
    what.algos = CRYSTAL_TRANSFER_PAT;
    pat = iteration_ns();
    what.latency_ns = 0;
    none = iteration_ns();
    CHECK(ring - none >= 7000000);
    CHECK_EQ(3 * (ring - none), 7 * (pat - none));
    close_all();
    (void)snprintf(text, sizeof text, job, 2);
    open_synth(text);
    what.algos = CRYSTAL_TRANSFER_PAT;
    CHECK_EQ(iteration_ns(), ring);
    close_all();
    CHECK_EQ(crystal_transfer_algos("Tree"), CRYSTAL_TRANSFER_TREE);
    CHECK_EQ(crystal_transfer_algos("ring,PAT"), CRYSTAL_TRANSFER_PAT);
    CHECK_EQ(crystal_transfer_algos("^tree"), 0);
    CHECK_EQ(crystal_transfer_algos(NULL), 0);
}

/* One rank; streams that wait for each other's events. */
static void write_queue_job(const struct crystal_op *ops, uint32_t count)
{
    static const struct crystal_graph_network network = {1, 0, 0, 0, 0};
    struct crystal_graph_writer *w = crystal_graph_writer_create(1);

    EDIT_MUST(!w);
    crystal_graph_writer_network(w, &network);
    (void)crystal_graph_writer_rep(w, 0, 0);
    crystal_graph_writer_mark(w);
    for (uint32_t i = 0; i < count; i++)
        crystal_graph_writer_op(w, &ops[i]);
    for (uint16_t stream = 0; stream < 4; stream++)
        crystal_graph_writer_op(
            w, &(struct crystal_op){.kind = CRYSTAL_OP_SYNC, .stream = stream});
    crystal_graph_writer_mark(w);
    crystal_graph_writer_rank(w, 0, 0, NULL);
    EDIT_MUST(crystal_graph_writer_write(w, path, 0, &edit_err));
    crystal_graph_writer_destroy(w);
    graph = crystal_graph_open(path, &edit_err);
    EDIT_MUST(!graph);
    EDIT_MUST(crystal_predict_init(&predict, graph, NULL, 2, &edit_err));
    crystal_what_if_init(&what);
}

/* Record by record. */
static uint64_t queue_by_hand(const struct crystal_op *ops, uint32_t count,
                              int one_queue)
{
    uint64_t lanes[4] = {0}, events[64] = {0}, begun = 0, end = 0;

    for (uint32_t i = 0; i < count; i++) {
        uint64_t *lane = &lanes[ops[i].stream];

        if (ops[i].kind == CRYSTAL_OP_RECORD)
            events[ops[i].peer] = *lane;
        if (ops[i].kind == CRYSTAL_OP_SWAIT && events[ops[i].peer] > *lane)
            *lane = events[ops[i].peer];
        if (ops[i].kind != CRYSTAL_OP_KERNEL)
            continue;
        if (one_queue && begun > *lane)
            *lane = begun;
        begun = *lane;
        *lane += ops[i].value;
    }
    for (int k = 0; k < 4; k++)
        end = lanes[k] > end ? lanes[k] : end;
    return end;
}

static void one_hardware_queue(void)
{
    /* the kernel of stream 2 waits for nothing, but behind one that waits for 10 us */
    static const struct crystal_op fixed[] = {
        {.kind = CRYSTAL_OP_KERNEL, .stream = 0, .value = 10000},
        {.kind = CRYSTAL_OP_RECORD, .stream = 0, .peer = 0},
        {.kind = CRYSTAL_OP_SWAIT, .stream = 1, .peer = 0},
        {.kind = CRYSTAL_OP_KERNEL, .stream = 1, .value = 5000},
        {.kind = CRYSTAL_OP_KERNEL, .stream = 2, .value = 20000}};
    uint64_t state = 7;

    write_queue_job(fixed, 5);
    CHECK_EQ(iteration_ns(), 20000);
    what.one_queue = 1;
    CHECK_EQ(iteration_ns(), 30000);
    close_all();
    for (int job = 0; job < 300; job++) {
        struct crystal_op ops[400];
        uint32_t recorded = 0;

        for (uint32_t i = 0; i < 400; i++) {
            uint32_t x =
                (uint32_t)((state = state * UINT64_C(6364136223846793005) + 1) >> 33);

            ops[i] = (struct crystal_op){.kind = CRYSTAL_OP_KERNEL,
                                         .stream = (uint16_t)(x & 3),
                                         .value = x >> 8 & 0xfff};
            if ((x >> 4 & 7) == 0) {
                ops[i].kind = CRYSTAL_OP_RECORD;
                ops[i].peer = recorded++ % 64;
            } else if ((x >> 4 & 7) < 3 && recorded) {
                ops[i].kind = CRYSTAL_OP_SWAIT;
                ops[i].peer = (x >> 8) % (recorded < 64 ? recorded : 64);
            }
        }
        write_queue_job(ops, 400);
        CHECK_EQ(iteration_ns(), queue_by_hand(ops, 400, 0));
        what.one_queue = 1;
        CHECK_EQ(iteration_ns(), queue_by_hand(ops, 400, 1));
        close_all();
    }
}

/* Rank 0 sends 16 MB to each of the others at once, on streams and communicators of
 * their own; ranks 0 and 1 share a node. */
static void write_fan(void)
{
    static const struct crystal_graph_network network = {2, 1000000000, 0, 4000000000,
                                                         0};
    struct crystal_graph_writer *w = crystal_graph_writer_create(4);
    uint32_t comms[3];

    EDIT_MUST(!w);
    crystal_graph_writer_network(w, &network);
    for (uint32_t i = 0; i < 3; i++)
        comms[i] = crystal_graph_writer_comm(w, NULL, 2, (uint32_t[]){0, i + 1});
    for (uint32_t r = 0; r < 4; r++) {
        (void)crystal_graph_writer_rep(w, r, r ? 1 : 3);
        crystal_graph_writer_mark(w);
        for (uint16_t i = 0; i < (r ? 1 : 3); i++)
            crystal_graph_writer_op(
                w,
                &(struct crystal_op){.kind = r ? CRYSTAL_OP_RECV : CRYSTAL_OP_SEND,
                                     .func = r ? CRYSTAL_FUNC_RECV : CRYSTAL_FUNC_SEND,
                                     .dtype = ncclUint8,
                                     .stream = i,
                                     .comm = i,
                                     .peer = r == 0,
                                     .value = 16000000});
        for (uint16_t i = 0; i < (r ? 1 : 3); i++)
            crystal_graph_writer_op(
                w, &(struct crystal_op){.kind = CRYSTAL_OP_SYNC, .stream = i});
        crystal_graph_writer_mark(w);
    }
    crystal_graph_writer_rank(w, 0, 0, comms);
    for (uint32_t r = 1; r < 4; r++)
        crystal_graph_writer_rank(w, r, r, &comms[r - 1]);
    EDIT_MUST(crystal_graph_writer_write(w, path, 0, &edit_err));
    crystal_graph_writer_destroy(w);
    graph = crystal_graph_open(path, &edit_err);
    EDIT_MUST(!graph);
    EDIT_MUST(crystal_predict_init(&predict, graph, NULL, 2, &edit_err));
    crystal_what_if_init(&what);
}

static void shared_nics(void)
{
    struct crystal_prediction *pr;

    write_fan();
    pr = run(); /* 16 ms between nodes, 4 ms inside */
    CHECK_EQ(pr->end_ns[1], 4000000);
    CHECK_EQ(pr->end_ns[2], 16000000);
    CHECK_EQ(pr->end_ns[3], 16000000);
    crystal_prediction_destroy(pr);
    what.shared_nics = 1;
    pr = run(); /* one after the other, in order of issue; the node's own way is free */
    CHECK_EQ(pr->end_ns[1], 4000000);
    CHECK_EQ(pr->end_ns[2], 16000000);
    CHECK_EQ(pr->end_ns[3], 32000000);
    crystal_prediction_destroy(pr);
    close_all();
}

static void dead_ranks(void)
{
    struct crystal_timeline_wait steps[4];
    struct crystal_prediction *pr;
    uint32_t cycle;

    open_synth(MANY);
    what.dead[0] = 13;
    what.dead_count = 1;
    pr = run();
    CHECK_EQ(pr->stuck_count, 32);
    CHECK(pr->still_ns > 0);
    CHECK(crystal_timeline_witness(pr->timeline, steps, 4, &cycle) > 0);
    CHECK_EQ(cycle, 4); /* nobody waits for himself */
    crystal_prediction_destroy(pr);
    close_all();
}

int main(void)
{
    (void)snprintf(path, sizeof path, "/tmp/crystal-predict.%ld", (long)getpid());
    check_begin();
    CHECK_RUN(everything_adds_up);
    CHECK_RUN(slow_ranks);
    CHECK_RUN(slow_links);
    CHECK_RUN(algorithms);
    CHECK_RUN(one_hardware_queue);
    CHECK_RUN(shared_nics);
    CHECK_RUN(dead_ranks);
    (void)unlink(path); /* a temporary file */
    return check_end();
}
