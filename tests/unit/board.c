/* The board: two mappings see each other, a corrupt one is refused with its reason, and
 * NCCL's hash has NCCL's values. */
#include "config.h"

#include "replay/board.h"

#include "tests/check.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

static char directory[64];
static char path[80];

static struct crystal_board *make(uint32_t comms, uint64_t heap)
{
    struct crystal_error err = {0};
    struct crystal_board_config config = {.directory = directory,
                                          .job_hash = 7,
                                          .lrank_count = 64,
                                          .mode = CRYSTAL_BOARD_TIMED,
                                          .wire_bytes_per_s = 1000000000,
                                          .wire_latency_ns = 5000,
                                          .message_overhead_ns = 300,
                                          .comm_capacity = comms,
                                          .heap_bytes = heap,
                                          .graph_path = "/job/job.graph"};
    struct crystal_board *board = crystal_board_create(&config, &err);

    if (!board)
        printf("# create: %s\n", crystal_error_text(&err));
    return board;
}

static const uint32_t members[4] = {0, 8, 16, 24};
static const uint8_t is_real[4] = {1, 0, 0, 1};

static void two_mappings(void)
{
    struct crystal_error err = {0};
    struct crystal_board *agent = make(4, 0), *plugin;
    struct crystal_board_comm *mine, *theirs;
    struct crystal_board_slot *slot;

    CHECK(agent != NULL);
    if (!agent)
        return;
    plugin = crystal_board_open(path, &err);
    CHECK(plugin != NULL);
    if (!plugin)
        return;
    CHECK_STR(crystal_board_directory(plugin), directory);
    CHECK_EQ(crystal_board_header(plugin)->wire_latency_ns, 5000);
    CHECK_STR(crystal_board_header(plugin)->graph_path, "/job/job.graph");
    CHECK(crystal_board_comm_find(plugin, 42) == NULL);
    CHECK_EQ(crystal_board_comm_add(agent, 42, "/default_pg/0//cpu//0", 3, 4, members,
                                    is_real, &err),
             0);
    CHECK_EQ(crystal_board_comm_add(agent, 42, "again", 3, 4, members, is_real, &err),
             -EEXIST);
    mine = crystal_board_comm_find(plugin, 42);
    CHECK(mine != NULL);
    if (!mine)
        return;
    CHECK_EQ(mine->nranks, 4);
    CHECK_EQ(mine->real_count, 2);
    CHECK_EQ(mine->graph_comm, 3);
    CHECK_EQ(mine->pair_capacity, 12);
    CHECK_STR(mine->name, "/default_pg/0//cpu//0");
    CHECK_EQ(crystal_board_members(plugin, mine)[3], 24);
    CHECK_EQ(crystal_board_is_real(plugin, mine)[3], 1);
    CHECK_EQ(crystal_board_is_real(plugin, mine)[2], 0);
    slot = crystal_board_slot(plugin, mine, 65);
    atomic_store(&crystal_board_cells(plugin, mine, slot)[3].arrive_ns, 99);
    theirs = crystal_board_comm_find(agent, 42);
    CHECK_EQ(atomic_load(&crystal_board_cells(agent, theirs,
                                              crystal_board_slot(agent, theirs, 1))[3]
                              .arrive_ns),
             99);
    CHECK_EQ(crystal_board_cells(agent, theirs, crystal_board_slot(agent, theirs, 2))[0]
                 .arrive_ns,
             0);
    crystal_board_pairs(plugin, mine)[7].cells[63].bytes = 5;
    CHECK_EQ(crystal_board_pairs(agent, theirs)[7].cells[63].bytes, 5);
    crystal_board_abort(plugin, "first %d", 1);
    crystal_board_abort(agent, "second");
    CHECK_EQ(crystal_board_header(agent)->abort_flag, 1);
    CHECK_STR(crystal_board_header(agent)->abort_text, "first 1");
    crystal_board_destroy(plugin);
    CHECK_EQ(access(path, F_OK), 0);
    crystal_board_destroy(agent);
    CHECK(access(path, F_OK) != 0);
}

