/* A node and the coordinator together, with real sockets: a rank asks the store for a
 * communicator's id and sets it up with members that do not run; once with a virtual
 * root, whose id the node makes, once with a root that runs. */
#include "config.h"

#include "replay/board.h"
#include "replay/node.h"
#include "runtime/coord.h"

#include "tests/bootstrap.h"
#include "tests/check.h"
#include "tests/unit/store_client.h"

#include <pthread.h>

static char path[] = "/tmp/crystal-node-XXXXXX";
static uint32_t sandbox[2] = {2, 3};
static uint32_t live[2] = {2, 3};
static struct crystal_layout layout = {.lrank_count = 8,
                                       .ranks_per_node = 2,
                                       .sandbox = sandbox,
                                       .sandbox_count = 2,
                                       .live = live,
                                       .live_count = 2,
                                       .live_mode = CRYSTAL_LIVE_ALL,
                                       .iterations = 1};
static struct crystal_coord *coord;

static void *serve(void *context)
{
    (void)context;
    CHECK_EQ(crystal_coord_run(coord, NULL), 0);
    return NULL;
}

static void put(const char *key, const void *value, size_t bytes)
{
    int fd = store_connect(crystal_coord_store_port(coord));

    store_set(fd, key, value, bytes);
    free(store_get(fd, key, NULL)); /* it has arrived */
    (void)close(fd);
}

static void get_id(const char *key, uint8_t *id)
{
    int fd = store_connect(crystal_coord_store_port(coord));
    size_t bytes = 0;
    char *value = store_wait_get(fd, key, &bytes);

    CHECK_EQ(bytes, 128);
    if (value && bytes == 128)
        memcpy(id, value, 128);
    free(value);
    (void)close(fd);
}

/* Ring and the three all-gathers of one real rank. */
static void set_up(const uint8_t *id, int crank, int nranks)
{
    static const int sizes[3] = {120, 120, 2292};
    uint8_t *all = calloc((size_t)nranks, 2292);
    struct boot_rank r;
    int version = 22809;

    CHECK_EQ(boot_open(&r, id, crank, nranks), 0);
    CHECK_EQ(boot_ring(&r, 1), 0);
    for (int g = 0; g < 3; g++) {
        uint8_t *own = all + (size_t)crank * (size_t)sizes[g];

        memset(all, 0, (size_t)nranks * 2292);
        if (g == 0)
            memcpy(own, &r.peer_at, 28);
        if (g == 1) {
            memcpy(own, &crank, 4);
            memcpy(own + 112, &version, 4);
        }
        CHECK_EQ(boot_gather(&r, all, sizes[g]), 0);
        CHECK_STR(r.error, "");
    }
    boot_close(&r);
    free(all);
}

static void check_entry(struct crystal_board *board, const uint8_t *id,
                        const char *name, const uint32_t *members, uint32_t nranks)
{
    struct crystal_board_comm *entry =
        crystal_board_comm_find(board, crystal_nccl_hash(id, 128));

    CHECK(entry != NULL);
    if (!entry)
        return;
    CHECK_STR(entry->name, name);
    CHECK_EQ(entry->nranks, nranks);
    for (uint32_t i = 0; i < nranks && i < entry->nranks; i++)
        CHECK_EQ(crystal_board_members(board, entry)[i], members[i]);
}

static void ids_of_both_origins(struct crystal_node *node)
{
    static const uint32_t forged[4] = {0, 2, 4, 6}, joined[2] = {3, 7};
    struct crystal_error err = {0};
    struct crystal_board *board =
        crystal_board_open(crystal_node_board_path(node), &err);
    uint8_t id[128] = {0};
    struct boot_root root;
    pthread_t thread;

    CHECK(board != NULL);
    put("/crystal/group/1", "0,2,4,6", 7);
    get_id("/default_pg/1//cpu//0", id);
    check_entry(board, id, "/default_pg/1//cpu//0", forged, 4);
    set_up(id, 1, 4);

    put("/crystal/group/2", "3,7", 3);
    CHECK_EQ(boot_root_open(&root, id, 2), 0);
    CHECK_EQ(pthread_create(&thread, NULL, boot_root_run, &root), 0);
    put("/default_pg/2//cpu//0", id, 128);
    set_up(id, 0, 2);
    (void)pthread_join(thread, NULL);
    CHECK_EQ(root.checkin_count, 2);
    check_entry(board, id, "/default_pg/2//cpu//0", joined, 2);
    CHECK_EQ(crystal_node_status(node, &err), 0);
    CHECK_STR(err.text, "");
    crystal_board_destroy(board);
}

static void node_under_the_coordinator(void)
{
    struct crystal_error err = {0};
    struct crystal_coord_config config = {.layout = &layout};
    struct crystal_node_config node_config = {.layout = &layout};
    struct crystal_jobdir *dir;
    struct crystal_client *control;
    struct crystal_node *node;
    char coord_file[80], token_file[80], command[80];
    pthread_t thread;

    CHECK(mkdtemp(path) != NULL);
    snprintf(coord_file, sizeof coord_file, "%s/coord", path);
    snprintf(token_file, sizeof token_file, "%s/token", path);
    dir = crystal_jobdir_open(path, 0, &err);
    config.dir = dir;
    coord = crystal_coord_create(&config, &err);
    CHECK_STR(err.text, "");
    if (!coord)
        return;
    CHECK_EQ(pthread_create(&thread, NULL, serve, NULL), 0);
    node_config.job_dir = path;
    node_config.coord =
        crystal_client_open(coord_file, token_file, CRYSTAL_ROLE_AGENT, 0, NULL, &err);
    CHECK(node_config.coord != NULL);
    memset(&err, 0, sizeof err); /* of its first attempts */
    node = crystal_node_create(&node_config, &err);
    CHECK(node != NULL);
    CHECK_EQ(crystal_client_begin(node_config.coord, 2, &err), 0);
    CHECK_STR(err.text, "");
    if (node)
        ids_of_both_origins(node);
    crystal_node_destroy(node);
    crystal_client_close(node_config.coord);
    control = crystal_client_open(coord_file, token_file, CRYSTAL_ROLE_CONTROL, 0, NULL,
                                  &err);
    CHECK_EQ(crystal_client_finish(control, &err), 0);
    crystal_client_close(control);
    (void)pthread_join(thread, NULL);
    crystal_coord_destroy(coord);
    crystal_jobdir_close(dir);
    snprintf(command, sizeof command, "rm -r %s", path);
    CHECK_EQ(system(command), 0);
}

int main(void)
{
    check_begin();
    CHECK_RUN(node_under_the_coordinator);
    return check_end();
}
