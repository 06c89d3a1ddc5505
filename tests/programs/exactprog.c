/* Every kind of operation with whole numbers, each result compared with its closed form
 * by every rank that gets one.
 *
 * usage: exactprog [--iterations I] [--elements E] [--per-node P] [--split]
 *                  [--shares sent|left-out|moving] [--floats] [--calls] [--last]
 *                  [--fail-rank R --fail kill|exit|hang|other]
 *
 * Ranks, library and ids as in nccl_program.h. Groups: the world, the ranks of each
 * target node (P in a row), and the rows across nodes (every P-th rank); with --split
 * made of the world by ncclCommSplit. Sizes are E elements and a few that do not
 * divide. Prints "rank R exact C" with the number of results that were compared, or
 * says which one is wrong and ends with 1.
 * --shares: an all-to-all of the world more, whose shares are 0, E / 2 or E elements.
 * Where nothing goes, "sent" sends and receives nothing, "left-out" makes no call, as
 * PyTorch's NCCL backend does; "moving" neither, and who gets nothing is another one in
 * each iteration.
 * --calls: ncclAlltoAll, ncclGather and ncclScatter of each group more, calls of no
 * elements.
 * --last: behind the last iteration an all-reduce of one element of the world.
 * --floats: the numbers are float64, which has all of these sums exactly.
 * --fail: in iteration 1 rank R dies of SIGKILL, exits with code 7, sleeps for ever, or
 * calls another operation than the others. EXACT_FAIL="R how" in the environment says
 * the same, for a job that has been captured with other arguments. EXACT_BEGUN=FOLDER
 * there: each rank makes a file there, named R, when it comes to iteration 1.
 */
#include "config.h"

#include "tests/programs/nccl_program.h"

#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct options {
    int iterations, elements, per_node, fail_rank, is_split, is_float, has_calls,
        has_last;
    const char *fail, *shares;
} options = {.iterations = 3,
             .elements = 1000,
             .per_node = 4,
             .fail_rank = -1,
             .fail = "",
             .shares = ""};

static struct group world, node, row;
static ncclStream_t stream;
static int64_t *in, *out; /* with --floats the bits of these */
static ncclDataType_t type = ncclInt64;
static int iteration, compared;
static size_t room; /* bytes of each */

/* What a rank puts into an operation at index i. */
static int64_t value(int lrank, int kind, int64_t i)
{
    return (int64_t)(lrank + 1) * 1000003 + (int64_t)iteration * 7919 +
           (int64_t)kind * 104729 + i * 31;
}

/* A group's members by crank. */
static int member(const struct group *g, int crank)
{
    if (g == &world)
        return crank;
    return g == &node ? rank / options.per_node * options.per_node + crank
                      : rank % options.per_node + crank * options.per_node;
}

static int64_t sum(const struct group *g, int kind, int64_t i)
{
    int64_t all = 0;

    for (int k = 0; k < g->size; k++)
        all += value(member(g, k), kind, i);
    return all;
}

/* A number as it stands in memory; -1 is what fill() leaves where nothing comes. */
static int64_t bits(int64_t number)
{
    const double real = (double)number;
    int64_t ret = number;

    if (options.is_float && number != -1)
        memcpy(&ret, &real, sizeof ret);
    return ret;
}

static void fill(int kind, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        in[i] = bits(value(rank, kind, i));
    memset(out, 0xff, room);
}

static void compare(const char *what, int64_t at, int64_t want)
{
    compared++;
    if (out[at] == bits(want))
        return;
    fprintf(stderr,
            "rank %d iteration %d: %s of %d elements: element %" PRId64 " is %" PRId64
            ", want %" PRId64 "\n",
            rank, iteration, what, options.elements, at, out[at], bits(want));
    exit(1);
}

static void all_reduce(const struct group *g, int64_t e)
{
    fill(1, e);
    OK(AllReduce(in, out, (size_t)e, type, ncclSum, g->comm, stream));
    OK(stream_synchronize(stream));
    for (int64_t i = 0; i < e; i++)
        compare("all-reduce", i, sum(g, 1, i));
    OK(AllReduce(in, out, (size_t)e, type, ncclMax, g->comm, stream));
    OK(stream_synchronize(stream));
    for (int64_t i = 0; i < e; i++)
        compare("all-reduce (max)", i, value(member(g, g->size - 1), 1, i));
}

static void all_gather(const struct group *g, int64_t e)
{
    fill(2, e);
    OK(AllGather(in, out, (size_t)e, type, g->comm, stream));
    OK(stream_synchronize(stream));
    for (int k = 0; k < g->size; k++)
        for (int64_t i = 0; i < e; i++)
            compare("all-gather", k * e + i, value(member(g, k), 2, i));
}

static void reduce_scatter(const struct group *g, int64_t e)
{
    fill(3, e * g->size);
    OK(ReduceScatter(in, out, (size_t)e, type, ncclSum, g->comm, stream));
    OK(stream_synchronize(stream));
    for (int64_t i = 0; i < e; i++)
        compare("reduce-scatter", i, sum(g, 3, g->crank * e + i));
}

