/* What messages wait for at the two sides of a NIC: closed forms, and a skewed exchange
 * of all with all against one that gives out every unit of time by itself.
 */
#include "config.h"

#include "runtime/graph_write.h"
#include "runtime/timeline.h"

#include "tests/check.h"
#include "tests/must.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS   8
#define OPS     64
#define WAY_NS  1000
#define ELEMENT 4 /* bytes; a byte takes a nanosecond */

static struct crystal_error err;
static char path[64];

struct bench {
    uint32_t n, comm_count;
    struct crystal_op ops[RANKS][OPS];
    uint32_t count[RANKS];
    struct crystal_timeline_config config;
    uint64_t end_ns[RANKS];         /* of the iteration */
    uint64_t got_ns[RANKS][OPS];    /* of the operation */
    uint64_t told_ns[RANKS][RANKS]; /* of messages to and from outside */
    uint8_t is_outside[RANKS];
    struct crystal_timeline *timeline;
    struct crystal_graph *graph;
    struct crystal_program *programs[RANKS];
    uint64_t *gaps[RANKS];
};

/* n ranks, in comm_count communicators that all are in. */
static void bench_begin(struct bench *b, uint32_t n, uint32_t comm_count)
{
    memset(b, 0, sizeof *b);
    b->n = n;
    b->comm_count = comm_count;
}

static void put(struct bench *b, uint32_t r, struct crystal_op op)
{
    MUST(b->count[r] == OPS - 1);
    b->ops[r][b->count[r]++] = op;
}

static void group(struct bench *b, uint32_t r, int starts)
{
    put(b, r, (struct crystal_op){.kind = CRYSTAL_OP_GROUP, .aux = (uint16_t)starts});
}

static void message(struct bench *b, uint32_t r, uint16_t comm, int sends,
                    uint32_t peer, uint64_t elements)
{
    put(b, r,
        (struct crystal_op){.kind = sends ? CRYSTAL_OP_SEND : CRYSTAL_OP_RECV,
                            .func = sends ? CRYSTAL_FUNC_SEND : CRYSTAL_FUNC_RECV,
                            .dtype = 7,
                            .comm = comm,
                            .stream = comm,
                            .peer = peer,
                            .value = elements});
}

static void on_end(void *context, uint32_t lrank, uint64_t iteration, uint32_t instr,
                   uint64_t arrive_ns, uint64_t end_ns)
{
    struct bench *b = context;

    (void)iteration, (void)arrive_ns;
    b->got_ns[lrank][instr] = end_ns;
}

static void on_iteration(void *context, uint32_t lrank, uint64_t iteration,
                         uint64_t begin_ns, uint64_t end_ns)
{
    struct bench *b = context;

    (void)iteration, (void)begin_ns;
    b->end_ns[lrank] = end_ns;
}

static void on_p2p(void *context, uint32_t comm, uint32_t from, uint32_t to,
                   uint64_t seq, int inside_sends, uint64_t arrive_ns)
{
    struct bench *b = context;

    (void)comm, (void)seq, (void)inside_sends;
    b->told_ns[from][to] = arrive_ns;
}

static void graph_make(struct bench *b)
{
    struct crystal_graph_writer *w = crystal_graph_writer_create(b->n);
    uint32_t members[RANKS], map[OPS];

    MUST(!w);
    for (uint32_t i = 0; i < RANKS; i++)
        members[i] = i;
    for (uint32_t c = 0; c < b->comm_count; c++) {
        map[c] = c;
        (void)crystal_graph_writer_comm(w, NULL, b->n, members);
    }
    for (uint32_t r = 0; r < b->n; r++) {
        (void)crystal_graph_writer_rep(w, r, b->comm_count);
        crystal_graph_writer_mark(w);
        for (uint32_t i = 0; i < b->count[r]; i++)
            crystal_graph_writer_op(w, &b->ops[r][i]);
        crystal_graph_writer_mark(w);
    }
    for (uint32_t r = 0; r < b->n; r++)
        crystal_graph_writer_rank(w, r, r, map);
    MUST(crystal_graph_writer_write(w, path, 0, &err));
    crystal_graph_writer_destroy(w);
    b->graph = crystal_graph_open(path, &err);
    MUST(!b->graph);
}

