/* The node's service: its directory, the board's settings, ids, run.yaml, and what is
 * left afterwards: nothing. */
#include "config.h"

#include "replay/board.h"
#include "replay/node.h"
#include "runtime/yaml_map.h"

#include "tests/check.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

static uint32_t sandbox[2] = {0, 1};
static const uint32_t world[4] = {0, 1, 2, 3};
static struct crystal_layout layout = {.lrank_count = 4,
                                       .ranks_per_node = 2,
                                       .sandbox = sandbox,
                                       .sandbox_count = 2,
                                       .wire_bytes_per_s = 12500000000,
                                       .wire_latency_ns = 3000,
                                       .fingerprint = 99};

static struct crystal_node *make(void)
{
    struct crystal_node_config config = {.job_dir = ".", .layout = &layout};
    struct crystal_error err = {0};
    struct crystal_node *node = crystal_node_create(&config, &err);

    if (!node) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
    return node;
}

static void directory_and_board(void)
{
    struct crystal_node *node = make();
    char path[200], *slash;
    struct crystal_board *board;
    struct crystal_error err = {0};
    struct stat s;
    FILE *socket_file;

    snprintf(path, sizeof path, "%s", crystal_node_board_path(node));
    CHECK(strncmp(path, "/dev/shm/crystal-", 17) == 0);
    CHECK_EQ(stat(path, &s), 0);
    CHECK_EQ(s.st_mode & 07777, 0600);
    board = crystal_board_open(path, &err);
    CHECK_STR(err.text, "");
    if (board) {
        const struct crystal_board_header *head = crystal_board_header(board);

        CHECK_EQ(head->lrank_count, 4);
        CHECK_EQ(head->mode, CRYSTAL_BOARD_IMMEDIATE);
        CHECK_EQ(head->wire_bytes_per_s, 12500000000);
        CHECK_EQ(head->wire_latency_ns, 3000);
        CHECK_EQ(head->job_hash, 99);
        crystal_board_destroy(board);
    }
    slash = strrchr(path, '/');
    strcpy(slash, "/delay-line");
    socket_file = fopen(path, "w"); /* plugins put sockets there */
    CHECK(socket_file != NULL);
    if (socket_file)
        fclose(socket_file);
    *slash = '\0';
    CHECK_EQ(stat(path, &s), 0);
    CHECK_EQ(s.st_mode & 07777, 0700);
    crystal_node_destroy(node);
    CHECK_EQ(stat(path, &s), -1);
    crystal_node_destroy(NULL);
}

static void status_is_the_boards_abort(void)
{
    struct crystal_node *node = make();
    struct crystal_error err = {0};
    struct crystal_board *board =
        crystal_board_open(crystal_node_board_path(node), &err);

    CHECK_EQ(crystal_node_status(node, &err), 0);
    crystal_board_abort(board, "rank %d: no payload", 3);
    CHECK_EQ(crystal_node_status(node, &err), -ECANCELED);
    CHECK_STR(err.text, "rank 3: no payload");
    crystal_board_destroy(board);
    crystal_node_destroy(node);
}

static const char *value(const struct crystal_yaml_map *map, const char *key)
{
    const struct crystal_yaml_item *item = crystal_yaml_get(map, key);

    return item ? item->value : NULL;
}

static void run_yaml(void)
{
    struct crystal_node *node = make();
    struct crystal_yaml_map map = {0};
    struct crystal_error err = {0};
    uint8_t id[128], other[128] = {0};
    char path[] = "/tmp/crystal-run-XXXXXX", want[20];
    int fd = mkstemp(path);
    struct stat s;

    CHECK(fd >= 0);
    close(fd);
    CHECK_EQ(crystal_node_comm(node, 1, id, "/default_pg/0//cpu//0", 4, world, &err),
             0);
    CHECK_EQ(
        crystal_node_comm(node, 0, other, "/default_pg/1//cpu//0", 2, sandbox, &err),
        0); /* nobody virtual */
    CHECK_EQ(crystal_node_comm(node, 1, id, "/default_pg/2//cpu//0", 0, NULL, &err),
             -EINVAL);
    CHECK_HAS(err.text,
              "communicator '/default_pg/2//cpu//0': its members are not known");
    CHECK_EQ(crystal_node_run_yaml(node, path, &err), 0);
    CHECK_EQ(stat(path, &s), 0);
    CHECK_EQ(s.st_mode & 07777, 0600);
    CHECK_EQ(crystal_yaml_read(path, &map, &err), 0);
    CHECK_STR(value(&map, "mode"), "immediate");
    CHECK_STR(value(&map, "logical_ranks"), "4");
    CHECK_STR(value(&map, "sandbox_ranks"), "2");
    CHECK_STR(value(&map, "wire.kind"), "modelled");
    CHECK_STR(value(&map, "wire.transport"), "host memory, no network");
    CHECK_STR(value(&map, "wire.bytes_per_s"), "12500000000");
    CHECK_STR(value(&map, "wire.latency_ns"), "3000");
    CHECK_STR(value(&map, "counters.standin_ops"), "0");
    CHECK_STR(value(&map, "counters.real_only_communicators"), "1");
    CHECK_STR(value(&map, "communicators.count"), "1");
    CHECK_STR(value(&map, "communicators.0.name"), "/default_pg/0//cpu//0");
    snprintf(want, sizeof want, "%016llx",
             (unsigned long long)crystal_nccl_hash(id, sizeof id));
    CHECK_STR(value(&map, "communicators.0.id"), want);
    CHECK_STR(value(&map, "communicators.0.ranks"), "4");
    CHECK_STR(value(&map, "communicators.0.real"), "2");
    CHECK_STR(value(&map, "communicators.0.virtual"), "2");
    CHECK_STR(value(&map, "communicators.0.origin"), "forged");
    CHECK_STR(value(&map, "communicators.0.open"), "true");
    CHECK_STR(value(&map, "failure"), "");
    crystal_yaml_fini(&map);
    unlink(path);
    CHECK_EQ(crystal_node_run_yaml(node, "/nowhere/run.yaml", &err), -ENOENT);
    CHECK_HAS(err.text, "/nowhere/run.yaml");
    crystal_node_destroy(node);
}

