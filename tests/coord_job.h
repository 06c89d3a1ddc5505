/* A coordinator in a thread, with 16 ranks of which 4 are live, and its clients, for
 * tests. */
#ifndef CRYSTAL_TESTS_COORD_JOB_H
#define CRYSTAL_TESTS_COORD_JOB_H

#include "runtime/coord.h"
#include "runtime/coord_client.h"

#include "tests/check.h"
#include "tests/unit/store_client.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#define N    16
#define LIVE 4

/* --- a job with its coordinator in a thread --- */

struct job {
    char path[64], coord_file[96], token_file[96];
    struct crystal_layout layout;
    struct crystal_jobdir *dir;
    struct crystal_coord *coord;
    pthread_t thread;
    int result;
    struct crystal_client *agent;
};

static inline void *job_main(void *context)
{
    struct job *j = context;

    j->result = crystal_coord_run(j->coord, NULL);
    return NULL;
}

static int reports;
static uint64_t job_nodes_ns; /* crystal_coord_config.nodes_ns of the next job */

static inline int count_report(const char *job_dir, struct crystal_error *err)
{
    (void)job_dir;
    (void)err;
    reports++;
    return 0;
}

/* tp=2, pp=2, dp=4: replica ranks 0-3 live, sandbox 0-3 as well. */
static inline void job_start(struct job *j, uint32_t stage)
{
    struct crystal_error err = {0};
    struct crystal_coord_config config = {.report = count_report,
                                          .nodes_ns = job_nodes_ns};

    memset(j, 0, sizeof *j);
    strcpy(j->path, "/tmp/crystal-coord-XXXXXX");
    CHECK(mkdtemp(j->path));
    (void)snprintf(j->coord_file, sizeof j->coord_file, "%s/coord", j->path);
    (void)snprintf(j->token_file, sizeof j->token_file, "%s/token", j->path);
    j->layout.lrank_count = N;
    j->layout.ranks_per_node = 4;
    j->layout.live_mode = CRYSTAL_LIVE_REPLICA;
    j->layout.iterations = 2;
    CHECK_EQ(crystal_grid_parse("tp=2,pp=2,dp=4", &j->layout.grid, &err), 0);
    CHECK_EQ(
        crystal_ranks_parse("0-3", N, 0, &j->layout.live, &j->layout.live_count, &err),
        0);
    CHECK_EQ(crystal_ranks_parse("0-3", N, 0, &j->layout.sandbox,
                                 &j->layout.sandbox_count, &err),
             0);
    j->dir = crystal_jobdir_open(j->path, 0, &err);
    CHECK(j->dir);
    config.dir = j->dir;
    config.layout = &j->layout;
    j->coord = crystal_coord_create(&config, &err);
    if (!j->coord)
        printf("# %s\n", crystal_error_text(&err));
    CHECK(j->coord);
    CHECK_EQ(pthread_create(&j->thread, NULL, job_main, j), 0);
    j->agent = crystal_client_open(j->coord_file, j->token_file, CRYSTAL_ROLE_AGENT, 0,
                                   NULL, &err);
    CHECK(j->agent);
    if (stage)
        CHECK_EQ(crystal_client_begin(j->agent, stage, &err), 0);
}

static inline struct crystal_client *job_rank(const struct job *j, uint32_t lrank)
{
    struct crystal_error err = {0};
    struct crystal_client *c = crystal_client_open(
        j->coord_file, j->token_file, CRYSTAL_ROLE_RANK, lrank, NULL, &err);

    if (!c)
        printf("# rank %u: %s\n", lrank, crystal_error_text(&err));
    return c;
}

static inline void *close_agent(void *context)
{
    struct job *j = context;

    CHECK_EQ(crystal_client_wait_stop(j->agent, 20000, NULL), 0);
    crystal_client_close(j->agent);
    return NULL;
}

static inline void remove_job(const struct job *j)
{
    char command[128];

    (void)snprintf(command, sizeof command, "rm -r %s", j->path);
    CHECK_EQ(system(command), 0);
}

/* FINISH. well: the agent is told so, and leaves. */
static inline void job_stop(struct job *j, int well)
{
    struct crystal_error err = {0};
    struct crystal_client *control = crystal_client_open(
        j->coord_file, j->token_file, CRYSTAL_ROLE_CONTROL, 0, NULL, &err);
    pthread_t agent;

    if (well)
        CHECK_EQ(pthread_create(&agent, NULL, close_agent, j), 0);
    else
        crystal_client_close(j->agent);
    CHECK_EQ(crystal_client_finish(control, &err), 0);
    if (well)
        (void)pthread_join(agent, NULL);
    crystal_client_close(control);
    (void)pthread_join(j->thread, NULL);
    CHECK_EQ(j->result, 0);
    crystal_coord_destroy(j->coord);
    CHECK(access(j->coord_file, F_OK) < 0);
    CHECK(access(j->token_file, F_OK) < 0);
    crystal_jobdir_close(j->dir);
    crystal_layout_fini(&j->layout);
    remove_job(j);
}

