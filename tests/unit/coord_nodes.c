/* A stage on two nodes at the coordinator: its agents learn each other's places, and
 * the right one is asked to make an id.
 */
#include "config.h"

#include "tests/coord_job.h"

#define EMULATE 3

static const uint8_t loopback[16] = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};

/* An agent that asks for the nodes. */
struct asking {
    struct crystal_client *agent;
    struct crystal_msg_node own, nodes[2];
    struct crystal_error err;
    int code;
    pthread_t thread;
};

static void *ask_main(void *context)
{
    struct asking *a = context;

    a->code = crystal_client_nodes(a->agent, &a->own, a->nodes, &a->err);
    return NULL;
}

static void ask(struct asking *a, struct crystal_client *agent, uint32_t node,
                uint32_t count, uint32_t port)
{
    memset(a, 0, sizeof *a);
    a->agent = agent;
    a->own = (struct crystal_msg_node){.node = node, .node_count = count, .port = port};
    CHECK_EQ(pthread_create(&a->thread, NULL, ask_main, a), 0);
}

static struct crystal_client *second_agent(const struct job *j)
{
    struct crystal_error err = {0};
    struct crystal_client *agent = crystal_client_open(
        j->coord_file, j->token_file, CRYSTAL_ROLE_AGENT, 1, NULL, &err);

    CHECK(agent);
    CHECK_EQ(crystal_client_begin(agent, EMULATE, &err), 0);
    return agent;
}

static void agents_learn_the_places(void)
{
    static const uint8_t own[16] = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 7};
    struct crystal_client *other;
    struct asking first, second;
    struct job j;

    job_start(&j, EMULATE);
    other = second_agent(&j);
    memset(&second, 0, sizeof second);
    second.agent = other;
    second.own = (struct crystal_msg_node){.node = 1, .node_count = 2, .port = 4002};
    memcpy(second.own.address, own, sizeof own); /* the user's word */
    CHECK_EQ(pthread_create(&second.thread, NULL, ask_main, &second), 0);
    memset(&first, 0, sizeof first);
    first.agent = j.agent;
    first.own =
        (struct crystal_msg_node){.node = 0, .node_count = 2, .port = 4001, .run = 12};
    CHECK_EQ(pthread_create(&first.thread, NULL, ask_main, &first), 0);
    (void)pthread_join(first.thread, NULL);
    (void)pthread_join(second.thread, NULL);
    CHECK_EQ(first.code, 0);
    CHECK_EQ(second.code, 0);
    CHECK(memcmp(first.nodes, second.nodes, sizeof first.nodes) == 0);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK_EQ(first.nodes[i].node, i);
        CHECK_EQ(first.nodes[i].node_count, 2);
        CHECK_EQ(first.nodes[i].port, 4001 + i);
    }
    CHECK_EQ(first.nodes[0].run, 12);
    CHECK(memcmp(first.nodes[0].address, loopback, 16) == 0);
    CHECK(memcmp(first.nodes[1].address, own, 16) == 0);
    crystal_client_close(other);
    job_stop(&j, 0);
}

/* --- waiting for each other --- */

static uint32_t come(struct crystal_client *agent, uint32_t node, uint32_t value)
{
    const struct crystal_msg_meet own = {.node = node, .node_count = 2, .value = value};
    struct crystal_error err = {0};
    uint32_t ticket = 0;

    CHECK_EQ(crystal_client_meet(agent, &own, &ticket, &err), 0);
    return ticket;
}

static void met(struct crystal_client *agent, uint32_t ticket, uint32_t value)
{
    struct crystal_error err = {0};
    uint32_t got = 0;

    CHECK_EQ(crystal_client_met(agent, ticket, &got, &err), 0);
    CHECK_EQ(got, value);
    CHECK_EQ(crystal_client_met(agent, ticket, &got, &err), -EINVAL);
}

/* As often as they like, whoever comes first, and then for as long as it takes. */
static void agents_wait_for_each_other(void)
{
    struct crystal_client *other;
    struct job j;

    job_nodes_ns = 1000000000;
    job_start(&j, EMULATE);
    job_nodes_ns = 0;
    other = second_agent(&j);
    for (uint32_t round = 1; round <= 3; round++) {
        const int is_first = round % 2;
        uint32_t one = come(is_first ? j.agent : other, !is_first, 70 + round), two;

        if (round == 2)
            CHECK_EQ(crystal_client_wait_stop(j.agent, 1500, NULL), -ETIMEDOUT);
        CHECK_EQ(crystal_client_poll(is_first ? j.agent : other, one), 0);
        two = come(is_first ? other : j.agent, is_first, 70 + round);
        met(is_first ? j.agent : other, one, 70 + round);
        met(is_first ? other : j.agent, two, 70 + round);
    }
    crystal_client_close(other);
    job_stop(&j, 0);
}

static void nobody_waits_for_one_that_has_failed(void)
{
    struct crystal_error err = {0};
    struct crystal_client *other;
    uint32_t ticket, value;
    struct job j;

    job_start(&j, EMULATE);
    other = second_agent(&j);
    ticket = come(j.agent, 0, 1);
    CHECK_EQ(crystal_client_fail(other, "rank 13 ended with code 7"), 0);
    CHECK_EQ(crystal_client_met(j.agent, ticket, &value, &err), -ECANCELED);
    CHECK_STR(err.text, "rank 13 ended with code 7");
    crystal_client_close(other);
    job_stop(&j, 0);
}

/* --- who makes an id --- */

static _Atomic uint32_t forged_by;

static int forge_as(uint32_t who, int forge, struct crystal_msg_comm_id *msg)
{
    if (!forge)
        return 0;
    atomic_store(&forged_by, who);
    memset(msg->id, (int)who, sizeof msg->id);
    return 0;
}

