/* Ends of operations in a trace, against a library whose work ends at times that are
 * known: each piece begins when it is issued or when the one before it has ended, and
 * takes NULL_NCCL_DELAY_US. The recorder is loaded into a child, which issues.
 */
#include "config.h"

#include "runtime/crystal_stream.h"
#include "runtime/env.h"
#include "runtime/trace.h"

#include "tests/check.h"
#include "tests/traces.h"

#include <dlfcn.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define RING 960 /* operations that may be under way in a stream */

static char directory[64], build[PATH_MAX];

/* What a child does. */
struct job {
    const char *library; /* in tests/fake */
    unsigned delay_us, calls;
    int is_grouped;    /* all calls in one group */
    int does_wait;     /* for its work, */
    int is_told, dies; /* then tells of an iteration, then is killed */
};

struct library {
    ncclResult_t (*comm_init)(ncclComm_t *, int, ncclUniqueId, int);
    ncclResult_t (*all_reduce)(const void *, void *, size_t, ncclDataType_t,
                               ncclRedOp_t, ncclComm_t, ncclStream_t);
    ncclResult_t (*group_start)(void);
    ncclResult_t (*group_end)(void);
    ncclResult_t (*stream_create)(ncclStream_t *);
    ncclResult_t (*stream_synchronize)(ncclStream_t);
    void (*hint)(void);
};

static void open_recorder(struct library *ret)
{
    char path[PATH_MAX + 64];
    void *handle;

    (void)snprintf(path, sizeof path, "%s/.libs/libcrystal-nccl.so", build);
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        _exit(3);
    }
    *(void **)&ret->comm_init = dlsym(handle, "ncclCommInitRank");
    *(void **)&ret->all_reduce = dlsym(handle, "ncclAllReduce");
    *(void **)&ret->group_start = dlsym(handle, "ncclGroupStart");
    *(void **)&ret->group_end = dlsym(handle, "ncclGroupEnd");
    *(void **)&ret->stream_create = dlsym(handle, "crystal_stream_create");
    *(void **)&ret->stream_synchronize = dlsym(handle, "crystal_stream_synchronize");
    *(void **)&ret->hint = dlsym(handle, "crystal_iteration_hint");
}

static int issue(const struct job *job)
{
    static float value;
    struct library l;
    ncclUniqueId id = {{1}};
    ncclComm_t comm;
    ncclStream_t stream;
    int code = 0;

    open_recorder(&l);
    code |= l.comm_init(&comm, 1, id, 0) | l.stream_create(&stream);
    if (job->is_grouped)
        code |= l.group_start();
    for (unsigned i = 0; i < job->calls && !code; i++)
        code |= l.all_reduce(&value, &value, 1, ncclFloat32, ncclSum, comm, stream);
    if (job->is_grouped)
        code |= l.group_end();
    if (job->does_wait)
        code |= l.stream_synchronize(stream);
    if (job->is_told)
        l.hint();
    if (job->dies)
        (void)kill(getpid(), SIGKILL);
    return code;
}

/* The child's wait status; what it said is in `said`. */
static int run(const struct job *job, char said[512])
{
    char text[PATH_MAX + 64];
    int status = -1, to_us[2];
    ssize_t count;
    pid_t pid;

    if (pipe(to_us))
        return -1;
    (void)fflush(stdout);
    pid = fork();
    if (!pid) {
        (void)snprintf(text, sizeof text, "%s/tests/fake/.libs/%s", build,
                       job->library);
        (void)setenv(CRYSTAL_ENV_PASS_LIBRARY, text, 1);
        (void)setenv(CRYSTAL_ENV_TRACE_DIR, directory, 1);
        (void)setenv(CRYSTAL_ENV_LRANK, "0", 1);
        (void)snprintf(text, sizeof text, "%u", job->delay_us);
        (void)setenv("NULL_NCCL_DELAY_US", text, 1);
        (void)dup2(to_us[1], STDERR_FILENO);
        exit(issue(job)); /* the recorder ends the trace from here */
    }
    (void)close(to_us[1]);
    count = read(to_us[0], said, 511); /* up to the end: one sentence or none */
    said[count > 0 ? count : 0] = 0;
    (void)close(to_us[0]);
    (void)waitpid(pid, &status, 0);
    return status;
}

/* An operation that waits for the one before it takes exactly its time, whenever the
 * library is asked; another one begins when the recorder reads the clock, a little
 * before the library does. */
static void ends_are_exact(void)
{
    const struct job job = {"null_nccl.so", 500, 300, .does_wait = 1};
    struct crystal_trace trace = {0};
    uint64_t ended_ns = 0;
    unsigned exact = 0;
    char said[512];

    CHECK_EQ(run(&job, said), 0);
    CHECK_EQ(trace_read(directory, 0, &trace), 0);
    CHECK_EQ(trace_count(&trace, CRYSTAL_OP_DONE), 300);
    for (uint64_t i = 0; i < trace.op_count; i++) {
        const struct crystal_op *done, *op = &trace.ops[i];

        if (op->kind != CRYSTAL_OP_COLL)
            continue;
        done = trace_done(&trace, i);
        CHECK(done != NULL);
        if (!done)
            break;
        if (ended_ns > op->t_ns) {
            CHECK_EQ(done->value, ended_ns);
            CHECK(done->t_ns - ended_ns >= 500000);
            exact += done->t_ns - ended_ns == 500000;
        } else {
            CHECK_EQ(done->value, op->t_ns);
            CHECK(done->t_ns - op->t_ns >= 500000);
        }
        ended_ns = done->t_ns;
    }
    CHECK(exact >= 100); /* 299 where the child is never kept from issuing */
    crystal_trace_fini(&trace);
}

