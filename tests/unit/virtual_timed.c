/* Timed mode: this process plays the node's agent, a child is a real rank between
 * virtual ones. When receives and sends are complete, against virtual_time; what stands
 * on the board and in the run record; and how it stops.
 */
#include "config.h"

#include "replay/board.h"
#include "replay/run_record.h"
#include "replay/virtual_time.h"
#include "runtime/blockfile.h"

#include "runtime/clock.h"
#include "tests/net_ring.h"

#include <sys/mman.h>
#include <sys/stat.h>

#define COMM       UINT64_C(0x77)
#define NRANKS     5
#define COUNT      500000 /* floats: messages of 262144 and 137856 bytes */
#define SLACK_NS   60000000U
#define FIRST_RANK 20

static char directory[64];
static const struct crystal_wire wire = {1000000000, 200000, 10000};

/* What the child tells: shared memory. */
struct told {
    uint64_t receive_done_ns[64], send_post_ns[64];
    uint64_t posted_ns, done_ns;
    uint64_t sends, receives;
};
static struct told *told;

static struct crystal_board *board_make(int nranks, const char *real)
{
    struct crystal_error err = {0};
    struct crystal_board_config config = {.directory = directory,
                                          .lrank_count = 64,
                                          .mode = CRYSTAL_BOARD_TIMED,
                                          .wire_bytes_per_s = wire.bytes_per_s,
                                          .wire_latency_ns = wire.latency_ns,
                                          .message_overhead_ns = wire.overhead_ns,
                                          .comm_capacity = 2,
                                          .heap_bytes = 4 << 20};
    struct crystal_board *board = crystal_board_create(&config, &err);
    uint32_t members[NRANKS];
    uint8_t is_real[NRANKS];

    for (int r = 0; r < nranks; r++) {
        members[r] = (uint32_t)(FIRST_RANK + r);
        is_real[r] = real[r] == 'r';
    }
    if (!board || crystal_board_comm_add(board, COMM, "world", UINT32_MAX,
                                         (uint32_t)nranks, members, is_real, &err)) {
        printf("# %s\n", crystal_error_text(&err));
        return NULL;
    }
    return board;
}

static pid_t child_start(int crank, void (*main_fn)(struct ring *ring))
{
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        char lrank[16];
        struct ring ring = {.rank = {.nranks = NRANKS}};

        check_begin_child();
        (void)snprintf(lrank, sizeof lrank, "%d", FIRST_RANK + crank);
        (void)setenv("CRYSTAL_LRANK", lrank, 1);
        CHECK(rank_init(&ring.rank, COMM, NRANKS, crank));
        ring.from_prev = ring_accept_virtual(&ring.rank, (crank + NRANKS - 1) % NRANKS);
        ring.to_next = ring_connect_virtual(&ring.rank, (crank + 1) % NRANKS);
        CHECK(ring.from_prev && ring.to_next);
        if (check_ok)
            main_fn(&ring);
        fflush(stdout);
        exit(check_ok ? 0 : 1);
    }
    return pid;
}

static void child_end(pid_t pid)
{
    int status;

    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
}

static struct crystal_board_cell *cells_of(struct crystal_board *board, uint64_t seq)
{
    struct crystal_board_comm *comm = crystal_board_comm_find(board, COMM);

    return crystal_board_cells(board, comm, crystal_board_slot(board, comm, seq));
}

static struct crystal_board_slot *slot_wait(struct crystal_board *board, uint64_t seq,
                                            int crank)
{
    struct crystal_board_comm *comm = crystal_board_comm_find(board, COMM);
    struct crystal_board_slot *slot = crystal_board_slot(board, comm, seq);
    const struct timespec pause = {0, 100000};

    while (atomic_load(&slot->seq_plus1) != seq + 1 ||
           !atomic_load(&cells_of(board, seq)[crank].arrive_ns))
        (void)nanosleep(&pause, NULL);
    return slot;
}

static bool collective(struct ring *ring, enum crystal_func func, uint64_t count,
                       uint32_t root)
{
    unsigned char *in = calloc(count * NRANKS, 4), *out = calloc(count * NRANKS, 4);
    struct ring_run run = {
        .ring = ring,
        .op = {func, NRANKS, root, count, 4, 1, 0, CRYSTAL_PROTO_SIMPLE, NULL},
        .is_float = 1,
        .in = in,
        .out = out,
        .receive_done_ns = told->receive_done_ns,
        .send_post_ns = told->send_post_ns};
    bool good = ring_collective(&run);

    told->sends = run.sends;
    told->receives = run.receives;
    free(in);
    free(out);
    return good;
}