static int forge_first(void *context, int forge, struct crystal_msg_comm_id *msg,
                       const char *name, const uint32_t *members,
                       struct crystal_error *err)
{
    (void)context;
    (void)name;
    (void)members;
    (void)err;
    return forge_as(10, forge, msg);
}

static int forge_second(void *context, int forge, struct crystal_msg_comm_id *msg,
                        const char *name, const uint32_t *members,
                        struct crystal_error *err)
{
    (void)context;
    (void)name;
    (void)members;
    (void)err;
    return forge_as(11, forge, msg);
}

static uint8_t id_of(const struct job *j, int group, const char *members)
{
    int fd = store_connect(crystal_coord_store_port(j->coord));
    uint8_t byte = 0, *value;
    size_t bytes = 0;
    char key[64];

    (void)snprintf(key, sizeof key, "/crystal/group/%d", group);
    store_set(fd, key, members, strlen(members));
    (void)snprintf(key, sizeof key, "/default_pg/%d//cpu//0", group);
    value = (uint8_t *)store_wait_get(fd, key, &bytes);
    CHECK_EQ(bytes, NCCL_UNIQUE_ID_BYTES);
    if (value)
        byte = value[0];
    free(value);
    (void)close(fd);
    return byte;
}

/* Ranks 0 and 1 run on node 0, ranks 2 and 3 on node 1. */
static void the_lowest_node_makes_the_id(void)
{
    struct crystal_client *other;
    struct asking first, second;
    struct job j;

    job_start(&j, EMULATE);
    other = second_agent(&j);
    crystal_client_on_comm_id(j.agent, forge_first, NULL);
    crystal_client_on_comm_id(other, forge_second, NULL);
    ask(&first, j.agent, 0, 2, 4001);
    ask(&second, other, 1, 2, 4002);
    (void)pthread_join(first.thread, NULL);
    (void)pthread_join(second.thread, NULL);
    CHECK_EQ(id_of(&j, 1, "8,2"), 11);
    CHECK_EQ(id_of(&j, 2, "8,3,1"), 10);
    CHECK_EQ(id_of(&j, 3, "4,2,3"), 11);
    CHECK_EQ(id_of(&j, 4, "4,0"), 10);
    crystal_client_close(other);
    job_stop(&j, 0);
}

/* --- faults --- */

static void two_agents_of_one_node(void)
{
    struct crystal_client *other;
    struct asking first, second;
    struct job j;

    job_start(&j, EMULATE);
    other = second_agent(&j);
    ask(&first, j.agent, 1, 2, 4001);
    ask(&second, other, 1, 2, 4002);
    (void)pthread_join(first.thread, NULL);
    (void)pthread_join(second.thread, NULL);
    CHECK_EQ(first.code, -ECANCELED);
    CHECK_EQ(second.code, -ECANCELED);
    CHECK_STR(first.err.text, "coordinator: a second agent of node 1 of 2 has come; is "
                              "another step running in this job?");
    CHECK_STR(second.err.text, first.err.text);
    crystal_client_close(other);
    job_stop(&j, 0);
}

static void an_agent_that_does_not_come(void)
{
    struct asking first;
    struct job j;

    job_nodes_ns = 1000000000;
    job_start(&j, EMULATE);
    job_nodes_ns = 0;
    ask(&first, j.agent, 0, 2, 4001);
    (void)pthread_join(first.thread, NULL);
    CHECK_EQ(first.code, -ECANCELED);
    CHECK_STR(first.err.text,
              "coordinator: the agent of node 1 of 2 has not come within "
              "1 s; see log/ in the job directory");
    job_stop(&j, 0);
}

/* What is no node ends the connection, as any broken message does. */
static void numbers_out_of_range(void)
{
    static const struct crystal_msg_node bad[] = {
        {.node = 2, .node_count = 2, .port = 1},
        {.node = 0, .node_count = 1, .port = 1},
        {.node = 0, .node_count = CRYSTAL_NODES_MAX + 1, .port = 1},
        {.node = 0, .node_count = 2, .port = 0},
        {.node = 0, .node_count = 2, .port = 65536}};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct crystal_msg_node nodes[2];
        struct crystal_error err = {0};
        struct crystal_msg_node own = bad[i];
        struct job j;

        job_start(&j, EMULATE);
        CHECK_EQ(crystal_client_nodes(j.agent, &own, nodes, &err), -ECANCELED);
        CHECK_HAS(err.text, "coordinator: the agent of node 0 (pid ");
        job_stop(&j, 0);
    }
}

static void meetings_out_of_range(void)
{
    static const struct crystal_msg_meet bad[] = {
        {.node = 2, .node_count = 2},
        {.node = 0, .node_count = 1},
        {.node = 0, .node_count = CRYSTAL_NODES_MAX + 1}};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct crystal_error err = {0};
        uint32_t ticket, value;
        struct job j;

        job_start(&j, EMULATE);
        CHECK_EQ(crystal_client_meet(j.agent, &bad[i], &ticket, &err), 0);
        CHECK_EQ(crystal_client_met(j.agent, ticket, &value, &err), -ECANCELED);
        CHECK_HAS(err.text, "coordinator: the agent of node 0 (pid ");
        job_stop(&j, 0);
    }
}

int main(void)
{
    check_begin();
    CHECK_RUN(agents_learn_the_places);
    CHECK_RUN(agents_wait_for_each_other);
    CHECK_RUN(nobody_waits_for_one_that_has_failed);
    CHECK_RUN(the_lowest_node_makes_the_id);
    CHECK_RUN(two_agents_of_one_node);
    CHECK_RUN(an_agent_that_does_not_come);
    CHECK_RUN(numbers_out_of_range);
    CHECK_RUN(meetings_out_of_range);
    return check_end();
}