static void broadcast(const struct group *g, int root, int64_t e)
{
    fill(4 + root, e);
    OK(Broadcast(in, out, (size_t)e, type, root, g->comm, stream));
    OK(stream_synchronize(stream));
    for (int64_t i = 0; i < e; i++)
        compare("broadcast", i, value(member(g, root), 4 + root, i));
}

static void reduce(const struct group *g, int root, int64_t e)
{
    fill(100 + root, e);
    OK(Reduce(in, out, (size_t)e, type, ncclSum, root, g->comm, stream));
    OK(stream_synchronize(stream));
    for (int64_t i = 0; g->crank == root && i < e; i++)
        compare("reduce", i, sum(g, 100 + root, i));
}

/* To the next one and from the one before: real to virtual, virtual to real, and from
 * one sandbox node to another. */
static void shift(const struct group *g, int64_t e)
{
    int next = (g->crank + 1) % g->size, before = (g->crank + g->size - 1) % g->size;

    fill(200, e);
    OK(GroupStart());
    OK(Send(in, (size_t)e, type, next, g->comm, stream));
    OK(Recv(out, (size_t)e, type, before, g->comm, stream));
    OK(GroupEnd());
    OK(stream_synchronize(stream));
    for (int64_t i = 0; i < e; i++)
        compare("message", i, value(member(g, before), 200, i));
}

static void all_to_all(const struct group *g, int64_t e)
{
    fill(300, e * g->size);
    OK(GroupStart());
    for (int k = 0; k < g->size; k++) {
        OK(Send(in + k * e, (size_t)e, type, k, g->comm, stream));
        OK(Recv(out + k * e, (size_t)e, type, k, g->comm, stream));
    }
    OK(GroupEnd());
    OK(stream_synchronize(stream));
    for (int k = 0; k < g->size; k++)
        for (int64_t i = 0; i < e; i++)
            compare("all-to-all", k * e + i,
                    value(member(g, k), 300, g->crank * e + i));
}

/* What goes from one crank to another. */
static int64_t share(int from, int to, int64_t e)
{
    int moved = strcmp(options.shares, "moving") == 0 ? iteration : 0;

    return (from + 2 * to + moved) % 3 * e / 2;
}

static void uneven(const struct group *g, int64_t e)
{
    const int is_sent = strcmp(options.shares, "sent") == 0;

    fill(400, e * g->size);
    OK(GroupStart());
    for (int k = 0; k < g->size; k++) {
        size_t to = (size_t)share(g->crank, k, e), from = (size_t)share(k, g->crank, e);

        if (to || is_sent)
            OK(Send(in + k * e, to, type, k, g->comm, stream));
        if (from || is_sent)
            OK(Recv(out + k * e, from, type, k, g->comm, stream));
    }
    OK(GroupEnd());
    OK(stream_synchronize(stream));
    for (int k = 0; k < g->size; k++)
        for (int64_t i = 0; i < e; i++)
            compare("uneven all-to-all", k * e + i,
                    i < share(k, g->crank, e)
                        ? value(member(g, k), 400, g->crank * e + i)
                        : -1);
}

static void call_all_to_all(const struct group *g, int64_t e)
{
    fill(500, e * g->size);
    OK(AlltoAll(in, out, (size_t)e, type, g->comm, stream));
    OK(stream_synchronize(stream));
    for (int k = 0; k < g->size; k++)
        for (int64_t i = 0; i < e; i++)
            compare("all-to-all call", k * e + i,
                    value(member(g, k), 500, g->crank * e + i));
}

static void call_gather(const struct group *g, int root, int64_t e)
{
    fill(600 + root, e);
    OK(Gather(in, out, (size_t)e, type, root, g->comm, stream));
    OK(stream_synchronize(stream));
    for (int k = 0; g->crank == root && k < g->size; k++)
        for (int64_t i = 0; i < e; i++)
            compare("gather", k * e + i, value(member(g, k), 600 + root, i));
}

static void call_scatter(const struct group *g, int root, int64_t e)
{
    fill(700 + root, e * g->size);
    OK(Scatter(in, out, (size_t)e, type, root, g->comm, stream));
    OK(stream_synchronize(stream));
    for (int64_t i = 0; i < e; i++)
        compare("scatter", i, value(member(g, root), 700 + root, g->crank * e + i));
}

/* Those that the library makes of sends and receives, among others and one behind the
 * other. */
static void calls(const struct group *g, int64_t e)
{
    call_all_to_all(g, e);
    all_gather(g, e);
    call_all_to_all(g, e + 1);
    call_all_to_all(g, 1);
    for (int root = 0; root < g->size; root += 3) {
        call_gather(g, root, e);
        shift(g, e);
        call_scatter(g, root, e);
        all_reduce(g, e);
    }
}

/* Collectives of no elements, in which nobody waits, and a message of none. */
static void nothing(const struct group *g)
{
    OK(AllReduce(in, out, 0, type, ncclSum, g->comm, stream));
    OK(AlltoAll(in, out, 0, type, g->comm, stream));
    OK(Gather(in, out, 0, type, 0, g->comm, stream));
    shift(g, 0);
}

