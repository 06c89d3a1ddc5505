/* The drivers of two nodes on their boards: this program plays a sandbox rank on each,
 * and reads when virtual ranks arrive, on both boards exactly what graph, profile and
 * the arrivals of both ranks say.
 */
#include "config.h"

#include "replay/driver_far.h"
#include "replay/node_links.h"

#include "tests/unit/driver_stage.h"

#include <errno.h>
#include <pthread.h>

static struct stage nodes[2]; /* ranks 0 and 2 */
static uint32_t sandbox[2] = {0, 2};

/* --- the links between them --- */

static int on_message(void *context, uint32_t from, unsigned type, const void *body,
                      uint32_t bytes)
{
    struct stage *s = context;

    (void)from;
    return crystal_driver_far(s->driver, type, body, bytes);
}

static void on_bootstrap(void *context, int fd, uint32_t where)
{
    (void)context;
    (void)where;
    (void)close(fd);
}

static int on_feed(void *context, int fd, uint32_t lrank)
{
    (void)context;
    (void)lrank;
    (void)close(fd);
    return 0;
}

static int alive(void *context, struct crystal_error *err)
{
    (void)context;
    (void)err;
    return 0;
}

static void on_clock(void *context, int64_t clock_ns)
{
    (void)context;
    (void)clock_ns;
}

static struct crystal_msg_node places[2];

static void *connect_main(void *argument)
{
    struct stage *s = argument;
    const struct crystal_links_hooks hooks = {.context = s,
                                              .message = on_message,
                                              .bootstrap = on_bootstrap,
                                              .feed = on_feed,
                                              .alive = alive,
                                              .clock = on_clock};
    struct crystal_error err = {0};

    CHECK_EQ(crystal_links_connect(s->links, (uint32_t)(s - nodes), places, 2, 0,
                                   &hooks, &err),
             0);
    CHECK_STR(err.text, "");
    return NULL;
}