static void full_and_wrong(void)
{
    struct crystal_error err = {0};
    struct crystal_board *agent = make(1, 1 << 20);
    static const uint32_t beyond[2] = {0, 64};
    char name[200];

    CHECK(agent != NULL);
    if (!agent)
        return;
    CHECK_EQ(crystal_board_comm_add(agent, 1, "a", 0, 2, beyond, is_real, &err),
             -ERANGE);
    CHECK_STR(crystal_error_text(&err), "communicator 'a': member 1 is rank 64 of 64");
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    CHECK_EQ(crystal_board_comm_add(agent, 1, name, 0, 4, members, is_real, &err),
             -ENAMETOOLONG);
    CHECK_EQ(crystal_board_comm_add(agent, 1, "a", 0, 0, members, is_real, &err),
             -EINVAL);
    CHECK_EQ(crystal_board_comm_add(agent, 1, "a", 0, 4, members, is_real, &err), 0);
    CHECK_EQ(crystal_board_comm_add(agent, 2, "b", 0, 4, members, is_real, &err),
             -ENOSPC);
    CHECK_STR(crystal_error_text(&err),
              "communicator 'b': the board has room for 1 only");
    crystal_board_destroy(agent);
    agent = make(8, 4096);
    CHECK_EQ(crystal_board_comm_add(agent, 2, "b", 0, 4, members, is_real, &err),
             -ENOSPC);
    CHECK_HAS(crystal_error_text(&err), "the board is full");
    crystal_board_destroy(agent);
}

