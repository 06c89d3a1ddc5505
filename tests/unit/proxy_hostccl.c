/* The bootstrap proxy and hostccl, two sides of one protocol that were written apart:
 * processes make communicators with members that do not run, over the built net plugin;
 * the node is nodeserver. Ids of both origins; a real rank that made the id tells the
 * node itself, as the coordinator would. */
#include "config.h"

#include "tests/check.h"
#include "tests/folders.h"
#include "tests/hostccl/ranks.h"

#define COUNT 1000

static FILE *to_server, *from_server;
static pid_t server;

static struct {
    int n;
    int real_count, real[8];
    int is_joined; /* real[0] is crank 0 and makes the id */
    ncclUniqueId id;
} now_case;

/* --- the node --- */

static void server_line(char *line, size_t bytes)
{
    if (!fgets(line, (int)bytes, from_server)) {
        printf("# nodeserver is gone\n");
        *line = '\0';
    }
}

static void server_start(int n, int per_node, const char *real)
{
    char program[4096], line[4200], n_text[16], per_node_text[16];
    const char *build = build_folder();
    int in[2], out[2];

    (void)snprintf(program, sizeof program, "%s/tests/programs/nodeserver", build);
    (void)snprintf(n_text, sizeof n_text, "%d", n);
    (void)snprintf(per_node_text, sizeof per_node_text, "%d", per_node);
    if (pipe(in) || pipe(out)) {
        printf("Bail out! no pipe\n");
        exit(1);
    }
    fflush(stdout);
    server = fork();
    if (server == 0) {
        (void)dup2(in[0], 0);
        (void)dup2(out[1], 1);
        close(in[1]);
        close(out[0]);
        execl(program, "nodeserver", "-n", n_text, "-g", per_node_text, "-r", real,
              NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_server = fdopen(in[1], "w");
    from_server = fdopen(out[0], "r");
    server_line(line, sizeof line);
    line[strcspn(line, "\n")] = '\0';
    CHECK(!strncmp(line, "board /dev/shm/", 15));
    (void)setenv("CRYSTAL_BOARD", line + strlen("board "), 1);
    server_line(line, sizeof line); /* id world, not used */
}

static void server_stop(void)
{
    char line[1024];
    int status = -1;

    fprintf(to_server, "status\n");
    fflush(to_server);
    server_line(line, sizeof line);
    CHECK_STR(line, "ok\n");
    fclose(to_server);
    fclose(from_server);
    (void)waitpid(server, &status, 0);
    CHECK_EQ(status, 0);
    (void)unsetenv("CRYSTAL_BOARD");
}

static void forge(const char *members)
{
    char line[1024];

    fprintf(to_server, "forge group %s\n", members);
    fflush(to_server);
    server_line(line, sizeof line);
    CHECK(!strncmp(line, "id group ", 9));
    for (size_t i = 0; i < sizeof now_case.id; i++) {
        unsigned byte = 0;

        CHECK_EQ(sscanf(line + 9 + 2 * i, "%2x", &byte), 1);
        now_case.id.internal[i] = (char)byte;
    }
}

/* In the rank that made the id. */
static void join_group(const ncclUniqueId *id)
{
    char line[1024];

    fprintf(to_server, "join group ");
    for (size_t i = 0; i < sizeof *id; i++)
        fprintf(to_server, "%02x", (unsigned char)id->internal[i]);
    fprintf(to_server, " 0-%d\n", now_case.n - 1);
    fflush(to_server);
    server_line(line, sizeof line);
    RANK_CHECK(strcmp(line, "ok\n") == 0);
}

/* --- a rank --- */

static void reduce(ncclComm_t comm, int crank)
{
    float in[COUNT], out[COUNT], sum = 0;

    for (int i = 0; i < COUNT; i++)
        in[i] = (float)(crank + 1) * (float)(i % 7);
    RANK_CHECK(ncclAllReduce(in, out, COUNT, ncclFloat32, ncclSum, comm, NULL) ==
               ncclSuccess);
    RANK_CHECK(crystal_stream_synchronize(NULL) == ncclSuccess);
    for (int i = 0; i < now_case.real_count; i++)
        sum += (float)(now_case.real[i] + 1);
    for (int i = 0; i < COUNT; i++) /* virtual ranks add nothing */
        if (out[i] != sum * (float)(i % 7)) {
            printf("# rank %d: element %d is %g, want %g\n", crank, i, (double)out[i],
                   (double)(sum * (float)(i % 7)));
            ranks_failed++;
            break;
        }
}

static void rank_main(int index, int count)
{
    int crank = now_case.real[index];
    ncclComm_t comm = NULL;
    ncclUniqueId id = now_case.id;
    char text[16];

    (void)count;
    (void)snprintf(text, sizeof text, "%d", crank); /* members are all, in order */
    (void)setenv("CRYSTAL_LRANK", text, 1);
    if (now_case.is_joined) {
        id = ranks_id(0, index == 0);
        if (index == 0)
            join_group(&id);
    }
    RANK_CHECK(ncclCommInitRank(&comm, now_case.n, id, crank) == ncclSuccess);
    if (!comm)
        return;
    if (now_case.n <= 64)
        reduce(comm, crank);
    RANK_CHECK(ncclCommDestroy(comm) == ncclSuccess);
}

static void one(int n, int per_node, const char *real, int is_joined, int real_count,
                const int *cranks)
{
    char members[16];

    server_start(n, per_node, real);
    memset(&now_case, 0, sizeof now_case);
    now_case.n = n;
    now_case.is_joined = is_joined;
    now_case.real_count = real_count;
    memcpy(now_case.real, cranks, sizeof(int) * (size_t)real_count);
    (void)snprintf(members, sizeof members, "0-%d", n - 1);
    if (!is_joined)
        forge(members);
    CHECK_EQ(ranks_run(real_count, rank_main), 0);
    server_stop();
}

static const int first[8] = {0, 1, 2, 3, 4, 5, 6, 7};

static void one_of_two(void)
{
    one(2, 1, "0", 0, 1, first);
    one(2, 1, "0", 1, 1, first);
}

static void one_of_many(void)
{
    static const int last[1] = {15};

    one(5, 1, "0", 1, 1, first);
    one(16, 1, "15", 0, 1, last);
    one(64, 1, "0", 0, 1, first);
}

static void a_node_of_four(void)
{
    static const int second[4] = {4, 5, 6, 7};

    one(16, 4, "0-3", 1, 4, first);
    one(16, 4, "4-7", 0, 4, second);
}

static void two_nodes_apart(void)
{
    static const int apart[4] = {0, 1, 6, 7};

    one(8, 2, "0-1,6-7", 1, 4, apart);
}

static void one_of_8192(void)
{
    one(8192, 1, "0", 0, 1, first);
    one(8192, 1, "0", 1, 1, first);
}

int main(void)
{
    check_begin();
    CHECK_RUN(one_of_two);
    CHECK_RUN(one_of_many);
    CHECK_RUN(a_node_of_four);
    CHECK_RUN(two_nodes_apart);
    CHECK_RUN(one_of_8192);
    return check_end();
}