static void connect_nodes(void)
{
    static const uint8_t token[CRYSTAL_TOKEN_BYTES];
    static const uint8_t loopback[16] = {
        [10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};
    pthread_t threads[2];

    for (uint32_t i = 0; i < 2; i++) {
        nodes[i].links =
            crystal_links_create(token, &(struct crystal_ports){0, 0}, &job_err);
        JOB_MUST(!nodes[i].links);
        places[i] = (struct crystal_msg_node){
            .node = i, .node_count = 2, .port = crystal_links_port(nodes[i].links)};
        memcpy(places[i].address, loopback, sizeof loopback);
    }
    for (int i = 0; i < 2; i++)
        JOB_MUST(pthread_create(&threads[i], NULL, connect_main, &nodes[i]) != 0);
    for (int i = 0; i < 2; i++)
        (void)pthread_join(threads[i], NULL);
}

static void open_nodes(void)
{
    static const uint8_t is_real[] = {1, 0, 1, 0};
    char directory[160];

    memset(nodes, 0, sizeof nodes);
    make_job(&nodes[0].job);
    free(nodes[0].job.layout.sandbox);
    nodes[0].job.layout.sandbox = malloc(sizeof sandbox);
    JOB_MUST(!nodes[0].job.layout.sandbox);
    memcpy(nodes[0].job.layout.sandbox, sandbox, sizeof sandbox);
    nodes[0].job.layout.sandbox_count = 2;
    nodes[1].job = nodes[0].job; /* the same directory and layout */
    connect_nodes();
    for (uint32_t i = 0; i < 2; i++) {
        nodes[i].crank = sandbox[i];
        job_path(&nodes[0].job, directory, sizeof directory, "node%u", i);
        JOB_MUST(mkdir(directory, 0700) != 0);
        stage_board(&nodes[i], directory, is_real, 1);
    }
}

static void close_nodes(void)
{
    for (int i = 0; i < 2; i++)
        crystal_links_stop(nodes[i].links);
    for (int i = 0; i < 2; i++) {
        crystal_driver_destroy(nodes[i].driver);
        crystal_board_destroy(nodes[i].board);
        crystal_links_destroy(nodes[i].links);
    }
    job_end(&nodes[0].job);
}

/* --- tests --- */

/* The set-up operation at both; they end at different times. */
static void set_up(uint64_t end_ns[2])
{
    for (int i = 0; i < 2; i++) {
        struct crystal_board_slot *slot = claim(&nodes[i], 0, CRYSTAL_FUNC_BROADCAST);

        CHECK_EQ(await32(&slot->published), 1);
        end_ns[i] = now();
        finish(&nodes[i], slot, end_ns[i] - 5000, end_ns[i]);
    }
}

/* Ranks 1 and 3 are virtual; 0 and 2 send to one of them and receive from the other. */
static void iterate(uint64_t i, uint64_t host[4])
{
    struct crystal_transfer_wire wire = {1000000000, 1000, 0, 1,
                                         0,          0,    0, CRYSTAL_PROTO_SIMPLE};
    struct crystal_transfer_op op = {CRYSTAL_FUNC_ALLREDUCE, 4, 0, 32768, 4, 0};
    struct crystal_board_pair_cell *out[2], *in[2];
    struct crystal_board_slot *slots[2];
    uint64_t arrive[4], ends[4], scratch[8];

    for (int n = 0; n < 2; n++) { /* node 1 comes first to every other one */
        slots[(n + i) % 2] = claim(&nodes[(n + i) % 2], 1 + i, CRYSTAL_FUNC_ALLREDUCE);
        if (i == 0) /* the first one says when they begin: it has to be node 0 */
            CHECK_EQ(await32(&slots[n]->published), 1);
    }
    for (uint32_t k = 1; k < 4; k += 2)
        arrive[k] = host[k] + 1000000 * (k + 1);
    for (int n = 0; n < 2; n++) {
        struct crystal_board_cell *cells =
            crystal_board_cells(nodes[n].board, nodes[n].comm, slots[n]);

        CHECK_EQ(await32(&slots[n]->published), 1);
        CHECK_EQ(atomic_load(&cells[1].arrive_ns), arrive[1]);
        CHECK_EQ(atomic_load(&cells[3].arrive_ns), arrive[3]);
    }
    arrive[0] = arrive[3] + 1234567 * (i % 3); /* sometimes the latest */
    arrive[2] = arrive[3] + 777777 * (i % 4);
    crystal_transfer_coll(&wire, &op, arrive, ends, scratch);
    for (int n = 0; n < 2; n++)
        finish(&nodes[n], slots[n], arrive[sandbox[n]], ends[sandbox[n]]);
    for (uint32_t k = 0; k < 4; k++)
        arrive[k] = ends[k] + 500000;
    for (int n = 0; n < 2; n++) {
        out[n] = message(&nodes[n], 0, sandbox[n] + 1, 1, i);
        in[n] = message(&nodes[n], 1, (sandbox[n] + 3) % 4, 0, i);
        CHECK_EQ(await64(&out[n]->virtual_arrive_ns), arrive[sandbox[n] + 1]);
        CHECK_EQ(await64(&in[n]->virtual_arrive_ns), arrive[(sandbox[n] + 3) % 4]);
        atomic_store(&out[n]->real_arrive_ns, arrive[sandbox[n]]);
        atomic_store(&in[n]->real_arrive_ns, arrive[sandbox[n]]);
    }
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t from = (k + 3) % 4;

        host[k] = (arrive[from] > arrive[k] ? arrive[from] : arrive[k]) + 400 + 1000;
    }
    for (int n = 0; n < 2; n++) {
        atomic_store(&in[n]->end_ns, host[sandbox[n]]);
        atomic_store(&out[n]->end_ns, host[sandbox[n]]);
        crystal_board_ring(nodes[n].board);
    }
}

