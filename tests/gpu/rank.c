/* One rank of stock NCCL on a GPU, the others of its node real, too, and all further
 * ones virtual, with checked results.
 *
 * usage: rank -n N -r RANK [-g REAL | -a RANKS] -i FILE [-c COUNT,...] [-t TYPES]
 *        COMBINATION...
 * REAL (default 1) consecutive ranks are real, each a process like this one on a GPU of
 * its own; RANK is one of them, and its rank modulo REAL the GPU. With -a those of a
 * list (0,7) are real, apart from each other, and share the first GPU. FILE holds one
 * unique id per line (256 digits), one for each combination. A combination is
 * ALGO:PROTO as NCCL_ALGO and NCCL_PROTO have them, or "own" for NCCL's own choice. For
 * each, a communicator is made, every collective is run with every operation and type
 * (TYPES: all, or the names float, half, int, ... with commas) at every COUNT, and a
 * communicator is destroyed; "# begin" and "# end" lines frame it.
 *
 * Everything of CUDA and NCCL comes by dlopen (libcudart.so.13 or .12, libnccl.so.2, or
 * the paths in CUDART and NCCL), so that nothing of them is needed to build. Virtual
 * ranks contribute stand-ins: zeros to a reduction, a gathered block is that of a real
 * rank, a message from a virtual rank or root is zeros. Of a reduction's elements each
 * real rank contributes its share and zeros to the others', so that the result holds
 * every value once where every rank's input went in once. NCCL does not tell a plugin
 * which operation a reduction is, and there is no recording here that does: so sum, max
 * and avg are run, where zeros are right for the values used; an all-reduce's integers,
 * which whoever completes the sum divides, are not averaged; and NCCL has no PAT for a
 * reduce-scatter that scales, as an average does. TAP on standard output; a hang ends
 * the process after 6 s with "Bail out!".
 */
#include "config.h"

#include "runtime/nccl_abi.h"

#include "tests/gpu/stock.h"
#include "tests/gpu/values.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TO_DEVICE 1
#define TO_HOST   2
#define REALS_MAX 64

/* For a call, set-up and destruction. RANK_LIMIT_S says another one, for a machine that
 * is loaded and has no GPU whose time counts. */
static unsigned limit_s = 6;

static ncclComm_t comm;
static void *stream;
static int n, rank, tests, failures, shown;
static int reals = 1, real[REALS_MAX]; /* real ranks, ascending */
static unsigned char *in, *out;        /* on the device */
static unsigned char *host, *want;
static size_t room; /* of each of the four */
static char doing[128] = "start";

static void must(int result, const char *what)
{
    if (result) {
        printf("Bail out! %s in %s: %d, %s\n", what, doing, result,
               stock_nccl.GetLastError ? stock_nccl.GetLastError(comm) : "");
        fflush(stdout);
        _exit(1);
    }
}

static void on_alarm(int number)
{
    static const char text[] = "Bail out! no end of ";

    (void)number;
    (void)!write(1, text, sizeof text - 1);
    (void)!write(1, doing, strlen(doing));
    (void)!write(1, "\n", 1);
    _exit(1);
}

/* Where a rank stands among the real ones; -1: virtual. */
static int place_of(int r)
{
    for (int i = 0; i < reals; i++)
        if (real[i] == r)
            return i;
    return -1;
}

static bool is_real(int r)
{
    return place_of(r) >= 0;
}

static int virtual_root(void)
{
    int r = (real[0] + 1) % n;

    while (is_real(r))
        r = (r + 1) % n;
    return r;
}

/* --- one call --- */

enum call {
    SUM_ALL,
    SCATTER,
    REDUCE,
    GATHER,
    CAST_REAL,
    CAST_VIRTUAL,
    SWAP,
    ALL_TO_ALL,
    CALLS
};

static const char *const call_names[CALLS] = {"all-reduce",
                                              "reduce-scatter",
                                              "reduce",
                                              "all-gather",
                                              "broadcast from a real root",
                                              "broadcast from a virtual root",
                                              "send and receive",
                                              "all-to-all"};

static bool has_operation(enum call call)
{
    return call <= REDUCE;
}