/* Every rank waits for all streams at the end. */
static void bench_start(struct bench *b)
{
    for (uint32_t r = 0; r < b->n; r++) {
        for (uint16_t c = 0; c < b->comm_count; c++)
            put(b, r, (struct crystal_op){.kind = CRYSTAL_OP_SYNC, .stream = c});
        put(b, r, (struct crystal_op){.kind = CRYSTAL_OP_HINT});
    }
    graph_make(b);
    for (uint32_t r = 0; r < b->n; r++) {
        b->programs[r] = crystal_program_create(b->graph, r, &err);
        b->gaps[r] = calloc(OPS, sizeof *b->gaps[r]);
        MUST(!b->programs[r] || !b->gaps[r]);
    }
    b->config.graph = b->graph;
    b->config.programs = b->programs;
    b->config.gap_ns = (const uint64_t *const *)b->gaps;
    b->config.wire =
        (struct crystal_transfer_wire){.bytes_per_s = 1000000000, .latency_ns = WAY_NS};
    b->config.is_outside = b->is_outside;
    b->config.iterations = 1;
    b->config.context = b;
    b->config.on_end = on_end;
    b->config.on_iteration = on_iteration;
    b->config.on_p2p = on_p2p;
}

static void bench_run(struct bench *b)
{
    b->timeline = crystal_timeline_create(&b->config, &err);
    MUST(!b->timeline);
    MUST(crystal_timeline_start(b->timeline, 0, &err));
    MUST(crystal_timeline_advance(b->timeline, UINT64_MAX, &err));
}

static void bench_end(struct bench *b)
{
    crystal_timeline_destroy(b->timeline);
    for (uint32_t r = 0; r < b->n; r++) {
        crystal_program_destroy(b->programs[r]);
        free(b->gaps[r]);
    }
    crystal_graph_close(b->graph);
}

/* Two send to one at once: it has the second when both are through its NIC. */
static void a_receiver_takes_one_after_the_other(void)
{
    struct bench b;

    for (int is_shared = 0; is_shared < 2; is_shared++) {
        bench_begin(&b, 3, 1);
        group(&b, 0, 1);
        message(&b, 0, 0, 0, 1, 1000);
        message(&b, 0, 0, 0, 2, 500);
        group(&b, 0, 0);
        message(&b, 1, 0, 1, 0, 1000);
        message(&b, 2, 0, 1, 0, 500);
        bench_start(&b);
        b.config.nics = is_shared ? CRYSTAL_NICS_OF_MESSAGES : CRYSTAL_NICS_OF_GROUPS;
        bench_run(&b);
        CHECK_EQ(b.got_ns[0][2], WAY_NS + 2000); /* the first round is rank 2's */
        CHECK_EQ(b.got_ns[0][1], WAY_NS + 2000 + 4000);
        CHECK_EQ(b.end_ns[0], WAY_NS + 6000);
        CHECK_EQ(b.end_ns[1], 0); /* it sends into staging memory */
        bench_end(&b);
    }
}

/* One that leaves late leaves the time before it to others: rank 2's NIC is busy with
 * 10000 bytes for rank 1 first, and rank 1's message of 4000 fills the time until then.
 */