/* --- an all-reduce among late virtual ranks --- */

static void late_all_reduce(struct ring *ring)
{
    CHECK(collective(ring, CRYSTAL_FUNC_ALLREDUCE, COUNT, 0));
}

static uint64_t arrivals[NRANKS];

static uint64_t arrive_at(const void *user, uint32_t distance)
{
    return arrivals[(*(const uint32_t *)user + 2 * NRANKS - 1 - distance) % NRANKS];
}

/* Each receive against the closed form with the sends as they really went. */
static void receives_check(uint32_t crank, const struct crystal_ring_op *op)
{
    struct crystal_vt_sent sent[64];
    struct crystal_vt_rank ranks[NRANKS];
    struct crystal_vt_path path;
    struct crystal_vt vt;
    uint64_t nic_free = 0, worst = 0, early = 0;

    for (uint64_t i = 0; i < told->sends; i++) {
        struct crystal_ring_message m;
        uint64_t start = told->send_post_ns[i];

        crystal_ring_message(op, crank, 1, i, &m);
        start = start > nic_free ? start : nic_free;
        sent[i] = (struct crystal_vt_sent){start, 4 * (uint64_t)m.elts};
        nic_free = start + crystal_wire_occupy_ns(&wire, sent[i].bytes);
    }
    crystal_vt_path(op, crank, NRANKS - 1, &path);
    crystal_vt_init(&vt, &path, &wire, ranks);
    for (uint64_t g = 0; g < told->receives; g++) {
        struct crystal_ring_message m;
        uint64_t need, edge, free_ns, at;

        crystal_ring_message(op, crank, 0, g, &m);
        crystal_vt_needs(&path, g, &need, &edge);
        at = crystal_vt_next(&vt, 4 * (uint64_t)m.elts, arrive_at, &crank,
                             need == CRYSTAL_VT_NONE ? NULL : &sent[need],
                             edge == CRYSTAL_VT_NONE ? NULL : &sent[edge], &free_ns);
        if (told->receive_done_ns[g] < at)
            early++;
        else if (told->receive_done_ns[g] - at > worst)
            worst = told->receive_done_ns[g] - at;
    }
    printf("# receives at most %" PRIu64 " us after the closed form\n", worst / 1000);
    CHECK_EQ(early, 0);
    CHECK(worst < SLACK_NS);
}

static void record_check(uint64_t bytes, uint64_t arrive_ns, uint64_t waited_ns)
{
    static const struct crystal_blockfile_kind kind = CRYSTAL_RUN_KIND;
    struct crystal_run_record *records = NULL;
    struct crystal_filehead head;
    struct crystal_error err = {0};
    char path[128];
    uint64_t count = 0;

    (void)snprintf(path, sizeof path, "%s/%d.run", directory, FIRST_RANK + 2);
    CHECK_EQ(crystal_block_read(path, &kind, &head, (void **)&records, &count, &err),
             0);
    CHECK_EQ(head.lrank, FIRST_RANK + 2);
    CHECK_EQ(count, 1);
    if (count == 1) {
        CHECK_EQ(records->comm_id, COMM);
        CHECK_EQ(records->order, 0);
        CHECK_EQ(records->bytes, bytes);
        CHECK_EQ(records->nranks, NRANKS);
        CHECK_EQ(records->crank, 2);
        CHECK_EQ(records->func, CRYSTAL_FUNC_ALLREDUCE);
        CHECK_EQ(records->dtype, ncclFloat32);
        CHECK_EQ(records->flags, CRYSTAL_RUN_VIRTUAL | CRYSTAL_RUN_STANDIN);
        CHECK_EQ(records->arrive_ns, arrive_ns);
        CHECK(records->api_ns <= records->arrive_ns);
        CHECK(records->end_ns >= records->arrive_ns + waited_ns);
        CHECK(records->waited_us >= waited_ns / 1000);
        CHECK(records->waited_us < waited_ns / 1000 + 10000);
    }
    free(records);
    (void)unlink(path);
}

