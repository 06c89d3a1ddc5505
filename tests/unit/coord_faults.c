/* The coordinator with real sockets: whatever can go wrong ends with its sentence. */
#include "config.h"

#include "tests/coord_job.h"

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
    CHECK(now_ms() - start < 30000);
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
    CHECK(now_ms() - start < 30000);
    expect_stop(&j, parts);
    job_stop(&j, 0);
}

/* Each in a group of four, of whose other members nobody has said anything. */
static void unknown_group_of_a_rank(struct rank *r)
{
    const uint8_t id[NCCL_UNIQUE_ID_BYTES] = {40, (uint8_t)r->lrank};
    struct crystal_msg_comm_init init = {.nranks = 4};
    char key[64], name[256];
    uint32_t comm;

    (void)snprintf(key, sizeof key, "/default_pg/0//%u//cuda//0", 30 + r->lrank);
    put(r->job, key, id, sizeof id);
    memcpy(init.id, id, sizeof id);
    CHECK_EQ(crystal_client_comm_init(r->client, &init, &comm, name, sizeof name, NULL),
             -ECANCELED);
}

static void unknown_members_are_told(void)
{
    static const char *const parts[] = {
        "rank 0 waits for communicator '/default_pg/0//30//cuda//0' of 4 ranks, and "
        "nothing says which they are; is contrib/pytorch installed where the program "
        "runs?",
        NULL};
    struct job j;

    job_start(&j, 1);
    run_ranks(&j, unknown_group_of_a_rank);
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

/* This program once more, as one client in a process of its own; a rank writes a byte
 * to told_fd when the coordinator has taken it. */
static pid_t start_client(const struct job *j, const char *what, int told_fd)
{
    pid_t child = fork();

    if (child == 0) {
        (void)dup2(told_fd, STDOUT_FILENO);
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

    if (!c || (is_rank && write(STDOUT_FILENO, "", 1) != 1))
        return 1;
    if (is_rank)
        (void)crystal_client_comm_init(c, &init, &comm, name, sizeof name, NULL);
    else if (crystal_client_begin(c, 1, NULL) == 0)
        return 0;
    return 1;
}

/* Waits until a process is in a system call that waits, and stays there. */
static void wait_asleep(pid_t pid)
{
    char path[64], state = 0;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    for (int i = 0, times = 0; i < 6000 && times < 10; i++) {
        FILE *file = fopen(path, "r");

        CHECK(file != NULL);
        if (!file || fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
            state = 0;
        if (file)
            (void)fclose(file);
        times = state == 'S' ? times + 1 : 0;
        (void)usleep(10000);
    }
    CHECK_EQ(state, 'S');
}

/* A real process is killed while it waits. */
static void killed_rank_is_named(void)
{
    static const char *const parts[] = {
        "rank 3 (pid ", ") died during capture",
        "waits for communicator '/default_pg/0//cpu//0'", NULL};
    static const uint8_t id[NCCL_UNIQUE_ID_BYTES] = {9};
    struct crystal_error err = {0};
    struct job j;
    pid_t child;
    int status, told[2];
    char byte;

    job_start(&j, 1);
    put(&j, "/default_pg/0//cpu//0", id, sizeof id);
    CHECK_EQ(pipe(told), 0);
    child = start_client(&j, "rank", told[1]);
    (void)close(told[1]);
    CHECK_EQ(read(told[0], &byte, 1), 1);
    (void)close(told[0]);
    wait_asleep(child); /* for the others to join */
    CHECK(crystal_client_open(j.coord_file, j.token_file, CRYSTAL_ROLE_RANK, 3, NULL,
                              &err) == NULL);
    CHECK_EQ(crystal_client_lost(j.agent), UINT32_MAX);
    (void)kill(child, SIGKILL);
    CHECK_EQ(waitpid(child, &status, 0), child);
    expect_stop(&j, parts);
    CHECK_EQ(crystal_client_lost(j.agent), 3);
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
    child = start_client(&j, "agent", STDOUT_FILENO);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    rank = NULL;
    for (int i = 0; i < 6000; i++) { /* until the death is noticed */
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
    CHECK_RUN(mismatch_names_both_sides);
    CHECK_RUN(sends_and_receives_must_fit);
    CHECK_RUN(virtual_root_without_contents);
    CHECK_RUN(deadlock_is_explained);
    CHECK_RUN(unknown_members_are_told);
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