/* Work that ends at once: however many, none is without its end. */
static void more_than_the_ring_holds(void)
{
    const struct job job = {"null_nccl.so", .delay_us = 0, .calls = 20000};
    struct crystal_trace trace = {0};
    char said[512];

    CHECK_EQ(run(&job, said), 0);
    CHECK_STR(said, "");
    CHECK_EQ(trace_read(directory, 0, &trace), 0);
    CHECK_EQ(trace_count(&trace, CRYSTAL_OP_COLL), 20000);
    CHECK_EQ(trace_count(&trace, CRYSTAL_OP_DONE), 20000);
    crystal_trace_fini(&trace);
}

/* Work that takes 1 ms each: what is too much is counted, and nothing else is lost. */
static void what_is_too_much_is_said(void)
{
    const struct job job = {"null_nccl.so", .delay_us = 1000, .calls = 2000};
    struct crystal_trace trace = {0};
    char said[512];
    const char *number;
    unsigned done;

    CHECK_EQ(run(&job, said), 0);
    CHECK_EQ(trace_read(directory, 0, &trace), 0);
    CHECK_EQ(trace_count(&trace, CRYSTAL_OP_COLL), 2000);
    done = trace_count(&trace, CRYSTAL_OP_DONE);
    CHECK(done >= RING);
    number = strstr(said, "recording ");
    CHECK_EQ(done + (number ? strtoul(number + strlen("recording "), NULL, 10) : 0),
             2000);
    crystal_trace_fini(&trace);
}

/* All of a group ends together. */
static void a_group_has_one_end(void)
{
    const struct job job = {"null_nccl.so", 100, 50, .is_grouped = 1, .does_wait = 1};
    struct crystal_trace trace = {0};
    const struct crystal_op *first = NULL;
    char said[512];

    CHECK_EQ(run(&job, said), 0);
    CHECK_EQ(trace_read(directory, 0, &trace), 0);
    CHECK_EQ(trace_count(&trace, CRYSTAL_OP_DONE), 50);
    for (uint64_t i = 0; i < trace.op_count; i++)
        if (trace.ops[i].kind == CRYSTAL_OP_DONE) {
            first = first ? first : &trace.ops[i];
            CHECK_EQ(trace.ops[i].t_ns, first->t_ns);
            CHECK_EQ(trace.ops[i].value, first->value);
        }
    crystal_trace_fini(&trace);
}

/* A mark tells the trace all that has ended by then; death right behind it takes none
 * of it. */
static void a_mark_outlives_the_program(void)
{
    const struct job job = {"null_nccl.so", 100,          200,
                            .does_wait = 1, .is_told = 1, .dies = 1};
    struct crystal_trace trace = {0};
    char said[512];

    CHECK_EQ(run(&job, said), SIGKILL);
    CHECK_EQ(trace_read(directory, 0, &trace), 0);
    CHECK_EQ(trace_count(&trace, CRYSTAL_OP_COLL), 200);
    CHECK_EQ(trace_count(&trace, CRYSTAL_OP_DONE), 200);
    CHECK_EQ(trace_count(&trace, CRYSTAL_OP_HINT), 1);
    crystal_trace_fini(&trace);
}

/* A library without crystal_event_time: somebody waits for each end, which is seen late
 * but never early. */
static void a_library_without_times(void)
{
    const struct job job = {"null_nccl_timeless.so", 500, 300, .does_wait = 1};
    struct crystal_trace trace = {0};
    uint64_t ended_ns = 0, first_ns = 0, calls = 0;
    char said[512];

    CHECK_EQ(run(&job, said), 0);
    CHECK_EQ(trace_read(directory, 0, &trace), 0);
    CHECK_EQ(trace_count(&trace, CRYSTAL_OP_DONE), 300);
    for (uint64_t i = 0; i < trace.op_count; i++) {
        const struct crystal_op *done, *op = &trace.ops[i];

        if (op->kind != CRYSTAL_OP_COLL)
            continue;
        done = trace_done(&trace, i);
        CHECK(done != NULL);
        if (!done)
            break;
        first_ns = first_ns ? first_ns : op->t_ns;
        calls++;
        CHECK_EQ(done->value, op->t_ns > ended_ns ? op->t_ns : ended_ns);
        CHECK(done->t_ns >= first_ns + calls * 500000);
        ended_ns = done->t_ns;
    }
    crystal_trace_fini(&trace);
}

int main(void)
{
    const char *from = getenv("CRYSTAL_BUILDDIR");
    char line[128];

    check_begin();
    (void)snprintf(directory, sizeof directory, "/tmp/crystal-ends.XXXXXX");
    if (!from || !mkdtemp(directory))
        return 1;
    (void)snprintf(build, sizeof build, "%s", from);
    CHECK_RUN(ends_are_exact);
    CHECK_RUN(more_than_the_ring_holds);
    CHECK_RUN(what_is_too_much_is_said);
    CHECK_RUN(a_group_has_one_end);
    CHECK_RUN(a_mark_outlives_the_program);
    CHECK_RUN(a_library_without_times);
    (void)snprintf(line, sizeof line, "rm -r %s", directory);
    CHECK_EQ(system(line), 0);
    return check_end();
}