static void waits_for_virtual_ranks(void)
{
    struct crystal_board *board = board_make(NRANKS, "vvrvv");
    struct crystal_ring_op op = {CRYSTAL_FUNC_ALLREDUCE, NRANKS, 0, COUNT, 4, 1, 0,
                                 CRYSTAL_PROTO_SIMPLE,   NULL};
    struct crystal_board_slot *slot;
    struct crystal_board_cell *cells;
    uint64_t arrive_ns;
    pid_t pid;

    (void)setenv("CRYSTAL_RUN_DIR", directory, 1);
    pid = child_start(2, late_all_reduce);
    slot = slot_wait(board, 0, 2);
    cells = cells_of(board, 0);
    CHECK_EQ(slot->described, 1);
    CHECK_EQ(slot->func, CRYSTAL_FUNC_ALLREDUCE);
    CHECK_EQ(slot->dtype, ncclFloat32);
    CHECK_EQ(slot->count, COUNT);
    arrive_ns = atomic_load(&cells[2].arrive_ns);
    for (int r = 0; r < NRANKS; r++) {
        arrivals[r] = arrive_ns + 20000000 + (uint64_t)(r * r) * 1500000;
        if (r != 2)
            atomic_store(&cells[r].arrive_ns, arrivals[r]);
    }
    atomic_store(&slot->published, 1);
    child_end(pid);
    CHECK_EQ(told->receives, 16);
    receives_check(2, &op);
    CHECK_EQ(atomic_load(&slot->ended_count), 1);
    CHECK(atomic_load(&cells[2].end_ns) >= told->receive_done_ns[15]);
    CHECK_EQ(crystal_board_header(board)->late_count, 0);
    CHECK_EQ(crystal_board_header(board)->standin_ops, 1);
    /* the last to come, at +44 ms, is the third before this one */
    record_check(4 * (uint64_t)COUNT, arrive_ns, 42000000);
    (void)unsetenv("CRYSTAL_RUN_DIR");
    crystal_board_destroy(board);
}

/* Arrivals that are published after they were due are counted. */
static void counts_late_arrivals(void)
{
    struct crystal_board *board = board_make(NRANKS, "vvrvv");
    const struct timespec pause = {0, 30000000};
    struct crystal_board_slot *slot;
    pid_t pid = child_start(2, late_all_reduce);

    slot = slot_wait(board, 0, 2);
    (void)nanosleep(&pause, NULL);
    for (int r = 0; r < NRANKS; r++)
        if (r != 2)
            atomic_store(&cells_of(board, 0)[r].arrive_ns, 1);
    atomic_store(&slot->published, 1);
    child_end(pid);
    CHECK_EQ(crystal_board_header(board)->late_count, 1);
    CHECK(crystal_board_header(board)->late_max_ns > 20000000);
    CHECK(crystal_board_header(board)->late_max_ns < 30000000 + SLACK_NS);
    crystal_board_destroy(board);
}

/* --- more operations than slots; the agent frees them --- */

#define MANY 150

static void many_broadcasts(struct ring *ring)
{
    /* the root only sends: nothing but the slots can hold it back */
    for (int i = 0; i < MANY && check_ok; i++)
        CHECK(collective(ring, CRYSTAL_FUNC_BROADCAST, 10, 2));
}

static void reuses_slots(void)
{
    struct crystal_board *board = board_make(NRANKS, "vvrvv");
    const struct timespec pause = {0, 100000};
    pid_t pid = child_start(2, many_broadcasts);

    for (uint64_t seq = 0; seq < MANY; seq++) {
        struct crystal_board_slot *slot = slot_wait(board, seq, 2);

        while (atomic_load(&slot->ended_count) != 1)
            (void)nanosleep(&pause, NULL);
        memset(cells_of(board, seq), 0, sizeof(struct crystal_board_cell) * NRANKS);
        slot->described = slot->published = slot->ended_count = 0;
        atomic_store(&slot->seq_plus1, 0);
    }
    child_end(pid);
    CHECK_EQ(crystal_board_header(board)->abort_flag, 0);
    crystal_board_destroy(board);
}

/* --- point-to-point --- */

