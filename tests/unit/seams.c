/* The frozen seams that have no reader to test them: where each field lies, and golden
 * bytes in tests/data/<seam>-v1. CRYSTAL_TEST_UPDATE=1 writes the files anew, which
 * only a new version of a seam may need.
 */
#include "config.h"

#include "replay/board.h"
#include "replay/net_handle.h"
#include "replay/roll.h"
#include "replay/run_record.h"
#include "runtime/message.h"
#include "runtime/payload.h"
#include "tests/check.h"
#include "tests/folders.h"

#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>

static void golden(const char *name, const void *bytes, size_t count)
{
    const char *source = source_folder();
    unsigned char want[4096];
    char path[512];
    size_t got;
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/tests/data/%s", source, name);
    if (getenv("CRYSTAL_TEST_UPDATE")) {
        f = fopen(path, "wb");
        CHECK(f && fwrite(bytes, 1, count, f) == count);
        if (f)
            CHECK_EQ(fclose(f), 0);
    }
    f = fopen(path, "rb");
    CHECK(f);
    if (!f)
        return;
    got = fread(want, 1, sizeof want, f);
    (void)fclose(f); /* only read */
    CHECK_EQ(count, got);
    if (count != got)
        return;
    for (size_t i = 0; i < count; i++)
        if (want[i] != ((const unsigned char *)bytes)[i]) {
            printf("# %s: byte %zu differs\n", name, i);
            check_ok = false;
            return;
        }
}

static void net_handle(void)
{
    struct crystal_net_handle h = {.id = 0x0102030405060708,
                                   .kind = CRYSTAL_NET_VIRTUAL,
                                   .crank = 77,
                                   .comm_id = 0x1112131415161718};

    memcpy(h.magic, CRYSTAL_NET_HANDLE_MAGIC, 8);
    for (int i = 0; i < 28; i++)
        h.addr[i] = (unsigned char)(0x40 + i);
    golden("net-handle-v1", &h, sizeof h);
}

static void net_hello(void)
{
    struct crystal_net_hello h = {.id = 0x0102030405060708,
                                  .kind = CRYSTAL_NET_REAL,
                                  .crank = CRYSTAL_CRANK_UNKNOWN,
                                  .comm_id = 0x1112131415161718};

    memcpy(h.magic, CRYSTAL_NET_HELLO_MAGIC, 8);
    golden("net-hello-v1", &h, sizeof h);
}

/* What crystal_message_send puts on a connection, one message of each fixed body. */
static void messages(void)
{
    struct crystal_msg_hello hello = {
        .role = CRYSTAL_ROLE_RANK, .lrank = 3, .pid = 0x01020304};
    struct crystal_msg_welcome welcome = {
        .lrank_count = 8192, .live_count = 16, .iterations = 4};
    struct crystal_msg_begin begin = {.stage = 2};
    struct crystal_msg_stop stop = {.lost = 78};
    struct crystal_msg_comm_init init = {.nranks = 8, .crank = 5};
    struct crystal_msg_comm_ready ready = {.comm = 6, .name_bytes = 4};
    struct crystal_msg_op op = {.comm = 6,
                                .func = CRYSTAL_FUNC_ALLREDUCE,
                                .dtype = 7,
                                .redop = 4,
                                .peer = 9,
                                .count = 0x100000000,
                                .send_bytes = 3,
                                .recv_bytes = 5,
                                .scalar = 0x3ff0000000000000,
                                .call_site = 0x123456789abc};
    struct crystal_msg_comm_id id = {.name_bytes = 4, .member_count = 2};
    const struct {
        unsigned type;
        const void *body;
        size_t bytes;
    } rows[] = {
        {CRYSTAL_MSG_HELLO, &hello, sizeof hello},
        {CRYSTAL_MSG_WELCOME, &welcome, sizeof welcome},
        {CRYSTAL_MSG_BEGIN, &begin, sizeof begin},
        {CRYSTAL_MSG_COMM_INIT, &init, sizeof init},
        {CRYSTAL_MSG_COMM_READY, &ready, sizeof ready},
        {CRYSTAL_MSG_OPS, &op, sizeof op},
        {CRYSTAL_MSG_COMM_ID, &id, sizeof id},
        {CRYSTAL_MSG_STOP, &stop, sizeof stop},
    };
    unsigned char got[2048];
    size_t count = 0;
    ssize_t part;
    int fds[2];

    for (int i = 0; i < CRYSTAL_TOKEN_BYTES; i++)
        hello.token[i] = (uint8_t)(0xa0 + i);
    for (int i = 0; i < NCCL_UNIQUE_ID_BYTES; i++)
        init.id[i] = id.id[i] = (uint8_t)i;
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct iovec body = {(void *)(uintptr_t)rows[i].body, rows[i].bytes};

        CHECK_EQ(crystal_message_send(fds[0], rows[i].type, (uint32_t)(100 + i), &body,
                                      1, NULL),
                 0);
    }
    (void)close(fds[0]);
    while ((part = read(fds[1], got + count, sizeof got - count)) > 0)
        count += (size_t)part;
    (void)close(fds[1]);
    golden("message-bytes-v2", got, count);
}