static ncclResult_t issue(enum call call, size_t count, ncclDataType_t type,
                          ncclRedOp_t op)
{
    size_t bytes = crystal_dtype_bytes(type);
    ncclResult_t result = ncclSuccess;

    switch (call) {
    case SUM_ALL:
        return stock_nccl.AllReduce(in, out, count, type, op, comm, stream);
    case SCATTER:
        return stock_nccl.ReduceScatter(in, out, count, type, op, comm, stream);
    case REDUCE:
        return stock_nccl.Reduce(in, out, count, type, op, real[reals - 1], comm,
                                 stream);
    case GATHER:
        return stock_nccl.AllGather(in, out, count, type, comm, stream);
    case CAST_REAL:
        return stock_nccl.Broadcast(in, out, count, type, real[reals - 1], comm,
                                    stream);
    case CAST_VIRTUAL:
        return stock_nccl.Broadcast(in, out, count, type, virtual_root(), comm, stream);
    case ALL_TO_ALL:
        stock_nccl.GroupStart();
        for (int r = 0; r < n && !result; r++) {
            result = stock_nccl.Send(in + (size_t)r * count * bytes, count, type, r,
                                     comm, stream);
            if (!result)
                result = stock_nccl.Recv(out + (size_t)r * count * bytes, count, type,
                                         r, comm, stream);
        }
        return stock_nccl.GroupEnd();
    default:
        stock_nccl.GroupStart();
        stock_nccl.Send(in, count, type, (rank + 1) % n, comm, stream);
        stock_nccl.Recv(out, count, type, (rank + n - 1) % n, comm, stream);
        return stock_nccl.GroupEnd();
    }
}

/* Where a rank's values begin; each real rank has values of its own. */
static size_t shift_of(enum call call, int r)
{
    return call == GATHER || call == SWAP || call == ALL_TO_ALL ? (size_t)place_of(r)
                                                                : 0;
}

/* This rank's input. */
static void input_fill(enum call call, size_t count, ncclDataType_t type)
{
    const size_t bytes = crystal_dtype_bytes(type);

    values_fill(host, type, shift_of(call, rank), count, 1);
    for (size_t i = 0; has_operation(call) && reals > 1 && i < count; i++)
        if (i % (size_t)reals != (size_t)place_of(rank))
            memset(host + i * bytes, 0, bytes);
}

/* Fills want with what virtual ranks' stand-ins make of the inputs; returns how many
 * elements. */
static size_t expect(enum call call, size_t count, ncclDataType_t type, ncclRedOp_t op)
{
    const size_t bytes = crystal_dtype_bytes(type);
    int divide = op == ncclAvg && has_operation(call) ? n : 1;
    int before = (rank + n - 1) % n;

    switch (call) {
    case SCATTER:
        values_fill(want, type, (size_t)rank * count, count, divide);
        return count;
    case REDUCE:
        values_fill(want, type, 0, count, divide);
        return rank == real[reals - 1] ? count : 0;
    case GATHER: /* of a virtual rank that of some real one */
        for (int r = 0; r < n; r++)
            values_fill(want + (size_t)r * count * bytes, type,
                        is_real(r) ? shift_of(call, r) : 0, count, 1);
        return (size_t)n * count;
    case CAST_VIRTUAL:
        memset(want, 0, count * bytes);
        return count;
    case SWAP:
        memset(want, 0, count * bytes);
        if (is_real(before))
            values_fill(want, type, shift_of(call, before), count, 1);
        return count;
    case ALL_TO_ALL:
        memset(want, 0, (size_t)n * count * bytes);
        for (int i = 0; i < reals; i++)
            values_fill(want + (size_t)real[i] * count * bytes, type,
                        (size_t)i + (size_t)rank * count, count, 1);
        return (size_t)n * count;
    default:
        values_fill(want, type, 0, count, divide);
        return count;
    }
}

/* Element i is what it should be. */
static bool is_right(enum call call, size_t i, size_t count, ncclDataType_t type)
{
    const size_t bytes = crystal_dtype_bytes(type);
    unsigned char value[8];

    if (memcmp(host + i * bytes, want + i * bytes, bytes) == 0)
        return true;
    if (call != GATHER || is_real((int)(i / count)))
        return false;
    for (int r = 1; r < reals; r++) {
        values_fill(value, type, (size_t)r + i % count, 1, 1);
        if (memcmp(host + i * bytes, value, bytes) == 0)
            return true;
    }
    return false;
}