static void both_boards_have_the_same_times(void)
{
    uint64_t host[4], end_ns[2];

    open_nodes();
    set_up(end_ns);
    for (int k = 0; k < 4; k++)
        host[k] = end_ns[0]; /* node 0 comes first, and says when they begin */
    for (uint64_t i = 0; i < 70 && check_ok; i++) /* more than slots */
        iterate(i, host);
    for (int n = 0; n < 2; n++) {
        CHECK_EQ(atomic_load(&crystal_board_header(nodes[n].board)->timeline),
                 CRYSTAL_BOARD_FOLLOWS);
        CHECK_EQ(atomic_load(&crystal_board_header(nodes[n].board)->abort_flag), 0);
    }
    close_nodes();
}

/* Only node 1's rank comes: node 0, asked, takes the later set-up of the two. */
static void the_other_node_comes_first(void)
{
    struct crystal_board_slot *slot;
    struct crystal_board_cell *cells;
    uint64_t end_ns[2];

    open_nodes();
    set_up(end_ns);
    CHECK(end_ns[1] > end_ns[0]);
    slot = claim(&nodes[1], 1, CRYSTAL_FUNC_ALLREDUCE);
    cells = crystal_board_cells(nodes[1].board, nodes[1].comm, slot);
    CHECK_EQ(await32(&slot->published), 1);
    CHECK_EQ(atomic_load(&cells[1].arrive_ns), end_ns[1] + 2000000);
    CHECK_EQ(atomic_load(&cells[3].arrive_ns), end_ns[1] + 4000000);
    CHECK_EQ(atomic_load(&crystal_board_header(nodes[0].board)->timeline),
             CRYSTAL_BOARD_FOLLOWS);
    close_nodes();
}

/* One node's rank goes on to something else: virtual ranks are free on both. */
static void the_end_is_one_for_all(void)
{
    struct crystal_board_slot *slot;
    uint64_t end_ns[2];

    open_nodes();
    set_up(end_ns);
    slot = claim(&nodes[1], 1, CRYSTAL_FUNC_BROADCAST);
    CHECK_EQ(await32(&slot->published), 1);
    for (int n = 0; n < 2; n++) {
        _Atomic uint32_t *timeline = &crystal_board_header(nodes[n].board)->timeline;

        for (int i = 0; i < 600000 && atomic_load(timeline) != CRYSTAL_BOARD_FINISHED;
             i++)
            (void)usleep(100);
        CHECK_EQ(atomic_load(timeline), CRYSTAL_BOARD_FINISHED);
    }
    close_nodes();
}

static void broken_letters(void)
{
    struct crystal_far_arrival arrival = {.kind = CRYSTAL_FAR_COLLECTIVE,
                                          .graph_comm = 99};
    char text[256];

    open_nodes();
    CHECK_EQ(crystal_driver_far(nodes[0].driver, CRYSTAL_LINK_ARRIVAL, &arrival,
                                sizeof arrival - 1),
             -EBADMSG);
    CHECK_EQ(crystal_driver_far(nodes[0].driver, CRYSTAL_LINK_RINGS, &arrival,
                                sizeof arrival),
             -EBADMSG);
    CHECK_EQ(crystal_driver_far(nodes[0].driver, CRYSTAL_LINK_ARRIVAL, &arrival,
                                sizeof arrival),
             0);
    CHECK_EQ(await32(&crystal_board_header(nodes[0].board)->abort_flag), 1);
    (void)snprintf(text, sizeof text, "%.255s",
                   crystal_board_header(nodes[0].board)->abort_text);
    CHECK_STR(text, "timeline: fed for no outside rank");
    close_nodes();
}

int main(void)
{
    check_begin();
    CHECK_RUN(both_boards_have_the_same_times);
    CHECK_RUN(the_other_node_comes_first);
    CHECK_RUN(the_end_is_one_for_all);
    CHECK_RUN(broken_letters);
    return check_end();
}