/* A service that was killed leaves a directory without a lock; the next one removes it
 * when it is a minute old, and touches neither young nor locked nor foreign ones. */
static void abandoned_directories(void)
{
    static const char *const endings[] = {"old000", "young0", "locked"};
    struct timespec times[2] = {{.tv_sec = time(NULL) - 3600},
                                {.tv_sec = time(NULL) - 3600}};
    char paths[3][80], file[100];
    int lock = -1;

    for (int i = 0; i < 3; i++) {
        FILE *f;

        snprintf(paths[i], sizeof paths[i], "/dev/shm/crystal-%u-%s%d", geteuid(),
                 endings[i], getpid());
        CHECK_EQ(mkdir(paths[i], 0700), 0);
        snprintf(file, sizeof file, "%s/board", paths[i]);
        f = fopen(file, "w");
        CHECK(f != NULL);
        if (f)
            fclose(f);
        if (i != 1)
            CHECK_EQ(utimensat(AT_FDCWD, paths[i], times, 0), 0);
        if (i == 2) {
            lock = open(paths[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            CHECK_EQ(flock(lock, LOCK_EX), 0);
        }
    }
    crystal_node_destroy(make());
    CHECK_EQ(access(paths[0], F_OK), -1);
    for (int i = 1; i < 3; i++) {
        CHECK_EQ(access(paths[i], F_OK), 0);
        snprintf(file, sizeof file, "%s/board", paths[i]);
        unlink(file);
        rmdir(paths[i]);
    }
    close(lock);
}

/* A large group's ids, each under a key of its own, are those of one communicator. */
static void several_roots(void)
{
    enum { N = 300 };
    static uint32_t members[N], real = 5;
    struct crystal_layout large = {
        .lrank_count = N, .ranks_per_node = 1, .sandbox = &real, .sandbox_count = 1};
    struct crystal_node_config config = {.job_dir = ".", .layout = &large};
    struct crystal_error err = {0};
    struct crystal_node *node = crystal_node_create(&config, &err);
    struct crystal_board *board;
    struct crystal_board_comm *entry;
    uint8_t ids[3][128];
    char key[64];

    CHECK(node != NULL);
    if (!node)
        return;
    board = crystal_board_open(crystal_node_board_path(node), &err);
    for (uint32_t i = 0; i < N; i++)
        members[i] = i;
    for (int i = 2; i >= 0; i--) {
        CHECK(!board || crystal_board_comm_at(board, 0) == NULL); /* root 0 names it */
        snprintf(key, sizeof key, "/default_pg/0//cuda//UniqueNCCLID:%d", i);
        CHECK_EQ(crystal_node_comm(node, 1, ids[i], key, N, members, &err), 0);
    }
    CHECK(memcmp(ids[0], ids[1], 8) != 0 && memcmp(ids[1], ids[2], 8) != 0);
    entry = board ? crystal_board_comm_at(board, 0) : NULL;
    CHECK(entry != NULL && entry->nranks == N);
    if (entry)
        CHECK_STR(entry->name, "/default_pg/0//cuda//UniqueNCCLID:0");
    if (entry)
        CHECK_EQ(entry->comm_id, crystal_nccl_hash(ids[0], 128));
    CHECK(!board || crystal_board_comm_at(board, 1) == NULL);
    CHECK_EQ(crystal_node_comm(node, 1, ids[2], "/default_pg/0//cuda//UniqueNCCLID:3",
                               N, members, &err),
             -EINVAL);
    CHECK_HAS(err.text, "root 3 of 3");
    crystal_board_destroy(board);
    crystal_node_destroy(node);
}

int main(void)
{
    check_begin();
    CHECK_RUN(directory_and_board);
    CHECK_RUN(status_is_the_boards_abort);
    CHECK_RUN(run_yaml);
    CHECK_RUN(several_roots);
    CHECK_RUN(abandoned_directories);
    return check_end();
}