/* What the nodes of a stage say to meet. */
static void meeting(void)
{
    const struct crystal_msg_meet meet = {.node = 1, .node_count = 3, .value = 0x0102};

    golden("message-meet", &meet, sizeof meet);
    CHECK_EQ(CRYSTAL_MSG_MEET, 23);
    CHECK_EQ(CRYSTAL_MSG_MET, 24);
}

/* A peer of version 1 is not misunderstood. */
static void old_messages(void)
{
    const char *source = source_folder();
    struct crystal_message_head head = {0};
    struct crystal_error err = {0};
    char path[512];
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/tests/data/message-bytes-v1", source);
    f = fopen(path, "rb");
    CHECK(f);
    if (!f)
        return;
    CHECK_EQ(fread(&head, sizeof head, 1, f), 1);
    (void)fclose(f); /* only read */
    CHECK_EQ(head.type, CRYSTAL_MSG_HELLO);
    CHECK_EQ(crystal_message_head_check(&head, &err), -EBADMSG);
}

static void run_record(void)
{
    struct crystal_run_record r = {.comm_id = 0x0102030405060708,
                                   .order = 9,
                                   .api_ns = 1000000001,
                                   .arrive_ns = 1000000002,
                                   .end_ns = 1000000003,
                                   .bytes = 4096,
                                   .nranks = 8192,
                                   .crank = 7,
                                   .func = CRYSTAL_FUNC_ALLGATHER,
                                   .dtype = 9,
                                   .flags = CRYSTAL_RUN_VIRTUAL | CRYSTAL_RUN_STANDIN,
                                   .waited_us = 12};

    golden("run-record-v1", &r, sizeof r); /* version 2 has one field more */
    r.way = CRYSTAL_OP_WAY(CRYSTAL_OP_ALGO_TREE, CRYSTAL_OP_PROTO_LL);
    golden("run-record-v2", &r, sizeof r);
}

static void roll_record(void)
{
    struct crystal_roll_record r = {.magic = CRYSTAL_ROLL_MAGIC,
                                    .kind = CRYSTAL_ROLL_PARTED,
                                    .lrank = 77,
                                    .pid = 12345,
                                    .comm_id = 0x0102030405060708,
                                    .crank = 7,
                                    .time_ns = 1000000001};

    golden("roll-v1", &r, sizeof r);
}

struct place {
    const char *name;
    size_t got, want;
};
#define PLACE(type, field, want)                             \
    {                                                        \
#type "." #field, offsetof(struct type, field), want \
    }
#define SIZE(type, want)                           \
    {                                              \
        "sizeof " #type, sizeof(struct type), want \
    }

static void check_places(const struct place *places, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (places[i].got != places[i].want) {
            printf("# %s is %zu, want %zu\n", places[i].name, places[i].got,
                   places[i].want);
            check_ok = false;
        }
}