/* Runs one operation from fresh buffers; returns wrong elements. */
static size_t run_one(enum call call, size_t count, ncclDataType_t type, ncclRedOp_t op,
                      double *ret_seconds)
{
    size_t bytes = crystal_dtype_bytes(type), bad = 0;
    size_t inputs = call == SCATTER || call == ALL_TO_ALL ? (size_t)n * count : count;
    size_t outputs = expect(call, count, type, op);
    double began;

    (void)snprintf(doing, sizeof doing, "%s of %zu %s, %s", call_names[call], count,
                   values_name(type), values_op_name(op));
    input_fill(call, inputs, type);
    must(stock_cuda.memcpy(in, host, inputs * bytes, TO_DEVICE), "cudaMemcpy");
    must(stock_cuda.memset(out, 0xa5, outputs * bytes), "cudaMemset");
    must(stock_cuda.synchronize(), "cudaDeviceSynchronize");
    alarm(limit_s);
    began = stock_seconds();
    must((int)issue(call, count, type, op), "NCCL");
    must(stock_cuda.stream_synchronize(stream), "cudaStreamSynchronize");
    *ret_seconds = stock_seconds() - began;
    must(stock_cuda.memcpy(host, out, outputs * bytes, TO_HOST), "cudaMemcpy");
    if (memcmp(host, want, outputs * bytes) == 0)
        return 0;
    for (size_t i = 0; i < outputs; i++)
        if (!is_right(call, i, count, type) && bad++ < 2 && shown++ < 4) {
            printf("#   %s: element %zu of %zu is", doing, i, outputs);
            for (size_t b = bytes; b-- > 0;)
                printf("%s%02x", b + 1 == bytes ? " " : "", host[i * bytes + b]);
            printf(", want");
            for (size_t b = bytes; b-- > 0;)
                printf("%s%02x", b + 1 == bytes ? " " : "", want[i * bytes + b]);
            printf("\n");
        }
    return bad;
}

static bool is_asked(const char *types, ncclDataType_t type)
{
    return strcmp(types, "all") == 0 || strstr(types, values_name(type));
}

/* One TAP line: a call at a count with every asked type and operation. */
static void check(const char *combination, enum call call, size_t count,
                  const char *types)
{
    double least = 1e9, took;
    size_t runs = 0, bad_runs = 0;

    shown = 0;
    for (int type = 0; type < ncclNumTypes; type++) {
        if (!is_asked(types, (ncclDataType_t)type))
            continue;
        for (int op = ncclSum; op <= ncclAvg; op++) {
            if (op != ncclSum && !has_operation(call))
                continue;
            if (op == ncclProd || op == ncclMin ||
                (op == ncclAvg && call == SCATTER &&
                 strncmp(combination, "PAT", 3) == 0) || /* NCCL has none */
                (op == ncclAvg && call == SUM_ALL &&
                 !crystal_dtype_is_float((unsigned)type)) ||
                (op == ncclAvg && !values_can_divide((ncclDataType_t)type, n)))
                continue;
            bad_runs +=
                run_one(call, count, (ncclDataType_t)type, (ncclRedOp_t)op, &took) != 0;
            runs++;
            least = took < least ? took : least;
        }
    }
    tests++;
    failures += bad_runs > 0;
    printf("%s %d - n=%d %s %s of %zu: %zu runs, %zu wrong, fastest %.0f us\n",
           bad_runs ? "not ok" : "ok", tests, n, combination, call_names[call], count,
           runs, bad_runs, least * 1e6);
    fflush(stdout);
}

/* --- combinations --- */

static void choose(const char *combination)
{
    char text[64];
    char *colon;

    (void)unsetenv("NCCL_ALGO");
    (void)unsetenv("NCCL_PROTO");
    if (strcmp(combination, "own") == 0)
        return;
    (void)snprintf(text, sizeof text, "%s", combination);
    colon = strchr(text, ':');
    if (colon) {
        *colon = '\0';
        if (colon[1])
            (void)setenv("NCCL_PROTO", colon + 1, 1);
    }
    /* a ring for what the algorithm cannot do */
    if (strcmp(text, "Tree") == 0)
        (void)setenv("NCCL_ALGO", "allreduce:tree;allgather:ring;reducescatter:ring",
                     1);
    else if (strcmp(text, "PAT") == 0)
        (void)setenv("NCCL_ALGO", "allreduce:ring;allgather:pat;reducescatter:pat", 1);
    else
        (void)setenv("NCCL_ALGO", text, 1);
}