/* The agent is told to stop with a sentence that has these parts. */
static inline void expect_stop(struct job *j, const char *const *parts)
{
    struct crystal_error err = {0};

    CHECK_EQ(crystal_client_wait_stop(j->agent, 5000, &err), -ECANCELED);
    for (; *parts; parts++)
        CHECK_HAS(err.text, *parts);
}

static inline uint64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* --- communicators and calls of a rank --- */

/* WAITs for the id as PyTorch does; the id is 128 bytes. */
static inline void fetch_id(const struct job *j, const char *key, uint8_t *id)
{
    int fd = store_connect(crystal_coord_store_port(j->coord));
    size_t bytes = 0;
    char *value = store_wait_get(fd, key, &bytes);

    CHECK_EQ(bytes, NCCL_UNIQUE_ID_BYTES);
    if (value && bytes == NCCL_UNIQUE_ID_BYTES)
        memcpy(id, value, bytes);
    free(value);
    (void)close(fd);
}

static inline void put(const struct job *j, const char *key, const void *value,
                       size_t bytes)
{
    int fd = store_connect(crystal_coord_store_port(j->coord));
    char *back;

    store_set(fd, key, value, bytes);
    back = store_get(fd, key, NULL); /* it has arrived */
    free(back);
    (void)close(fd);
}

static inline uint32_t join_comm(struct crystal_client *c, const uint8_t *id,
                                 uint32_t nranks, uint32_t crank)
{
    struct crystal_msg_comm_init init = {.nranks = nranks, .crank = crank};
    struct crystal_error err = {0};
    uint32_t comm = 999;
    char name[256];
    int rc;

    memcpy(init.id, id, sizeof init.id);
    rc = crystal_client_comm_init(c, &init, &comm, name, sizeof name, &err);
    if (rc < 0)
        printf("# %s\n", crystal_error_text(&err));
    CHECK_EQ(rc, 0);
    return comm;
}

static inline struct crystal_client_op make_op(uint32_t comm, unsigned func,
                                               unsigned dtype, unsigned redop,
                                               uint32_t peer, uint64_t count,
                                               const void *send, uint64_t send_elements,
                                               void *recv, uint64_t recv_elements)
{
    struct crystal_client_op op = {.send = send, .recv = recv};
    uint64_t element = crystal_dtype_bytes(dtype);

    op.op.comm = comm;
    op.op.func = (uint8_t)func;
    op.op.dtype = (uint8_t)dtype;
    op.op.redop = (uint8_t)redop;
    op.op.peer = peer;
    op.op.count = count;
    op.op.send_bytes = send_elements * element;
    op.op.recv_bytes = recv_elements * element;
    op.op.call_site = 0xabc0 + func;
    return op;
}

static inline int run_ops(struct crystal_client *c, const struct crystal_client_op *ops,
                          uint32_t count, struct crystal_error *err)
{
    uint32_t ticket;
    int rc = crystal_client_post(c, ops, count, &ticket, err);

    return rc < 0 ? rc : crystal_client_wait(c, ticket, err);
}

/* --- every rank runs the same function in its own thread --- */

struct rank {
    struct job *job;
    uint32_t lrank;
    struct crystal_client *client;
    uint8_t world_id[NCCL_UNIQUE_ID_BYTES];
    uint32_t world;
    void (*body)(struct rank *r);
    pthread_t thread;
};

static inline void *rank_main(void *context)
{
    struct rank *r = context;

    r->body(r);
    return NULL;
}

static inline void run_ranks(struct job *j, void (*body)(struct rank *r))
{
    struct rank ranks[LIVE];

    memset(ranks, 0, sizeof ranks);
    for (uint32_t i = 0; i < LIVE; i++) { /* all are there before one can fail */
        ranks[i] = (struct rank){.job = j, .lrank = i, .body = body};
        ranks[i].client = job_rank(j, i);
        CHECK(ranks[i].client);
    }
    for (uint32_t i = 0; i < LIVE; i++)
        if (ranks[i].client)
            CHECK_EQ(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]), 0);
    for (uint32_t i = 0; i < LIVE; i++)
        if (ranks[i].client)
            (void)pthread_join(ranks[i].thread, NULL);
    for (uint32_t i = 0; i < LIVE; i++)
        crystal_client_close(ranks[i].client);
}

static inline void join_world(struct rank *r)
{
    static const uint8_t id[NCCL_UNIQUE_ID_BYTES] = {1, 2, 3};

    if (r->lrank == 0)
        put(r->job, "/default_pg/0//cpu//0", id, sizeof id);
    fetch_id(r->job, "/default_pg/0//cpu//0", r->world_id);
    CHECK(memcmp(r->world_id, id, sizeof id) == 0);
    r->world = join_comm(r->client, r->world_id, N, r->lrank);
}

#endif