/* One word of a good board overwritten, and the sentence that refuses it. */
static void corrupt_headers(void)
{
    static const struct {
        const char *name;
        size_t offset;
        uint64_t value;
        size_t bytes;
        const char *text;
    } cases[] = {
        {"magic", 0, 1, 1, "not a board"},
        {"version", offsetof(struct crystal_board_header, version), 9, 4, "version 9"},
        {"order", offsetof(struct crystal_board_header, byte_order), 0x04030201, 4,
         "version"},
        {"bytes", offsetof(struct crystal_board_header, board_bytes), 1, 8,
         "its header says 1"},
        {"capacity 0", offsetof(struct crystal_board_header, comm_capacity), 0, 4,
         "lies outside"},
        {"capacity", offsetof(struct crystal_board_header, comm_capacity), 0xffffffff,
         4, "lies outside"},
        {"capacity near", offsetof(struct crystal_board_header, comm_capacity), 65536,
         4, "lies outside"},
        {"comms", offsetof(struct crystal_board_header, comms_offset),
         UINT64_C(0xffffffffffffffc0), 8, "lies outside"},
        {"comms unaligned", offsetof(struct crystal_board_header, comms_offset), 4097,
         8, "lies outside"},
        {"heap", offsetof(struct crystal_board_header, heap_offset), 1, 8, "heap"},
        {"heap far", offsetof(struct crystal_board_header, heap_offset),
         UINT64_C(1) << 60, 8, "heap"},
        {"lranks", offsetof(struct crystal_board_header, lrank_count), 0, 4,
         "0 logical ranks"},
        {"mode", offsetof(struct crystal_board_header, mode), 3, 4, "unknown mode 3"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct crystal_error err = {0};
        struct crystal_board *agent = make(4, 1 << 16), *plugin;

        memcpy((char *)crystal_board_header(agent) + cases[i].offset, &cases[i].value,
               cases[i].bytes);
        plugin = crystal_board_open(path, &err);
        if (plugin)
            printf("# %s was accepted\n", cases[i].name);
        CHECK(plugin == NULL);
        CHECK_HAS(crystal_error_text(&err), cases[i].text);
        crystal_board_destroy(plugin);
        crystal_board_destroy(agent);
    }
}

/* An entry whose offsets lead outside is not found. */
static void corrupt_entries(void)
{
    static const size_t offsets[] = {
        offsetof(struct crystal_board_comm, members_offset),
        offsetof(struct crystal_board_comm, real_offset),
        offsetof(struct crystal_board_comm, slots_offset),
        offsetof(struct crystal_board_comm, pairs_offset)};

    for (size_t i = 0; i <= sizeof offsets / sizeof offsets[0]; i++)
        for (int kind = 0; kind < 3; kind++) {
            struct crystal_error err = {0};
            struct crystal_board *agent = make(4, 1 << 20), *plugin;
            struct crystal_board_comm *comm;
            uint64_t bytes = crystal_board_header(agent)->board_bytes;
            uint64_t values[3] = {0, bytes - 8, UINT64_MAX - 7};

            CHECK_EQ(
                crystal_board_comm_add(agent, 5, "a", 0, 4, members, is_real, &err), 0);
            plugin = crystal_board_open(path, &err);
            CHECK(plugin != NULL);
            comm = crystal_board_comm_find(agent, 5);
            CHECK(comm != NULL && crystal_board_comm_find(plugin, 5) != NULL);
            if (i < sizeof offsets / sizeof offsets[0])
                memcpy((char *)comm + offsets[i], &values[kind], 8);
            else
                crystal_board_slot(agent, comm, 63)->cells_offset = values[kind];
            /* four bytes of real flags fit into the last eight */
            if (!(i == 1 && kind == 1))
                CHECK(crystal_board_comm_find(plugin, 5) == NULL);
            crystal_board_destroy(plugin);
            crystal_board_destroy(agent);
        }
}

static void files(void)
{
    struct crystal_error err = {0};
    struct crystal_board *agent;
    int fd;

    CHECK(crystal_board_open(path, &err) == NULL);
    CHECK_HAS(crystal_error_text(&err), "is the node's agent running?");
    fd = open(path, O_CREAT | O_WRONLY, 0600);
    CHECK_EQ(write(fd, "short", 5), 5);
    (void)close(fd);
    CHECK(crystal_board_open(path, &err) == NULL);
    CHECK_HAS(crystal_error_text(&err), "only 5 bytes");
    agent = make(1, 4096);
    CHECK(agent != NULL);
    (void)chmod(path, 0640);
    CHECK(crystal_board_open(path, &err) == NULL);
    CHECK_HAS(crystal_error_text(&err), "mode 640");
    (void)chmod(path, 0600);
    CHECK_EQ(truncate(path, (off_t)sizeof(struct crystal_board_header)), 0);
    CHECK(crystal_board_open(path, &err) == NULL);
    CHECK_HAS(crystal_error_text(&err), "its header says");
    crystal_board_destroy(agent);
}

/* Values of getHash in NCCL 2.28.9's src/include/bitops.h, compiled and run alone. */
static void hash(void)
{
    unsigned char id[128];

    for (int i = 0; i < 128; i++)
        id[i] = (unsigned char)(i * 7 + 1);
    CHECK(crystal_nccl_hash(id, 128) == UINT64_C(0x90e3297ca6f903d2));
    CHECK(crystal_nccl_hash(id, 5) == UINT64_C(0x468618d2527d51a1));
    CHECK(crystal_nccl_hash(id, 0) == UINT64_C(0x75b6431c590e86a2));
}

int main(void)
{
    (void)snprintf(directory, sizeof directory, "/tmp/crystal-board.XXXXXX");
    if (!mkdtemp(directory))
        return 1;
    (void)snprintf(path, sizeof path, "%s/board", directory);
    check_begin();
    CHECK_RUN(two_mappings);
    CHECK_RUN(full_and_wrong);
    CHECK_RUN(corrupt_headers);
    CHECK_RUN(corrupt_entries);
    CHECK_RUN(files);
    CHECK_RUN(hash);
    (void)rmdir(directory);
    return check_end();
}