static void everything(const struct group *g, int64_t e)
{
    if (options.has_calls) {
        nothing(g);
        call_all_to_all(g, 2);
    }
    all_reduce(g, e);
    all_gather(g, e);
    reduce_scatter(g, e);
    for (int root = 0; root<g->size; root += g->size> 4 ? 5 : 1) {
        broadcast(g, root, e);
        reduce(g, root, e);
    }
    shift(g, e);
    all_to_all(g, e);
    if (options.has_calls)
        calls(g, e);
}

static void tell_begun(void)
{
    const char *folder = getenv("EXACT_BEGUN");
    char path[4096];
    FILE *file;

    if (!folder)
        return;
    (void)snprintf(path, sizeof path, "%s/%d", folder, rank);
    file = fopen(path, "w");
    if (!file || fclose(file))
        die("cannot write below EXACT_BEGUN");
}

static void fail_here(void)
{
    if (strcmp(options.fail, "kill") == 0)
        (void)raise(SIGKILL);
    if (strcmp(options.fail, "exit") == 0)
        exit(7);
    while (strcmp(options.fail, "hang") == 0)
        (void)pause();
    if (strcmp(options.fail, "other") == 0)
        broadcast(&world, 0, 3);
}

/* A group that is made of the world. */
static void split(int color, int key, int size, struct group *ret)
{
    ret->size = size;
    OK(CommSplit(world.comm, color, key, &ret->comm, NULL));
    OK(CommUserRank(ret->comm, &ret->crank));
}

static void make_groups(void)
{
    int per_node = options.per_node, nodes = world_size / per_node;

    make_group(0, 1, world_size, &world);
    if (options.is_split) {
        split(rank / per_node, rank, per_node, &node);
        split(rank % per_node, rank, nodes, &row);
        return;
    }
    for (int i = 0; i < nodes; i++)
        make_group(i * per_node, 1, per_node, &node);
    for (int i = 0; i < per_node; i++)
        make_group(i, per_node, nodes, &row);
}

static void read_environment(void)
{
    static char how[16];
    const char *text = getenv("EXACT_FAIL");

    if (text && sscanf(text, "%d %15s", &options.fail_rank, how) == 2)
        options.fail = how;
}

static void parse(int argc, char **argv)
{
    static const struct option list[] = {{"iterations", 1, NULL, 'i'},
                                         {"elements", 1, NULL, 'e'},
                                         {"per-node", 1, NULL, 'p'},
                                         {"fail-rank", 1, NULL, 'r'},
                                         {"fail", 1, NULL, 'f'},
                                         {"split", 0, NULL, 's'},
                                         {"shares", 1, NULL, 'z'},
                                         {"floats", 0, NULL, 'd'},
                                         {"calls", 0, NULL, 'c'},
                                         {"last", 0, NULL, 'l'},
                                         {NULL, 0, NULL, 0}};
    int c;

    while ((c = getopt_long(argc, argv, "", list, NULL)) >= 0) {
        int number = optarg ? atoi(optarg) : 0;

        if (c == 'i')
            options.iterations = number;
        else if (c == 'e')
            options.elements = number;
        else if (c == 'p')
            options.per_node = number;
        else if (c == 'r')
            options.fail_rank = number;
        else if (c == 's')
            options.is_split = 1;
        else if (c == 'd')
            options.is_float = 1;
        else if (c == 'c')
            options.has_calls = 1;
        else if (c == 'l')
            options.has_last = 1;
        else if (c == 'f')
            options.fail = optarg;
        else if (c == 'z')
            options.shares = optarg;
        else
            die("see the head of exactprog.c");
    }
}

int main(int argc, char **argv)
{
    read_environment();
    parse(argc, argv);
    type = options.is_float ? ncclFloat64 : ncclInt64;
    program_begin(NULL);
    if (options.per_node < 1 || world_size % options.per_node || options.elements < 1)
        die("--per-node does not divide the ranks");
    room = sizeof *in * (size_t)(options.elements + 2) * (size_t)world_size;
    in = malloc(room);
    out = malloc(room);
    if (!in || !out)
        die("out of memory");
    OK(stream_create(&stream));
    make_groups();
    for (iteration = 0; iteration < options.iterations; iteration++) {
        if (iteration == 1)
            tell_begun();
        if (rank == options.fail_rank && iteration == 1)
            fail_here();
        everything(&world, options.elements);
        if (options.shares[0])
            uneven(&world, options.elements);
        everything(&row, options.elements + 1);
        everything(&node, options.elements / 2 + 1);
        if (nccl.hint)
            nccl.hint();
    }
    if (options.has_last)
        all_reduce(&world, 1);
    OK(CommDestroy(row.comm));
    OK(CommDestroy(node.comm));
    OK(CommDestroy(world.comm));
    printf("rank %d exact %d\n", rank, compared);
    free(in);
    free(out);
    return 0;
}
