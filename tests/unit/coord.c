/* The coordinator with real sockets: 16 ranks of which 4 are live exchange data, and
 * ids are made and forged. */
#include "config.h"

#include "tests/coord_job.h"

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
    for (int i = 0; i < 60000 && atomic_load(&t->count) < count; i++)
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

/* --- replicas --- */

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

int main(void)
{
    check_begin();
    CHECK_RUN(collectives);
    CHECK_RUN(group_with_one_live_member);
    CHECK_RUN(id_after_its_question);
    CHECK_RUN(sends_and_receives);
    CHECK_RUN(large_tensors);
    CHECK_RUN(hints);
    CHECK_RUN(counters_of_absent_ranks);
    CHECK_RUN(ids_in_emulate);
    CHECK_RUN(roots_that_are_not_live);
    CHECK_RUN(ring_of_replicas);
    return check_end();
}