static bool transfer(struct ring *ring, int is_send, uint64_t bytes, int peer)
{
    void *end = is_send ? ring->to_next : ring->from_prev;
    int messages =
        (int)((bytes + CRYSTAL_P2P_CHUNK_BYTES - 1) / CRYSTAL_P2P_CHUNK_BYTES);
    unsigned char *data = malloc(bytes);
    void *op = p2p_start(&ring->rank, is_send ? "Send" : "Recv", "ncclFloat32",
                         bytes / 4, peer);
    void *proxy = proxy_start(&ring->rank, op, 0, peer, messages, is_send);
    void *requests[8];
    bool good = op && proxy;

    memset(data, 1, bytes);
    told->posted_ns = crystal_now_ns();
    for (int i = 0; i < messages; i++) {
        size_t offset = (size_t)i * CRYSTAL_P2P_CHUNK_BYTES;
        size_t part = bytes - offset < CRYSTAL_P2P_CHUNK_BYTES
                          ? bytes - offset
                          : CRYSTAL_P2P_CHUNK_BYTES;
        struct step_handle h = step_start(&ring->rank, proxy, i);

        requests[i] = is_send ? post_send(end, data + offset, part, &h)
                              : post_recv(end, data + offset, part, &h);
        good = good && requests[i];
    }
    for (int i = 0; good && i < messages; i++)
        good = finish(requests[i], NULL) == ncclSuccess;
    told->done_ns = crystal_now_ns();
    for (uint64_t i = 0; good && !is_send && i < bytes; i++)
        good = data[i] == 0;
    (void)PROF->stopEvent(proxy);
    (void)PROF->stopEvent(op);
    free(data);
    return good;
}

#define TRANSFER_BYTES 1200000 /* three messages, 1.2 ms on the wire */

static void receive_from_virtual(struct ring *ring)
{
    CHECK(transfer(ring, 0, TRANSFER_BYTES, 1));
}

static void send_to_virtual(struct ring *ring)
{
    CHECK(transfer(ring, 1, TRANSFER_BYTES, 3));
}

static void transfer_check(int is_send)
{
    struct crystal_board *board = board_make(NRANKS, "vvrvv");
    struct crystal_board_comm *comm = crystal_board_comm_find(board, COMM);
    struct crystal_board_pair *pair = crystal_board_pairs(board, comm);
    const struct timespec pause = {0, 100000};
    pid_t pid = child_start(2, is_send ? send_to_virtual : receive_from_virtual);
    struct crystal_board_pair_cell *cell = &pair->cells[0];
    uint64_t came_ns;

    while (!atomic_load(&pair->state) || atomic_load(&cell->seq_plus1) != 1 ||
           !atomic_load(&cell->real_arrive_ns))
        (void)nanosleep(&pause, NULL);
    CHECK_EQ(comm->pair_count, 1);
    CHECK_EQ(pair->real_crank, 2);
    CHECK_EQ(pair->virtual_crank, is_send ? 3 : 1);
    CHECK_EQ(pair->real_sends, is_send);
    CHECK_EQ(cell->bytes, TRANSFER_BYTES);
    came_ns = atomic_load(&cell->real_arrive_ns) + 25000000;
    atomic_store(&cell->virtual_arrive_ns, came_ns);
    child_end(pid);
    CHECK(atomic_load(&cell->real_arrive_ns) >= told->posted_ns - 5000000);
    CHECK(atomic_load(&cell->end_ns) >= told->done_ns);
    if (is_send) {
        /* the last message is taken when the receiver has come, plus its own time */
        uint64_t last = TRANSFER_BYTES - 2 * CRYSTAL_P2P_CHUNK_BYTES;

        CHECK(told->done_ns >= came_ns + last);
        CHECK(told->done_ns < came_ns + 1200000 + SLACK_NS);
    } else {
        /* three messages one after the other, then latency and overhead */
        CHECK(told->done_ns >= came_ns + 1200000 + 210000);
        CHECK(told->done_ns < came_ns + 1410000 + SLACK_NS);
        CHECK_EQ(crystal_board_header(board)->standin_bytes, TRANSFER_BYTES);
    }
    crystal_board_destroy(board);
}

static void receives_when_the_sender_has_come(void)
{
    transfer_check(0);
}

static void sends_when_the_receiver_has_come(void)
{
    transfer_check(1);
}

/* --- stopping --- */