static void run_combination(const char *combination, FILE *ids, const char *counts,
                            const char *types)
{
    ncclUniqueId id;
    double began = stock_seconds();

    printf("# begin %s\n", combination);
    fflush(stdout);
    (void)snprintf(doing, sizeof doing, "ncclCommInitRank");
    stock_id(ids, &id);
    choose(combination);
    alarm(limit_s);
    must(stock_nccl.CommInitRank(&comm, n, id, rank), "ncclCommInitRank");
    printf("# n=%d %s: set-up in %.3f s\n", n, combination, stock_seconds() - began);
    for (int call = 0; call < CALLS; call++)
        for (const char *at = counts; *at;) {
            char *end;
            size_t count = strtoull(at, &end, 10);
            size_t most = (size_t)n * count * 8;

            if (most <= room && (call != ALL_TO_ALL || n <= 128) &&
                (call != CAST_VIRTUAL || n > reals))
                check(combination, (enum call)call, count, types);
            at = *end ? end + 1 : end;
        }
    (void)snprintf(doing, sizeof doing, "ncclCommDestroy");
    alarm(limit_s);
    must((int)stock_nccl.CommDestroy(comm), "ncclCommDestroy");
    alarm(0);
    printf("# end %s\n", combination);
    fflush(stdout);
}

/* The real ranks: a list, or REAL consecutive ones. */
static bool read_reals(const char *list)
{
    const int first = rank - rank % (reals > 0 ? reals : 1);

    if (list)
        for (reals = 0; *list && reals < REALS_MAX; list += *list == ',') {
            char *end;

            real[reals++] = (int)strtol(list, &end, 10);
            if (end == list)
                return false;
            list = end;
        }
    else
        for (int i = 0; i < reals && i < REALS_MAX; i++)
            real[i] = first + i;
    return reals >= 1 && reals <= REALS_MAX && reals <= n && is_real(rank);
}

int main(int argc, char **argv)
{
    const char *counts = "1,1000,100003", *types = "all", *list = NULL;
    FILE *ids = NULL;
    int option, version = 0;

    while ((option = getopt(argc, argv, "n:r:g:a:i:c:t:")) != -1)
        switch (option) {
        case 'n':
            n = atoi(optarg);
            break;
        case 'r':
            rank = atoi(optarg);
            break;
        case 'g':
            reals = atoi(optarg);
            break;
        case 'a':
            list = optarg;
            break;
        case 'i':
            ids = fopen(optarg, "r");
            break;
        case 'c':
            counts = optarg;
            break;
        case 't':
            types = optarg;
            break;
        default:
            return 2;
        }
    if (n < 2 || rank < 0 || rank >= n || !read_reals(list) || !ids || optind == argc)
        return 2;
    signal(SIGALRM, on_alarm);
    if (getenv("RANK_LIMIT_S"))
        limit_s = (unsigned)strtoul(getenv("RANK_LIMIT_S"), NULL, 10);
    alarm(5 * limit_s);
    stock_open();
    must(stock_cuda.set_device(list ? 0 : place_of(rank)), "cudaSetDevice");
    must(stock_cuda.stream_create(&stream, 1), "cudaStreamCreate");
    must(stock_nccl.GetVersion(&version), "ncclGetVersion");
    printf("# NCCL %d\n", version);
    room = (size_t)256 << 20;
    must(stock_cuda.malloc((void **)&in, room), "cudaMalloc");
    must(stock_cuda.malloc((void **)&out, room), "cudaMalloc");
    host = malloc(room);
    want = malloc(room);
    if (!host || !want)
        return 1;
    for (int i = optind; i < argc; i++)
        run_combination(argv[i], ids, counts, types);
    (void)fclose(ids);
    printf("1..%d\n", tests);
    return failures ? 1 : 0;
}
