/* The coordinator with real sockets: 16 ranks of which 4 are live exchange data, ids
 * are made and forged, and whatever can go wrong ends with its sentence. */
#include "config.h"

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

static void *job_main(void *context)
{
    struct job *j = context;

    j->result = crystal_coord_run(j->coord, NULL);
    return NULL;
}

static int reports;

static int count_report(const char *job_dir, struct crystal_error *err)
{
    (void)job_dir;
    (void)err;
    reports++;
    return 0;
}

/* tp=2, pp=2, dp=4: replica ranks 0-3 live, sandbox 0-3 as well. */
static void job_start(struct job *j, uint32_t stage)
{
    struct crystal_error err = {0};
    struct crystal_coord_config config = {.report = count_report};

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

static struct crystal_client *job_rank(const struct job *j, uint32_t lrank)
{
    struct crystal_error err = {0};
    struct crystal_client *c = crystal_client_open(
        j->coord_file, j->token_file, CRYSTAL_ROLE_RANK, lrank, NULL, &err);

    if (!c)
        printf("# rank %u: %s\n", lrank, crystal_error_text(&err));
    return c;
}

static void *close_agent(void *context)
{
    struct job *j = context;

    CHECK_EQ(crystal_client_wait_stop(j->agent, 20000, NULL), 0);
    crystal_client_close(j->agent);
    return NULL;
}

static void remove_job(const struct job *j)
{
    char command[128];

    (void)snprintf(command, sizeof command, "rm -r %s", j->path);
    CHECK_EQ(system(command), 0);
}

/* FINISH. well: the agent is told so, and leaves. */
static void job_stop(struct job *j, int well)
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
static void expect_stop(struct job *j, const char *const *parts)
{
    struct crystal_error err = {0};

    CHECK_EQ(crystal_client_wait_stop(j->agent, 5000, &err), -ECANCELED);
    for (; *parts; parts++)
        CHECK_HAS(err.text, *parts);
}

static uint64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* --- communicators and calls of a rank --- */

/* WAITs for the id as PyTorch does; the id is 128 bytes. */
static void fetch_id(const struct job *j, const char *key, uint8_t *id)
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

static void put(const struct job *j, const char *key, const void *value, size_t bytes)
{
    int fd = store_connect(crystal_coord_store_port(j->coord));
    char *back;

    store_set(fd, key, value, bytes);
    back = store_get(fd, key, NULL); /* it has arrived */
    free(back);
    (void)close(fd);
}

static uint32_t join_comm(struct crystal_client *c, const uint8_t *id, uint32_t nranks,
                          uint32_t crank)
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

static struct crystal_client_op make_op(uint32_t comm, unsigned func, unsigned dtype,
                                        unsigned redop, uint32_t peer, uint64_t count,
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

static int run_ops(struct crystal_client *c, const struct crystal_client_op *ops,
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

static void *rank_main(void *context)
{
    struct rank *r = context;

    r->body(r);
    return NULL;
}

static void run_ranks(struct job *j, void (*body)(struct rank *r))
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

static void join_world(struct rank *r)
{
    static const uint8_t id[NCCL_UNIQUE_ID_BYTES] = {1, 2, 3};

    if (r->lrank == 0)
        put(r->job, "/default_pg/0//cpu//0", id, sizeof id);
    fetch_id(r->job, "/default_pg/0//cpu//0", r->world_id);
    CHECK(memcmp(r->world_id, id, sizeof id) == 0);
    r->world = join_comm(r->client, r->world_id, N, r->lrank);
}

/* The value that logical rank l contributes at element i; virtual rank l contributes
 * that of its representative, l % 4. */
static int32_t value_of(uint32_t l, uint32_t i)
{
    return (int32_t)(100 * (l % LIVE) + i);
}

static void collectives_of_a_rank(struct rank *r)
{
    enum { C = 3 };
    struct crystal_error err = {0};
    int32_t mine[N * C], got[N * C];
    uint32_t me = r->lrank;
    struct crystal_client_op op;
    float f[2] = {(float)me + 1, 2}, avg[2];

    join_world(r);
    for (uint32_t i = 0; i < N * C; i++)
        mine[i] = value_of(me, i);

    op = make_op(r->world, CRYSTAL_FUNC_ALLREDUCE, ncclInt32, ncclSum, 0, C, mine, C,
                 got, C);
    CHECK_EQ(run_ops(r->client, &op, 1, &err), 0);
    for (int i = 0; i < C; i++) /* 4 replicas x (0 + 100 + 200 + 300 + 4 i) */
        CHECK_EQ(got[i], 4 * (600 + 4 * i));

    op = make_op(r->world, CRYSTAL_FUNC_ALLREDUCE, ncclInt32, ncclMax, 0, C, mine, C,
                 got, C);
    CHECK_EQ(run_ops(r->client, &op, 1, &err), 0);
    for (int i = 0; i < C; i++)
        CHECK_EQ(got[i], 300 + i);

    op = make_op(r->world, CRYSTAL_FUNC_ALLREDUCE, ncclFloat32, ncclAvg, 0, 2, f, 2,
                 avg, 2);
    CHECK_EQ(run_ops(r->client, &op, 1, &err), 0);
    CHECK(avg[0] == 2.5F && avg[1] == 2);

    op = make_op(r->world, CRYSTAL_FUNC_ALLGATHER, ncclInt32, 0, 0, C, mine, C, got,
                 N * C);
    CHECK_EQ(run_ops(r->client, &op, 1, &err), 0);
    for (uint32_t l = 0; l < N; l++)
        for (uint32_t i = 0; i < C; i++)
            CHECK_EQ(got[l * C + i], value_of(l, i));

    op = make_op(r->world, CRYSTAL_FUNC_REDUCESCATTER, ncclInt32, ncclSum, 0, C, mine,
                 N * C, got, C);
    CHECK_EQ(run_ops(r->client, &op, 1, &err), 0);
    for (uint32_t i = 0; i < C; i++)
        CHECK_EQ(got[i], 4 * (600 + 4 * (me * C + i)));

    op = make_op(r->world, CRYSTAL_FUNC_BROADCAST, ncclInt32, 0, 2, C, mine,
                 me == 2 ? C : 0, got, C);
    CHECK_EQ(run_ops(r->client, &op, 1, &err), 0);
    for (uint32_t i = 0; i < C; i++)
        CHECK_EQ(got[i], value_of(2, i));

    op = make_op(r->world, CRYSTAL_FUNC_REDUCE, ncclInt32, ncclMin, 1, C, mine, C, got,
                 me == 1 ? C : 0);
    got[0] = -1;
    CHECK_EQ(run_ops(r->client, &op, 1, &err), 0);
    CHECK_EQ(got[0], me == 1 ? 0 : -1);

    /* Virtual rank l sends what rank l % 4 sends: block "me" of its buffer. */
    op = make_op(r->world, CRYSTAL_FUNC_ALLTOALL, ncclInt32, 0, 0, C, mine, N * C, got,
                 N * C);
    CHECK_EQ(run_ops(r->client, &op, 1, &err), 0);
    for (uint32_t l = 0; l < N; l++)
        for (uint32_t i = 0; i < C; i++)
            CHECK_EQ(got[l * C + i], value_of(l, me * C + i));

    op = make_op(r->world, CRYSTAL_FUNC_GATHER, ncclInt32, 0, 3, C, mine, C, got,
                 me == 3 ? N * C : 0);
    CHECK_EQ(run_ops(r->client, &op, 1, &err), 0);
    for (uint32_t l = 0; me == 3 && l < N; l++)
        CHECK_EQ(got[l * C], value_of(l, 0));

    op = make_op(r->world, CRYSTAL_FUNC_SCATTER, ncclInt32, 0, 0, C, mine,
                 me == 0 ? N * C : 0, got, C);
    CHECK_EQ(run_ops(r->client, &op, 1, &err), 0);
    for (uint32_t i = 0; i < C; i++)
        CHECK_EQ(got[i], value_of(0, me * C + i));
}

static void collectives(void)
{
    struct job j;
    char text[256] = "", path[96];
    FILE *f;

    job_start(&j, 1);
    run_ranks(&j, collectives_of_a_rank);
    (void)snprintf(path, sizeof path, "%s/comms.tab", j.path);
    f = fopen(path, "r");
    CHECK(f && fgets(text, sizeof text, f));
    CHECK_STR(text, "/default_pg/0//cpu//0\t16\t0-15\n");
    if (f)
        (void)fclose(f);
    job_stop(&j, 1);
}

/* A dp group, "0,4,8,12": one live member stands for all four. */
static void group_with_one_live_member_of(struct rank *r)
{
    struct crystal_error err = {0};
    uint8_t id[NCCL_UNIQUE_ID_BYTES];
    char group[64], key[64], list[64];
    uint32_t comm;
    int64_t mine = 7 + r->lrank, sum = 0, block[4] = {1, 2, 3, 4}, swapped[4];
    struct crystal_client_op ops[8];

    (void)snprintf(group, sizeof group, "/crystal/group/%u", 10 + r->lrank);
    (void)snprintf(list, sizeof list, "%u,%u,%u,%u", 12 + r->lrank, 8 + r->lrank,
                   4 + r->lrank, r->lrank); /* crank 0 is virtual */
    put(r->job, group, list, strlen(list));
    (void)snprintf(key, sizeof key, "/default_pg/%u//cpu//0", 10 + r->lrank);
    fetch_id(r->job, key, id); /* the coordinator makes it */
    comm = join_comm(r->client, id, 4, 3);
    ops[0] = make_op(comm, CRYSTAL_FUNC_ALLREDUCE, ncclInt64, ncclSum, 0, 1, &mine, 1,
                     &sum, 1);
    CHECK_EQ(run_ops(r->client, ops, 1, &err), 0);
    CHECK_EQ(sum, 4 * (7 + r->lrank));

    /* All-to-all by sends and receives: what a replica sends me is what I send to the
     * one that is as far behind me: crank 0 (3 replicas on) gives what crank 2 gets. */
    for (uint32_t p = 0; p < 4; p++) {
        ops[2 * p] =
            make_op(comm, CRYSTAL_FUNC_SEND, ncclInt64, 0, p, 1, &block[p], 1, NULL, 0);
        ops[2 * p + 1] = make_op(comm, CRYSTAL_FUNC_RECV, ncclInt64, 0, p, 1, NULL, 0,
                                 &swapped[p], 1);
    }
    for (int round = 0; round < 3; round++) {
        memset(swapped, 0, sizeof swapped);
        CHECK_EQ(run_ops(r->client, ops, 8, &err), 0);
        for (uint32_t p = 0; p < 3; p++)
            CHECK_EQ(swapped[p], 3 - p);
        CHECK_EQ(swapped[3], 4); /* mine to myself */
    }
}

static void group_with_one_live_member(void)
{
    struct job j;

    job_start(&j, 1);
    run_ranks(&j, group_with_one_live_member_of);
    job_stop(&j, 1);
}

/* A ring of messages on the world: receives are posted before the sends of others. */
/* The question for a communicator overtakes the SET of its id. */
struct late_set {
    const struct job *job;
    char key[64];
    uint8_t id[NCCL_UNIQUE_ID_BYTES];
};

static void *set_later(void *context)
{
    const struct late_set *late = context;
    const struct timespec pause = {0, 50000000};

    (void)nanosleep(&pause, NULL);
    put(late->job, late->key, late->id, sizeof late->id);
    return NULL;
}

static void id_after_its_question_of(struct rank *r)
{
    struct late_set late = {.job = r->job, .id = {9, (uint8_t)r->lrank}};
    char group[64], list[64];
    pthread_t thread;

    (void)snprintf(group, sizeof group, "/crystal/group/%u", 20 + r->lrank);
    (void)snprintf(list, sizeof list, "%u,%u,%u,%u", r->lrank, 4 + r->lrank,
                   8 + r->lrank, 12 + r->lrank);
    put(r->job, group, list, strlen(list));
    (void)snprintf(late.key, sizeof late.key, "/default_pg/%u//cpu//0", 20 + r->lrank);
    CHECK_EQ(pthread_create(&thread, NULL, set_later, &late), 0);
    (void)join_comm(r->client, late.id, 4, 0);
    (void)pthread_join(thread, NULL);
}

static void id_after_its_question(void)
{
    char text[1024] = "", path[96];
    struct job j;
    FILE *f;

    job_start(&j, 1);
    run_ranks(&j, id_after_its_question_of);
    (void)snprintf(path, sizeof path, "%s/comms.tab", j.path);
    f = fopen(path, "r");
    CHECK(f && fread(text, 1, sizeof text - 1, f) > 0);
    for (unsigned r = 0; r < LIVE; r++) {
        char line[96];

        (void)snprintf(line, sizeof line, "/default_pg/%u//cpu//0\t4\t%u,%u,%u,%u\n",
                       20 + r, r, 4 + r, 8 + r, 12 + r);
        CHECK_HAS(text, line);
    }
    if (f)
        (void)fclose(f);
    job_stop(&j, 1);
}

static void ring_of_a_rank(struct rank *r)
{
    struct crystal_error err = {0};
    uint32_t next = (r->lrank + 1) % LIVE, before = (r->lrank + LIVE - 1) % LIVE;
    uint16_t out[2], in[2];
    struct crystal_client_op ops[2];
    uint32_t early, late;

    join_world(r);
    for (uint16_t i = 0; i < 20; i++) {
        out[0] = (uint16_t)(1000 * r->lrank + i);
        out[1] = i;
        ops[0] = make_op(r->world, CRYSTAL_FUNC_RECV, ncclFloat16, 0, before, 2, NULL,
                         0, in, 2);
        ops[1] = make_op(r->world, CRYSTAL_FUNC_SEND, ncclFloat16, 0, next, 2, out, 2,
                         NULL, 0);
        CHECK_EQ(crystal_client_post(r->client, &ops[0], 1, &early, &err), 0);
        CHECK_EQ(crystal_client_post(r->client, &ops[1], 1, &late, &err), 0);
        CHECK_EQ(crystal_client_wait(r->client, early, &err), 0);
        CHECK_EQ(crystal_client_poll(r->client, early), -EINVAL); /* gone */
        CHECK_EQ(crystal_client_wait(r->client, late, &err), 0);
        CHECK_EQ(in[0], 1000 * before + i);
        CHECK_EQ(in[1], i);
    }
}

static void sends_and_receives(void)
{
    struct job j;

    job_start(&j, 1);
    run_ranks(&j, ring_of_a_rank);
    job_stop(&j, 1);
}

/* 8 MiB per rank there and back. */
static void large_of_a_rank(struct rank *r)
{
    enum { COUNT = 2 << 20 };
    struct crystal_error err = {0};
    int32_t *mine = malloc(COUNT * sizeof *mine), *got = malloc(COUNT * sizeof *got);
    struct crystal_client_op op;
    unsigned wrong = 0;

    join_world(r);
    for (int i = 0; i < COUNT; i++)
        mine[i] = (int32_t)r->lrank + i % 1000;
    op = make_op(r->world, CRYSTAL_FUNC_ALLREDUCE, ncclInt32, ncclSum, 0, COUNT, mine,
                 COUNT, got, COUNT);
    for (int round = 0; round < 3; round++) {
        CHECK_EQ(run_ops(r->client, &op, 1, &err), 0);
        for (int i = 0; i < COUNT; i++)
            wrong += got[i] != 4 * (6 + 4 * (i % 1000));
    }
    CHECK_EQ(wrong, 0);
    free(mine);
    free(got);
}

static void large_tensors(void)
{
    struct job j;

    job_start(&j, 1);
    run_ranks(&j, large_of_a_rank);
    job_stop(&j, 1);
}

static void hints_of_a_rank(struct rank *r)
{
    struct crystal_error err = {0};
    int stop = -1;

    for (uint64_t i = 1; i <= 3; i++) {
        CHECK_EQ(crystal_client_hint(r->client, i, &stop, &err), 0);
        CHECK_EQ(stop, i == 3); /* iterations = 2 */
    }
}

static void hints(void)
{
    struct job j;

    job_start(&j, 1);
    run_ranks(&j, hints_of_a_rank);
    job_stop(&j, 1);
}

/* Live ranks are 4 of 16: three absent ones per live one have added already. */
static void counters_of_absent_ranks(void)
{
    uint8_t check[] = {CRYSTAL_STORE_CHECK, 1, 0, 0, 0, 0, 0, 0, 0};
    struct request r = {0};
    struct job j;
    int fd;

    job_start(&j, 1);
    fd = store_connect(crystal_coord_store_port(j.coord));
    CHECK_EQ(store_add(fd, "init/", 1), 13);
    CHECK_EQ(store_add(fd, "init/", 1), 14);
    CHECK_EQ(store_add(fd, "/default_pg/store_based_barrier_key:3", 1), 13);
    CHECK_EQ(store_add(fd, "/default_pg/store_based_barrier_key:3", 0), 13);
    put(&j, "/crystal/group/5", "1,5,9", 5);
    CHECK_EQ(store_add(fd, "/default_pg/0//5//store_based_barrier_key:5", 1), 3);
    CHECK_EQ(store_add(fd, "/other", 1), 1);
    store_set(fd, "/exception_dump", "1", 1);
    request_raw(&r, check, sizeof check);
    request_text(&r, "/exception_dump");
    (void)request_send(&r, fd);
    CHECK_EQ(reply_byte(fd), CRYSTAL_STORE_NOT_READY);
    free(r.data);
    (void)close(fd);
    job_stop(&j, 1);
}

/* --- ids in plan and emulate --- */

struct told {
    atomic_int count;
    int forge;
    char name[64];
    uint32_t members[N], member_count;
    uint8_t first_byte;
};

static int on_comm_id(void *context, int forge, struct crystal_msg_comm_id *msg,
                      const char *name, const uint32_t *members,
                      struct crystal_error *err)
{
    struct told *t = context;

    (void)err;
    t->forge = forge;
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    t->member_count = msg->member_count;
    memcpy(t->members, members, msg->member_count * sizeof *members);
    t->first_byte = msg->id[0];
    if (forge)
        memset(msg->id, 0x5a, sizeof msg->id);
    atomic_fetch_add(&t->count, 1);
    return 0;
}

static void wait_count(struct told *t, int count)
{
    for (int i = 0; i < 5000 && atomic_load(&t->count) < count; i++)
        (void)usleep(1000);
    CHECK_EQ(atomic_load(&t->count), count);
}

static void ids_in_emulate(void)
{
    static const char *const waited[] = {"/default_pg/8//cpu//0"};
    uint8_t real[NCCL_UNIQUE_ID_BYTES], got[NCCL_UNIQUE_ID_BYTES];
    struct told told = {0};
    struct job j;
    size_t bytes = 0;
    char *value;
    int fd;

    reports = 0;
    job_start(&j, 3);
    crystal_client_on_comm_id(j.agent, on_comm_id, &told);
    /* A real root sets it. */
    memset(real, 0x77, sizeof real);
    put(&j, "/default_pg/0//cpu//0", real, sizeof real);
    wait_count(&told, 1);
    CHECK_EQ(told.forge, 0);
    CHECK_STR(told.name, "/default_pg/0//cpu//0");
    CHECK_EQ(told.member_count, N);
    CHECK_EQ(told.members[15], 15);
    CHECK_EQ(told.first_byte, 0x77);
    /* A virtual root: the agent makes it; the group may become known after the wait. */
    fd = store_connect(crystal_coord_store_port(j.coord));
    store_keys(fd, CRYSTAL_STORE_WAIT, waited, 1);
    CHECK(store_is_quiet(fd));
    put(&j, "/crystal/group/8", "12,8,4,0", 8);
    CHECK_EQ(reply_byte(fd), CRYSTAL_STORE_STOP_WAITING);
    value = store_get(fd, waited[0], &bytes);
    CHECK_EQ(bytes, NCCL_UNIQUE_ID_BYTES);
    CHECK(value && value[0] == 0x5a && value[127] == 0x5a);
    free(value);
    CHECK_EQ(told.forge, 1);
    CHECK_EQ(told.member_count, 4);
    CHECK_EQ(told.members[0], 12);
    CHECK_EQ(told.members[3], 0);
    /* A pair whose lower rank is virtual. */
    put(&j, "/crystal/group/9", "5,1,2", 5);
    fetch_id(&j, "/default_pg/9//cpu//0:2", got);
    CHECK_EQ(got[0], 0x5a);
    CHECK_EQ(told.member_count, 2);
    CHECK_EQ(told.members[0], 5);
    CHECK_EQ(told.members[1], 2);
    (void)close(fd);
    job_stop(&j, 1);
    CHECK_EQ(reports, 1);
}

/* --- what goes wrong --- */

static void expect_cancelled(struct crystal_client *c,
                             const struct crystal_client_op *ops, uint32_t count)
{
    struct crystal_error err = {0};

    CHECK_EQ(run_ops(c, ops, count, &err), -ECANCELED);
}

static void mismatch_of_a_rank(struct rank *r)
{
    int32_t mine[4] = {0}, got[4];
    struct crystal_client_op op;

    join_world(r);
    op = make_op(r->world,
                 r->lrank == 2 ? CRYSTAL_FUNC_BROADCAST : CRYSTAL_FUNC_ALLREDUCE,
                 ncclInt32, ncclSum, 1, 4, mine, 4, got, 4);
    expect_cancelled(r->client, &op, 1);
}

static void mismatch_names_both_sides(void)
{
    static const char *const parts[] = {
        "mismatch in operation 0 of communicator '/default_pg/0//cpu//0'",
        "rank 2 calls broadcast of 4 x int32 with root 1 at 0xabc1",
        "calls allreduce of 4 x int32 (sum) at 0xabc5", NULL};
    uint64_t start;
    struct job j;

    job_start(&j, 1);
    start = now_ms();
    run_ranks(&j, mismatch_of_a_rank);
    CHECK(now_ms() - start < 2000);
    expect_stop(&j, parts);
    job_stop(&j, 0);
}

static void size_mismatch_of_a_rank(struct rank *r)
{
    int32_t data[4] = {0};
    struct crystal_client_op op;

    join_world(r);
    if (r->lrank == 0)
        op = make_op(r->world, CRYSTAL_FUNC_SEND, ncclInt32, 0, 1, 4, data, 4, NULL, 0);
    else
        op = make_op(r->world, CRYSTAL_FUNC_RECV, ncclInt32, 0, 0, 3, NULL, 0, data, 3);
    if (r->lrank == 1)
        expect_cancelled(r->client, &op, 1);
    else if (r->lrank == 0)
        (void)run_ops(r->client, &op, 1, NULL); /* buffered: ends either way */
}

static void sends_and_receives_must_fit(void)
{
    static const char *const parts[] = {"rank 0 sends 16 bytes at 0xabc6",
                                        "rank 1 receives 12 bytes at 0xabc7", NULL};
    struct job j;

    job_start(&j, 1);
    run_ranks(&j, size_mismatch_of_a_rank);
    expect_stop(&j, parts);
    job_stop(&j, 0);
}

/* Rank 0 waits in an allreduce, the others for a message from rank 0. */
static void deadlock_of_a_rank(struct rank *r)
{
    int32_t data[4] = {0};
    struct crystal_client_op op;

    join_world(r);
    if (r->lrank == 0)
        op = make_op(r->world, CRYSTAL_FUNC_ALLREDUCE, ncclInt32, 0, 0, 4, data, 4,
                     data, 4);
    else
        op = make_op(r->world, CRYSTAL_FUNC_RECV, ncclInt32, 0, 0, 4, NULL, 0, data, 4);
    expect_cancelled(r->client, &op, 1);
}

static void deadlock_is_explained(void)
{
    static const char *const parts[] = {
        "the live ranks wait for ever",
        "rank 0 waits in allreduce 0 of '/default_pg/0//cpu//0' (called at 0xabc5) for "
        "rank 1",
        "rank 1 waits to receive from rank 0 on '/default_pg/0//cpu//0'",
        "and 2 more ranks", NULL};
    uint64_t start;
    struct job j;

    job_start(&j, 1);
    start = now_ms();
    run_ranks(&j, deadlock_of_a_rank);
    CHECK(now_ms() - start < 2000);
    expect_stop(&j, parts);
    job_stop(&j, 0);
}

/* Rank 6 is virtual; rank 2, which stands for it, has nothing that a root would send.
 */
static void virtual_root_of_a_rank(struct rank *r)
{
    int32_t data[4] = {0};
    struct crystal_client_op op;

    join_world(r);
    op =
        make_op(r->world, CRYSTAL_FUNC_BROADCAST, ncclInt32, 0, 6, 4, NULL, 0, data, 4);
    expect_cancelled(r->client, &op, 1);
}

static void virtual_root_without_contents(void)
{
    static const char *const parts[] = {
        "broadcast 0 of communicator '/default_pg/0//cpu//0': its rank 6 is not live "
        "and "
        "rank 2, which stands for it, has nothing to contribute there; use "
        "--crystal-live=all",
        NULL};
    struct job j;

    job_start(&j, 1);
    run_ranks(&j, virtual_root_of_a_rank);
    expect_stop(&j, parts);
    job_stop(&j, 0);
}

/* Each function with a root that is not live: 6, for which 2 stands. */
static void roots_of_a_rank(struct rank *r)
{
    enum { C = 2 };
    struct crystal_error err = {0};
    const int32_t me = (int32_t)r->lrank;
    int32_t data[C] = {10 * me, 10 * me + 1}, got[C] = {0}, rows[N * C];
    struct crystal_client_op op;

    join_world(r);
    /* a broadcast: what rank 2 has in its buffer */
    op = make_op(r->world, CRYSTAL_FUNC_BROADCAST, ncclInt32, 0, 6, C, data, C, got, C);
    CHECK_EQ(run_ops(r->client, &op, 1, &err), 0);
    CHECK_EQ(got[0], 20);
    CHECK_EQ(got[1], 21);
    /* a scatter: what rank 2 scattered last */
    for (int i = 0; i < N * C; i++)
        rows[i] = 1000 + i;
    for (uint32_t root = 2; root <= 6; root += 4) {
        memset(got, 0, sizeof got);
        op = make_op(r->world, CRYSTAL_FUNC_SCATTER, ncclInt32, 0, root, C, rows,
                     me == 2 && root == 2 ? N * C : 0, got, C);
        CHECK_EQ(run_ops(r->client, &op, 1, &err), 0);
        CHECK_EQ(got[0], 1000 + C * me);
        CHECK_EQ(got[1], 1001 + C * me);
    }
    /* who reduces or gathers is nobody who runs */
    op = make_op(r->world, CRYSTAL_FUNC_REDUCE, ncclInt32, ncclSum, 6, C, data, C, NULL,
                 0);
    CHECK_EQ(run_ops(r->client, &op, 1, &err), 0);
    op = make_op(r->world, CRYSTAL_FUNC_GATHER, ncclInt32, 0, 6, C, data, C, NULL, 0);
    CHECK_EQ(run_ops(r->client, &op, 1, &err), 0);
}

static void roots_that_are_not_live(void)
{
    struct job j;

    job_start(&j, 1);
    run_ranks(&j, roots_of_a_rank);
    job_stop(&j, 1);
}

/* A ring of the four replicas of this rank: it sends to the next and receives from the
 * last one, which does what it does. */
static void ring_of_replicas_of_a_rank(struct rank *r)
{
    struct crystal_error err = {0};
    uint8_t id[NCCL_UNIQUE_ID_BYTES] = {(uint8_t)(40 + r->lrank)};
    uint32_t comm;
    char key[64], list[64];

    join_world(r);
    (void)snprintf(key, sizeof key, "/crystal/group/%u", 20 + r->lrank);
    (void)snprintf(list, sizeof list, "%u,%u,%u,%u", r->lrank, 4 + r->lrank,
                   8 + r->lrank, 12 + r->lrank);
    put(r->job, key, list, strlen(list));
    (void)snprintf(key, sizeof key, "/default_pg/%u//cpu//0", 20 + r->lrank);
    put(r->job, key, id, sizeof id);
    comm = join_comm(r->client, id, 4, 0);
    for (int32_t i = 0; i < 40; i++) { /* more than are kept unasked */
        int32_t out = 100 * (int32_t)r->lrank + i, in = -1;
        struct crystal_client_op ops[2] = {
            make_op(comm, CRYSTAL_FUNC_SEND, ncclInt32, 0, 1, 1, &out, 1, NULL, 0),
            make_op(comm, CRYSTAL_FUNC_RECV, ncclInt32, 0, 3, 1, NULL, 0, &in, 1)};

        CHECK_EQ(run_ops(r->client, &ops[0], 1, &err), 0);
        CHECK_EQ(run_ops(r->client, &ops[1], 1, &err), 0);
        CHECK_EQ(in, out);
    }
    for (int32_t i = 0; i < 1000; i++) { /* nobody ever asks for these */
        struct crystal_client_op op =
            make_op(comm, CRYSTAL_FUNC_SEND, ncclInt32, 0, 2, 1, &i, 1, NULL, 0);

        CHECK_EQ(run_ops(r->client, &op, 1, &err), 0);
    }
}

static void ring_of_replicas(void)
{
    struct job j;

    job_start(&j, 1);
    run_ranks(&j, ring_of_replicas_of_a_rank);
    job_stop(&j, 1);
}

static void lonely_receive_of_a_rank(struct rank *r)
{
    int32_t data[4] = {0};
    struct crystal_client_op op;

    join_world(r);
    if (r->lrank != 1)
        return; /* ends */
    op = make_op(r->world, CRYSTAL_FUNC_RECV, ncclInt32, 0, 6, 4, NULL, 0, data, 4);
    expect_cancelled(r->client, &op, 1);
}

static void *close_later(void *context)
{
    crystal_client_close(context);
    return NULL;
}

static void a_rank_that_has_ended_is_named(void)
{
    static const char *const parts[] = {"rank 1 waits to receive from rank 6",
                                        "use --crystal-live=all", NULL};
    struct rank ranks[LIVE];
    pthread_t closers[LIVE];
    struct job j;

    job_start(&j, 1);
    for (uint32_t i = 0; i < LIVE; i++) {
        ranks[i] =
            (struct rank){.job = &j, .lrank = i, .body = lonely_receive_of_a_rank};
        ranks[i].client = job_rank(&j, i);
        CHECK(ranks[i].client);
        CHECK_EQ(pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < LIVE; i++)
        if (i != 1) {
            (void)pthread_join(ranks[i].thread, NULL);
            CHECK_EQ(pthread_create(&closers[i], NULL, close_later, ranks[i].client),
                     0);
            (void)pthread_join(closers[i], NULL);
        }
    (void)pthread_join(ranks[1].thread, NULL);
    crystal_client_close(ranks[1].client);
    expect_stop(&j, parts);
    job_stop(&j, 0);
}

/* This program once more, as one client in a process of its own. */
static pid_t start_client(const struct job *j, const char *what)
{
    pid_t child = fork();

    if (child == 0) {
        execl("/proc/self/exe", "coord", what, j->coord_file, j->token_file,
              (char *)NULL);
        _exit(127);
    }
    return child;
}

/* Rank 3 joins the world and waits, or an agent begins capture and drops dead. */
static int client_main(const char *what, const char *coord_file, const char *token_file)
{
    struct crystal_msg_comm_init init = {.id = {9}, .nranks = N, .crank = 3};
    int is_rank = strcmp(what, "rank") == 0;
    struct crystal_client *c = crystal_client_open(
        coord_file, token_file, is_rank ? CRYSTAL_ROLE_RANK : CRYSTAL_ROLE_AGENT,
        is_rank ? 3 : 5, NULL, NULL);
    uint32_t comm;
    char name[64];

    if (!c)
        return 1;
    if (is_rank)
        (void)crystal_client_comm_init(c, &init, &comm, name, sizeof name, NULL);
    else if (crystal_client_begin(c, 1, NULL) == 0)
        return 0;
    return 1;
}

/* A real process is killed while it waits. */
static void killed_rank_is_named(void)
{
    static const char *const parts[] = {
        "rank 3 (pid ", ") died during capture",
        "waits for communicator '/default_pg/0//cpu//0'", NULL};
    static const uint8_t id[NCCL_UNIQUE_ID_BYTES] = {9};
    struct crystal_error err = {0};
    struct crystal_client *twin;
    struct job j;
    pid_t child;
    int status;

    job_start(&j, 1);
    put(&j, "/default_pg/0//cpu//0", id, sizeof id);
    child = start_client(&j, "rank");
    do { /* until it has come: then rank 3 is refused */
        (void)usleep(50000);
        twin = crystal_client_open(j.coord_file, j.token_file, CRYSTAL_ROLE_RANK, 3,
                                   NULL, &err);
        crystal_client_close(twin);
    } while (twin);
    (void)usleep(200000); /* it joins */
    (void)kill(child, SIGKILL);
    CHECK_EQ(waitpid(child, &status, 0), child);
    expect_stop(&j, parts);
    job_stop(&j, 0);
}

static void strangers_are_refused(void)
{
    struct crystal_msg_hello hello = {.role = CRYSTAL_ROLE_RANK};
    struct crystal_message_head head;
    struct crystal_error err = {0};
    struct crystal_client *c;
    unsigned port = 0;
    char line[64], wrong[96];
    struct job j;
    FILE *f;
    int fd;

    job_start(&j, 1);
    f = fopen(j.coord_file, "r");
    while (f && fgets(line, sizeof line, f))
        (void)sscanf(line, "port=%u", &port);
    if (f)
        (void)fclose(f);
    /* A wrong token. */
    (void)snprintf(wrong, sizeof wrong, "%s/wrong", j.path);
    f = fopen(wrong, "w");
    for (int i = 0; f && i < 64; i++)
        (void)fputc('0', f);
    if (f)
        (void)fclose(f);
    CHECK(!crystal_client_open(j.coord_file, wrong, CRYSTAL_ROLE_RANK, 0, NULL, &err));
    CHECK_HAS(err.text, "does not accept this process");
    /* A body of 1 GiB from a stranger; another first message; no magic. */
    fd = store_dial((uint16_t)port);
    crystal_message_head_init(&head, CRYSTAL_MSG_HELLO, 1, CRYSTAL_MESSAGE_BODY_MAX);
    (void)send_whole(fd, &head, sizeof head);
    CHECK(store_is_closed(fd));
    (void)close(fd);
    fd = store_dial((uint16_t)port);
    crystal_message_head_init(&head, CRYSTAL_MSG_FINISH, 1, 0);
    (void)send_whole(fd, &head, sizeof head);
    CHECK(store_is_closed(fd));
    (void)close(fd);
    fd = store_dial((uint16_t)port);
    (void)send_whole(fd, "GET / HTTP/1.1\r\n", 16);
    CHECK(store_is_closed(fd));
    (void)close(fd);
    (void)hello;
    /* Ranks that do not run here, or twice. */
    CHECK(!crystal_client_open(j.coord_file, j.token_file, CRYSTAL_ROLE_RANK, 4, NULL,
                               &err));
    CHECK_HAS(err.text, "rank 4 does not run in stage capture");
    c = job_rank(&j, 1);
    CHECK(!crystal_client_open(j.coord_file, j.token_file, CRYSTAL_ROLE_RANK, 1, NULL,
                               &err));
    CHECK_HAS(err.text, "rank 1 runs already");
    crystal_client_close(c);
    job_stop(&j, 1);
}

/* Messages with lengths that lie, from a rank with the right token. */
static void lying_lengths_stop_the_stage(void)
{
    static const char *const parts[] = {"a deposit is too short", NULL};
    struct crystal_msg_hello hello = {.role = CRYSTAL_ROLE_RANK, .lrank = 2};
    struct crystal_message_head head;
    uint32_t count = 0x40000000;
    char hex[65] = "", line[64];
    unsigned port = 0;
    struct job j;
    FILE *f;
    int fd;

    job_start(&j, 1);
    f = fopen(j.token_file, "r");
    CHECK(f && fread(hex, 1, 64, f) == 64);
    if (f)
        (void)fclose(f);
    for (int i = 0; i < 32; i++) {
        unsigned byte;

        (void)sscanf(hex + 2 * i, "%2x", &byte);
        hello.token[i] = (uint8_t)byte;
    }
    f = fopen(j.coord_file, "r");
    while (f && fgets(line, sizeof line, f))
        (void)sscanf(line, "port=%u", &port);
    if (f)
        (void)fclose(f);
    fd = store_dial((uint16_t)port);
    crystal_message_head_init(&head, CRYSTAL_MSG_HELLO, 1, sizeof hello);
    (void)send_whole(fd, &head, sizeof head);
    (void)send_whole(fd, &hello, sizeof hello);
    CHECK_EQ(receive_whole(fd, &head, sizeof head), 0);
    CHECK_EQ(head.type, CRYSTAL_MSG_WELCOME);
    crystal_message_head_init(&head, CRYSTAL_MSG_OPS, 2, sizeof count);
    (void)send_whole(fd, &head, sizeof head);
    (void)send_whole(fd, &count, sizeof count);
    expect_stop(&j, parts);
    (void)close(fd);
    job_stop(&j, 0);
}

static void wrong_world_of_a_rank(struct rank *r)
{
    static const uint8_t id[NCCL_UNIQUE_ID_BYTES] = {4};
    struct crystal_msg_comm_init init = {.nranks = LIVE, .crank = r->lrank};
    struct crystal_error err = {0};
    uint32_t comm;
    char name[256];

    put(r->job, "/default_pg/0//cpu//0", id, sizeof id);
    memcpy(init.id, id, sizeof id);
    CHECK_EQ(crystal_client_comm_init(r->client, &init, &comm, name, sizeof name, &err),
             -ECANCELED);
    CHECK_HAS(err.text, "as one of 4 ranks, but it has 16");
    CHECK_HAS(err.text, "the job has 16 logical ranks");
}

static void another_world_size(void)
{
    struct rank first = {0};
    struct job j;

    job_start(&j, 1);
    first.job = &j;
    first.client = job_rank(&j, 0);
    wrong_world_of_a_rank(&first);
    crystal_client_close(first.client);
    job_stop(&j, 0);
}

static void another_world_in_the_store(void)
{
    static const struct {
        const char *members, *part;
    } rows[] = {
        {"0-3", "the program runs with world size 4, the job has 16 logical ranks"},
        {"0-31", "the program runs with world size 32, the job has 16 logical ranks"},
        {"x", "the world's group"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *const parts[] = {rows[i].part, NULL};
        struct job j;

        job_start(&j, 1);
        put(&j, "/crystal/group/0", rows[i].members, strlen(rows[i].members));
        expect_stop(&j, parts);
        job_stop(&j, 0);
    }
}

static void groups_must_agree(void)
{
    static const struct {
        const char *first, *second, *part;
    } rows[] = {
        {"1,2", "2,1", "group '7' has 2 members for one rank and 2 (or others)"},
        {"1,2", "1,2,3", "group '7' has 2 members for one rank and 3 (or others)"},
        {"1,2,1", "", "group '7': a rank stands twice in its members"},
        {"1,16", "", "group '7': "},
        {"1-", "", "group '7': "},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *const parts[] = {rows[i].part, NULL};
        struct job j;

        job_start(&j, 1);
        put(&j, "/crystal/group/7", rows[i].first, strlen(rows[i].first));
        if (rows[i].second[0]) {
            put(&j, "/crystal/group/7", rows[i].first, strlen(rows[i].first));
            put(&j, "/crystal/group/7", rows[i].second, strlen(rows[i].second));
        }
        expect_stop(&j, parts);
        job_stop(&j, 0);
    }
}

static void stages_follow_each_other(void)
{
    struct crystal_error err = {0};
    struct crystal_client *rank, *second;
    struct job j;
    int fd;

    job_start(&j, 0);
    CHECK(!crystal_client_open(j.coord_file, j.token_file, CRYSTAL_ROLE_RANK, 0, NULL,
                               &err));
    CHECK_HAS(err.text, "before any stage has begun");
    CHECK_EQ(crystal_client_begin(j.agent, 1, &err), 0);
    put(&j, "/left", "over", 4);
    /* The agent of a second node joins the stage. */
    second = crystal_client_open(j.coord_file, j.token_file, CRYSTAL_ROLE_AGENT, 1,
                                 NULL, &err);
    CHECK_EQ(crystal_client_begin(second, 1, &err), 0);
    fd = store_connect(crystal_coord_store_port(j.coord));
    CHECK_EQ(store_add(fd, "/left2", 1), 1);
    (void)close(fd);
    rank = job_rank(&j, 0);
    /* A failure is told to all, and forgotten with the next stage. */
    CHECK_EQ(crystal_client_fail(second, "agent: no more disk"), 0);
    CHECK_EQ(crystal_client_wait_stop(rank, 5000, &err), -ECANCELED);
    CHECK_STR(err.text, "agent: no more disk");
    CHECK_EQ(crystal_client_wait_stop(j.agent, 5000, &err), -ECANCELED);
    crystal_client_close(rank);
    crystal_client_close(second);
    crystal_client_close(j.agent);
    j.agent = crystal_client_open(j.coord_file, j.token_file, CRYSTAL_ROLE_AGENT, 0,
                                  NULL, &err);
    CHECK_EQ(crystal_client_begin(j.agent, 2, &err), 0);
    fd = store_connect(crystal_coord_store_port(j.coord));
    CHECK_EQ(store_add(fd, "/left2", 1), 1); /* the store was emptied */
    (void)close(fd);
    job_stop(&j, 1);
}

static void dead_agent_is_named(void)
{
    struct crystal_error err = {0};
    struct crystal_client *rank;
    struct job j;
    pid_t child;
    int status;

    job_start(&j, 0);
    child = start_client(&j, "agent");
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    rank = NULL;
    for (int i = 0; i < 100; i++) { /* until the death is noticed */
        rank = crystal_client_open(j.coord_file, j.token_file, CRYSTAL_ROLE_RANK, 0,
                                   NULL, &err);
        if (!rank)
            break;
        crystal_client_close(rank);
        (void)usleep(10000);
    }
    CHECK(!rank);
    CHECK_HAS(err.text, "the agent of node 5 (pid ");
    job_stop(&j, 0);
}

int main(int argc, char **argv)
{
    if (argc == 4)
        return client_main(argv[1], argv[2], argv[3]);
    check_begin();
    CHECK_RUN(collectives);
    CHECK_RUN(group_with_one_live_member);
    CHECK_RUN(id_after_its_question);
    CHECK_RUN(sends_and_receives);
    CHECK_RUN(large_tensors);
    CHECK_RUN(hints);
    CHECK_RUN(counters_of_absent_ranks);
    CHECK_RUN(ids_in_emulate);
    CHECK_RUN(mismatch_names_both_sides);
    CHECK_RUN(sends_and_receives_must_fit);
    CHECK_RUN(virtual_root_without_contents);
    CHECK_RUN(roots_that_are_not_live);
    CHECK_RUN(ring_of_replicas);
    CHECK_RUN(deadlock_is_explained);
    CHECK_RUN(a_rank_that_has_ended_is_named);
    CHECK_RUN(killed_rank_is_named);
    CHECK_RUN(strangers_are_refused);
    CHECK_RUN(lying_lengths_stop_the_stage);
    CHECK_RUN(another_world_size);
    CHECK_RUN(another_world_in_the_store);
    CHECK_RUN(groups_must_agree);
    CHECK_RUN(stages_follow_each_other);
    CHECK_RUN(dead_agent_is_named);
    return check_end();
}