static void board_places(void)
{
    static const struct place places[] = {
        SIZE(crystal_board_header, 776),
        PLACE(crystal_board_header, magic, 0),
        PLACE(crystal_board_header, version, 8),
        PLACE(crystal_board_header, byte_order, 12),
        PLACE(crystal_board_header, board_bytes, 16),
        PLACE(crystal_board_header, job_hash, 24),
        PLACE(crystal_board_header, lrank_count, 32),
        PLACE(crystal_board_header, mode, 36),
        PLACE(crystal_board_header, wire_bytes_per_s, 40),
        PLACE(crystal_board_header, wire_latency_ns, 48),
        PLACE(crystal_board_header, message_overhead_ns, 56),
        PLACE(crystal_board_header, comm_capacity, 64),
        PLACE(crystal_board_header, comm_count, 68),
        PLACE(crystal_board_header, comms_offset, 72),
        PLACE(crystal_board_header, heap_offset, 80),
        PLACE(crystal_board_header, heap_used, 88),
        PLACE(crystal_board_header, abort_flag, 96),
        PLACE(crystal_board_header, payload_all, 100),
        PLACE(crystal_board_header, abort_text, 104),
        PLACE(crystal_board_header, graph_path, 360),
        PLACE(crystal_board_header, standin_ops, 616),
        PLACE(crystal_board_header, standin_bytes, 624),
        PLACE(crystal_board_header, late_count, 632),
        PLACE(crystal_board_header, late_max_ns, 640),
        PLACE(crystal_board_header, abort_claim, 648),
        PLACE(crystal_board_header, bell, 656),
        PLACE(crystal_board_header, bell_waits, 660),
        PLACE(crystal_board_header, timeline, 664),
        PLACE(crystal_board_header, ranks_per_node, 668),
        PLACE(crystal_board_header, payload_late_count, 672),
        PLACE(crystal_board_header, clock_ns, 680),
        PLACE(crystal_board_header, node, 688),
        PLACE(crystal_board_header, reserved, 696),
        SIZE(crystal_board_comm, 216),
        PLACE(crystal_board_comm, state, 0),
        PLACE(crystal_board_comm, nranks, 4),
        PLACE(crystal_board_comm, comm_id, 8),
        PLACE(crystal_board_comm, graph_comm, 16),
        PLACE(crystal_board_comm, real_count, 20),
        PLACE(crystal_board_comm, members_offset, 24),
        PLACE(crystal_board_comm, real_offset, 32),
        PLACE(crystal_board_comm, slots_offset, 40),
        PLACE(crystal_board_comm, pairs_offset, 48),
        PLACE(crystal_board_comm, pair_capacity, 56),
        PLACE(crystal_board_comm, pair_count, 60),
        PLACE(crystal_board_comm, graph_channels, 64),
        PLACE(crystal_board_comm, rings, 68),
        PLACE(crystal_board_comm, rings_offset, 72),
        PLACE(crystal_board_comm, ring_count, 80),
        PLACE(crystal_board_comm, alone, 84),
        PLACE(crystal_board_comm, name, 88),
        SIZE(crystal_board_cell, 16),
        PLACE(crystal_board_cell, arrive_ns, 0),
        PLACE(crystal_board_cell, end_ns, 8),
        SIZE(crystal_board_slot, 48),
        PLACE(crystal_board_slot, seq_plus1, 0),
        PLACE(crystal_board_slot, published, 8),
        PLACE(crystal_board_slot, ended_count, 12),
        PLACE(crystal_board_slot, cells_offset, 16),
        PLACE(crystal_board_slot, described, 24),
        PLACE(crystal_board_slot, func, 28),
        PLACE(crystal_board_slot, dtype, 32),
        PLACE(crystal_board_slot, root, 36),
        PLACE(crystal_board_slot, count, 40),
        SIZE(crystal_board_pair_cell, 40),
        PLACE(crystal_board_pair_cell, seq_plus1, 0),
        PLACE(crystal_board_pair_cell, real_arrive_ns, 8),
        PLACE(crystal_board_pair_cell, virtual_arrive_ns, 16),
        PLACE(crystal_board_pair_cell, end_ns, 24),
        PLACE(crystal_board_pair_cell, bytes, 32),
        SIZE(crystal_board_pair, 2576),
        PLACE(crystal_board_pair, state, 0),
        PLACE(crystal_board_pair, real_crank, 4),
        PLACE(crystal_board_pair, virtual_crank, 8),
        PLACE(crystal_board_pair, real_sends, 12),
        PLACE(crystal_board_pair, cells, 16),
    };

    CHECK_EQ(CRYSTAL_BOARD_VERSION, 5);
    CHECK_EQ(CRYSTAL_BOARD_SLOTS, 64);
    check_places(places, sizeof places / sizeof places[0]);
}

/* The check itself notices a field that has moved. */
static void check_places_fails(void)
{
    const struct place wrong = PLACE(crystal_board_cell, end_ns, 16);

    check_places(&wrong, 1);
    CHECK(!check_ok);
    check_ok = !check_ok;
}

static char dir[] = "/tmp/crystal-seams.XXXXXX";

/* A file below dir, which is then gone, against its golden bytes. */
static void golden_file(const char *name, const char *path)
{
    unsigned char got[4096];
    FILE *f = fopen(path, "rb");
    size_t count;

    CHECK(f);
    if (!f)
        return;
    count = fread(got, 1, sizeof got, f);
    (void)fclose(f); /* only read */
    golden(name, got, count);
    (void)unlink(path);
}

static void payload(void)
{
    struct crystal_payload_writer *w;
    char path[64];

    (void)snprintf(path, sizeof path, "%s/payload", dir);
    w = crystal_payload_create(path, 3, 0xfeed, NULL);
    CHECK(w);
    if (!w)
        return;
    CHECK_EQ(crystal_payload_reserve(w, 5), 0);
    CHECK_EQ(crystal_payload_reserve(w, 3), 5);
    CHECK_EQ(crystal_payload_write(w, 5, "xyz", 3, NULL), 0);
    CHECK_EQ(crystal_payload_write(w, 0, "abcde", 5, NULL), 0);
    CHECK_EQ(crystal_payload_close(w, NULL), 0);
    CHECK_EQ(crystal_payload_seal(path, NULL), 0);
    golden_file("payload-v1", path);
}

int main(void)
{
    check_begin();
    if (!mkdtemp(dir)) {
        printf("Bail out! %s cannot be made\n", dir);
        return 1;
    }
    CHECK_RUN(net_handle);
    CHECK_RUN(net_hello);
    CHECK_RUN(messages);
    CHECK_RUN(meeting);
    CHECK_RUN(old_messages);
    CHECK_RUN(run_record);
    CHECK_RUN(roll_record);
    CHECK_RUN(board_places);
    CHECK_RUN(check_places_fails);
    CHECK_RUN(payload);
    (void)rmdir(dir); /* empty unless a check failed */
    return check_end();
}