static void stopped_all_reduce(struct ring *ring)
{
    void *request = NULL;
    unsigned char byte = 0;

    CHECK(!collective(ring, CRYSTAL_FUNC_ALLREDUCE, COUNT, 0));
    /* and so does every further call */
    CHECK(NET->isend(ring->to_next, &byte, 1, 0, NULL, NULL, &request) != ncclSuccess);
}

static void stops_with_the_board(void)
{
    struct crystal_board *board = board_make(NRANKS, "vvrvv");
    pid_t pid = child_start(2, stopped_all_reduce);

    (void)slot_wait(board, 0, 2);
    crystal_board_abort(board, "test: the agent says stop");
    child_end(pid);
    CHECK_STR(crystal_board_header(board)->abort_text, "test: the agent says stop");
    crystal_board_destroy(board);
}

static void unexpected_all_reduce(struct ring *ring)
{
    CHECK(!collective(ring, CRYSTAL_FUNC_ALLREDUCE, COUNT, 0));
}

static void refuses_another_operation(void)
{
    struct crystal_board *board = board_make(NRANKS, "vvrvr");
    struct crystal_board_comm *comm = crystal_board_comm_find(board, COMM);
    struct crystal_board_slot *slot = crystal_board_slot(board, comm, 0);
    pid_t pid;

    /* rank 4 was first and reduces ten elements more */
    slot->func = CRYSTAL_FUNC_ALLREDUCE;
    slot->dtype = ncclFloat32;
    slot->count = COUNT + 10;
    slot->described = 1;
    atomic_store(&slot->seq_plus1, 1);
    pid = child_start(2, unexpected_all_reduce);
    child_end(pid);
    CHECK_STR(crystal_board_header(board)->abort_text,
              "communicator 'world', operation 0: rank 2 calls all-reduce of 500000 "
              "elements (type 7, root 0), another sandbox rank all-reduce of 500010 "
              "(type 7, root 0)");
    crystal_board_destroy(board);
}

/* Integers of virtual ranks without a recording are nothing to guess in timed mode. */
static void integer_all_reduce(struct ring *ring)
{
    unsigned char in[40] = {0}, out[40];
    struct ring_run run = {.ring = ring,
                           .op = {CRYSTAL_FUNC_ALLREDUCE, NRANKS, 0, 10, 4, 1, 0,
                                  CRYSTAL_PROTO_SIMPLE, NULL},
                           .in = in,
                           .out = out};

    CHECK(!ring_collective(&run));
}

static void stops_without_recorded_integers(void)
{
    struct crystal_board *board = board_make(NRANKS, "vvrvv");
    struct crystal_board_slot *slot;
    pid_t pid = child_start(2, integer_all_reduce);

    slot = slot_wait(board, 0, 2);
    for (int r = 0; r < NRANKS; r++)
        if (r != 2)
            atomic_store(&cells_of(board, 0)[r].arrive_ns, 1);
    atomic_store(&slot->published, 1);
    child_end(pid);
    CHECK_STR(crystal_board_header(board)->abort_text,
              "rank 22: communicator 'world', operation 0 (allreduce): integers of its "
              "virtual rank 1 were not recorded; capture more iterations than 0 "
              "(--crystal-iterations)");
    crystal_board_destroy(board);
}

int main(void)
{
    char path[80];

    (void)snprintf(directory, sizeof directory, "/tmp/crystal-timed.XXXXXX");
    if (!mkdtemp(directory))
        return 1;
    told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                -1, 0);
    if (told == MAP_FAILED)
        return 1;
    (void)snprintf(path, sizeof path, "%s/board", directory);
    (void)setenv("CRYSTAL_BOARD", path, 1);
    check_begin();
    CHECK_RUN(waits_for_virtual_ranks);
    CHECK_RUN(counts_late_arrivals);
    CHECK_RUN(reuses_slots);
    CHECK_RUN(receives_when_the_sender_has_come);
    CHECK_RUN(sends_when_the_receiver_has_come);
    CHECK_RUN(stops_with_the_board);
    CHECK_RUN(refuses_another_operation);
    CHECK_RUN(stops_without_recorded_integers);
    (void)snprintf(path, sizeof path, "%s/feed.%d", directory, FIRST_RANK + 2);
    (void)unlink(path);
    CHECK(rmdir(directory) == 0);
    return check_end();
}