static void a_late_one_leaves_the_time_before_it(void)
{
    struct bench b;

    bench_begin(&b, 4, 1);
    group(&b, 0, 1);
    message(&b, 0, 0, 0, 1, 1000);
    message(&b, 0, 0, 0, 2, 500);
    group(&b, 0, 0);
    message(&b, 1, 0, 1, 0, 1000);
    group(&b, 2, 1);
    message(&b, 2, 0, 1, 0, 500);  /* two ranks away */
    message(&b, 2, 0, 1, 3, 2500); /* the next one, so it is sent first */
    group(&b, 2, 0);
    message(&b, 3, 0, 0, 2, 2500);
    bench_start(&b);
    bench_run(&b);
    CHECK_EQ(b.got_ns[3][0], WAY_NS + 10000);
    CHECK_EQ(b.got_ns[0][1], WAY_NS + 4000);
    CHECK_EQ(b.got_ns[0][2], 10000 + WAY_NS + 2000);
    bench_end(&b);
}

/* Messages of two communicators meet at one NIC only where all share it. */
static void communicators_share_a_nic_if_told(void)
{
    struct bench b;

    for (int is_shared = 0; is_shared < 2; is_shared++) {
        bench_begin(&b, 2, 2);
        for (uint16_t c = 0; c < 2; c++) {
            message(&b, 0, c, 1, 1, 1000);
            message(&b, 1, c, 0, 0, 1000);
        }
        bench_start(&b);
        b.config.nics = is_shared ? CRYSTAL_NICS_OF_MESSAGES : CRYSTAL_NICS_OF_GROUPS;
        bench_run(&b);
        CHECK_EQ(b.end_ns[1], (is_shared ? 8000 : 4000) + WAY_NS);
        bench_end(&b);
    }
}

/* The way inside a node is another one than that between nodes. */
static void ways_do_not_share(void)
{
    struct crystal_network network = {
        .wire = {.bytes_per_s = 1000000000, .latency_ns = WAY_NS},
        .node_wire = {.bytes_per_s = 4000000000},
        .ranks_per_node = 2};
    struct bench b;

    for (int is_shared = 0; is_shared < 2; is_shared++) {
        bench_begin(&b, 4, 1);
        for (uint32_t r = 1; r < 4; r++)
            message(&b, r, 0, 1, 0, 1000);
        group(&b, 0, 1);
        for (uint32_t r = 1; r < 4; r++)
            message(&b, 0, 0, 0, r, 1000);
        group(&b, 0, 0);
        bench_start(&b);
        b.config.network = &network;
        b.config.nics = is_shared ? CRYSTAL_NICS_OF_MESSAGES : CRYSTAL_NICS_OF_GROUPS;
        bench_run(&b);
        CHECK_EQ(b.got_ns[0][1], 1000); /* from rank 1 */
        CHECK_EQ(b.got_ns[0][3], WAY_NS + 4000);
        CHECK_EQ(b.got_ns[0][2], WAY_NS + 8000);
        bench_end(&b);
    }
}

static void collective(struct bench *b, uint16_t comm, uint64_t elements)
{
    for (uint32_t r = 0; r < b->n; r++)
        put(b, r,
            (struct crystal_op){.kind = CRYSTAL_OP_COLL,
                                .func = CRYSTAL_FUNC_ALLTOALL,
                                .dtype = 7,
                                .comm = comm,
                                .stream = comm,
                                .value = elements});
}

/* Two collectives of equal members, each of 8000 ns at a NIC and WAY_NS more: together
 * they ask for 16/9 of it. Behind the first one's end the other has it alone. */
static void collectives_share_nics(void)
{
    struct bench b;

    for (int is_shared = 0; is_shared < 2; is_shared++) {
        bench_begin(&b, 3, 2);
        collective(&b, 0, 1000);
        put(&b, 0, (struct crystal_op){.kind = CRYSTAL_OP_HINT});
        collective(&b, 1, 1000);
        bench_start(&b);
        b.gaps[0][2] = 4500; /* half of the first one's time */
        b.config.nics = is_shared ? CRYSTAL_NICS_OF_ALL : CRYSTAL_NICS_OF_MESSAGES;
        bench_run(&b);
        CHECK_EQ(b.got_ns[1][0], is_shared ? 4500 + 4500 * 16 / 9 : 9000);
        CHECK_EQ(b.got_ns[1][1], is_shared ? 12500 + 4500 : 13500);
        bench_end(&b);
    }
}

/* The same three ranks, the last one from outside. What has begun does not end before
 * it is settled that nothing else may share its NICs; with one stream nothing can. */
static void ends_wait_until_they_are_settled(void)
{
    for (int overlaps = 0; overlaps < 2; overlaps++) {
        struct bench b;

        bench_begin(&b, 3, 2);
        collective(&b, 0, 1000);
        put(&b, 0, (struct crystal_op){.kind = CRYSTAL_OP_HINT});
        for (uint32_t r = 0; !overlaps && r < 3; r++)
            put(&b, r, (struct crystal_op){.kind = CRYSTAL_OP_SYNC, .stream = 0});
        collective(&b, 1, 1000);
        bench_start(&b);
        b.gaps[0][2] = 4500;
        b.is_outside[2] = 1;
        b.config.nics = CRYSTAL_NICS_OF_ALL;
        b.timeline = crystal_timeline_create(&b.config, &err);
        MUST(!b.timeline);
        crystal_timeline_settle(b.timeline, 0);
        MUST(crystal_timeline_start(b.timeline, 0, &err));
        MUST(crystal_timeline_feed(b.timeline, 0, 0, 2, 0, &err));
        MUST(crystal_timeline_advance(b.timeline, 1000000, &err));
        CHECK_EQ(b.got_ns[1][0], overlaps ? 0 : 9000);
        CHECK_EQ(crystal_timeline_held_ns(b.timeline), overlaps ? 9000 : UINT64_MAX);
        crystal_timeline_settle(b.timeline, 4500);
        MUST(crystal_timeline_feed(b.timeline, 1, 0, 2, overlaps ? 4500 : 9000, &err));
        MUST(crystal_timeline_advance(b.timeline, 1000000, &err));
        CHECK_EQ(crystal_timeline_held_ns(b.timeline), overlaps ? 12500 : UINT64_MAX);
        CHECK_EQ(b.got_ns[1][0], overlaps ? 0 : 9000);
        crystal_timeline_settle(b.timeline, 12500);
        MUST(crystal_timeline_advance(b.timeline, 1000000, &err));
        CHECK_EQ(crystal_timeline_held_ns(b.timeline), overlaps ? 17000 : UINT64_MAX);
        CHECK_EQ(b.got_ns[1][0], overlaps ? 4500 + 4500 * 16 / 9 : 9000);
        crystal_timeline_settle(b.timeline, 17000);
        MUST(crystal_timeline_advance(b.timeline, 1000000, &err));
        CHECK_EQ(crystal_timeline_held_ns(b.timeline), UINT64_MAX);
        CHECK_EQ(b.end_ns[1], overlaps ? 17000 : 18000);
        bench_end(&b);
    }
}

/* A collective goes on slower while a message is sent, and the message takes longer. */
static void a_message_shares_with_a_collective(void)
{
    struct bench b;

    bench_begin(&b, 3, 2);
    collective(&b, 0, 1000);
    put(&b, 0, (struct crystal_op){.kind = CRYSTAL_OP_HINT});
    message(&b, 0, 1, 1, 1, 450);
    message(&b, 1, 1, 0, 0, 450);
    bench_start(&b);
    b.gaps[0][2] = 1800;
    b.config.nics = CRYSTAL_NICS_OF_ALL;
    b.config.wire.latency_ns = 8000; /* so the collective asks for half of its NICs */
    bench_run(&b);
    CHECK_EQ(b.got_ns[1][1], 1800 + 1800 * 3 / 2 + 8000);
    CHECK_EQ(b.got_ns[2][0], 16000 + 1800 * 3 / 2 - 1800);
    bench_end(&b);
}

/* Who is outside hears when the sender's NIC has time for its message. */
static void outside_is_told_of_turns(void)
{
    struct bench b;

    for (int is_shared = 0; is_shared < 2; is_shared++) {
        bench_begin(&b, 4, 1);
        group(&b, 0, 1);
        for (uint32_t r = 3; r > 0; r--)
            message(&b, 0, 0, 1, r, 1000 * r);
        group(&b, 0, 0);
        for (uint32_t r = 1; r < 4; r++)
            message(&b, r, 0, 0, 0, 1000 * r);
        bench_start(&b);
        b.is_outside[1] = b.is_outside[2] = b.is_outside[3] = 1;
        b.config.nics = is_shared ? CRYSTAL_NICS_OF_MESSAGES : CRYSTAL_NICS_OF_GROUPS;
        bench_run(&b);
        CHECK_EQ(b.told_ns[0][1], 0);
        CHECK_EQ(b.told_ns[0][2], 4000);
        CHECK_EQ(b.told_ns[0][3], 12000);
        bench_end(&b);
    }
}

/* --- all with all --- */

#define UNIT  1000 /* elements */
#define UNITS 200

static uint64_t units_between(uint32_t from, uint32_t to, uint32_t layer)
{
    return 1 + (from * to + layer) % 6;
}

/* Units of time after which `to` has what all others send it, which they do in rounds,
 * each as fast as its NIC can. The way takes no time. */
static uint64_t units_until(uint32_t to, uint32_t layer)
{
    char is_taken[UNITS] = {0};
    uint64_t end = 0;

    for (uint32_t round = 1; round < RANKS; round++) {
        uint32_t from = (to + RANKS - round) % RANKS;
        uint64_t at = 0;

        for (uint32_t before = 1; before < round; before++)
            at += units_between(from, (from + before) % RANKS, layer);
        for (uint64_t left = units_between(from, to, layer); left; at++)
            if (!is_taken[at]) {
                is_taken[at] = 1;
                left--;
            }
        end = at > end ? at : end;
    }
    return end;
}

/* What goes through the two sides of its NIC. */
static uint64_t units_of(uint32_t r, uint32_t layer)
{
    uint64_t out = 0, in = 0;

    for (uint32_t peer = 0; peer < RANKS; peer++) {
        out += peer != r ? units_between(r, peer, layer) : 0;
        in += peer != r ? units_between(peer, r, layer) : 0;
    }
    return out > in ? out : in;
}

static void skewed_exchange(void)
{
    uint32_t idle_count = 0;
    struct bench b;

    for (uint32_t layer = 0; layer < 4; layer++) {

        bench_begin(&b, RANKS, 1);
        for (uint32_t r = 0; r < RANKS; r++) {
            group(&b, r, 1);
            for (uint32_t peer = 0; peer < RANKS; peer++) {
                message(&b, r, 0, 1, peer, UNIT * units_between(r, peer, layer));
                message(&b, r, 0, 0, peer, UNIT * units_between(peer, r, layer));
            }
            group(&b, r, 0);
        }
        bench_start(&b);
        b.config.wire.latency_ns = 0;
        bench_run(&b);
        for (uint32_t r = 0; r < RANKS; r++) {
            uint64_t units = units_until(r, layer);

            CHECK_EQ(b.end_ns[r], units * UNIT * ELEMENT);
            idle_count += units > units_of(r, layer);
        }
        bench_end(&b);
    }
    CHECK(idle_count > 4); /* so it is not only the sum that counts */
}

int main(void)
{
    (void)snprintf(path, sizeof path, "/tmp/crystal-nics.%ld", (long)getpid());
    check_begin();
    CHECK_RUN(a_receiver_takes_one_after_the_other);
    CHECK_RUN(a_late_one_leaves_the_time_before_it);
    CHECK_RUN(communicators_share_a_nic_if_told);
    CHECK_RUN(ways_do_not_share);
    CHECK_RUN(collectives_share_nics);
    CHECK_RUN(ends_wait_until_they_are_settled);
    CHECK_RUN(a_message_shares_with_a_collective);
    CHECK_RUN(outside_is_told_of_turns);
    CHECK_RUN(skewed_exchange);
    (void)unlink(path); /* a temporary file */
    return check_end();
}
