/* A job directory made by hand for tests: layout.yaml, comms.tab, traces. Everything is
 * written through the real writers. Failing calls end the test program.
 */
#ifndef CRYSTAL_TESTS_JOB_H
#define CRYSTAL_TESTS_JOB_H

#include "runtime/graph_build.h"
#include "runtime/layout.h"
#include "runtime/payload.h"
#include "runtime/trace.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct job {
    char dir[128];
    struct crystal_layout layout;
    /* the rank that is being written */
    struct crystal_trace_writer *trace;
    struct crystal_payload_writer *payload;
    uint64_t now_ns;
    uint64_t epoch_ns; /* absolute time at which every rank's now_ns is 1 s */
    uint16_t comm_count;
    const char *folder;
    uint32_t lrank;
};

#define JOB_MUST(call)                                                     \
    do {                                                                   \
        struct crystal_error *err_ = &job_err;                             \
        if (call) {                                                        \
            printf("Bail out! %s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                   crystal_error_text(err_));                              \
            exit(1);                                                       \
        }                                                                  \
    } while (0)

static struct crystal_error job_err;

static inline void job_path(const struct job *j, char *out, size_t out_bytes,
                            const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static inline void job_path(const struct job *j, char *out, size_t out_bytes,
                            const char *format, ...)
{
    int used = snprintf(out, out_bytes, "%s/", j->dir);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(out + used, out_bytes - (size_t)used, format, args);
    va_end(args);
}

static inline uint32_t *job_ranks(const char *text, uint32_t limit, uint32_t *count)
{
    uint32_t *ranks = NULL;

    JOB_MUST(crystal_ranks_parse(text, limit, 0, &ranks, count, &job_err));
    return ranks;
}

static inline void job_begin(struct job *j, uint32_t n, const char *grid,
                             const char *live, const char *sandbox)
{
    char path[160];

    memset(j, 0, sizeof *j);
    (void)snprintf(j->dir, sizeof j->dir, "/tmp/crystal-test.XXXXXX");
    JOB_MUST(!mkdtemp(j->dir));
    j->layout.lrank_count = n;
    j->layout.target.nic_count = 1;
    if (grid) {
        JOB_MUST(crystal_grid_parse(grid, &j->layout.grid, &job_err));
        j->layout.grid.ep_inside = 1;
    }
    j->layout.live = job_ranks(live, n, &j->layout.live_count);
    j->layout.live_mode =
        j->layout.live_count == n ? CRYSTAL_LIVE_ALL : CRYSTAL_LIVE_REPLICA;
    j->layout.sandbox = job_ranks(sandbox, n, &j->layout.sandbox_count);
    j->layout.ranks_per_node = /* the sandbox is one target node where it can be one */
        n % j->layout.sandbox_count ? 1 : j->layout.sandbox_count;
    j->layout.iterations = 3;
    j->layout.plan_passes = 1;
    j->layout.wire_bytes_per_s = 1000000000;
    j->layout.wire_latency_ns = 1000;
    j->layout.fingerprint = 0x1234;
    (void)snprintf(j->layout.job_name, sizeof j->layout.job_name, "test");
    job_path(j, path, sizeof path, "layout.yaml");
    JOB_MUST(crystal_layout_write(path, &j->layout, &job_err));
    job_path(j, path, sizeof path, "ranks");
    JOB_MUST(mkdir(path, 0700));
    job_path(j, path, sizeof path, "plan");
    JOB_MUST(mkdir(path, 0700));
}

static inline void job_text(const struct job *j, const char *name, const char *text)
{
    char path[160];
    FILE *out;

    job_path(j, path, sizeof path, "%s", name);
    JOB_MUST(!(out = fopen(path, "w")));
    JOB_MUST(fputs(text, out) < 0 || fclose(out) != 0);
}

static inline void job_end(struct job *j)
{
    char command[192];

    (void)snprintf(command, sizeof command, "rm -rf '%s'", j->dir);
    JOB_MUST(system(command) != 0);
    crystal_layout_fini(&j->layout);
}

/* folder: "ranks" or "plan" */
static inline void job_rank(struct job *j, const char *folder, uint32_t lrank)
{
    char path[160];

    job_path(j, path, sizeof path, "%s/%u.trace", folder, lrank);
    j->trace = crystal_trace_create(path, lrank, j->layout.fingerprint, &job_err);
    JOB_MUST(!j->trace);
    j->now_ns = 0;
    j->comm_count = 0;
    j->folder = folder;
    j->lrank = lrank;
}

static inline void job_op(struct job *j, struct crystal_op op)
{
    op.t_ns = j->now_ns;
    crystal_trace_append(j->trace, &op);
}

static inline void job_comm(struct job *j, const char *name, uint32_t crank,
                            uint32_t nranks)
{
    size_t left = strlen(name);

    job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_COMM,
                                  .comm = j->comm_count++,
                                  .peer = crank,
                                  .value = nranks});
    while (left) {
        struct crystal_op_ext ext = {.kind = CRYSTAL_OP_EXT};
        size_t part = left < sizeof ext.data ? left : sizeof ext.data;
        struct crystal_op op;

        memcpy(ext.data, name, part);
        memcpy(&op, &ext, sizeof op);
        crystal_trace_append(j->trace, &op);
        name += part;
        left -= part;
    }
}

static inline void job_coll(struct job *j, enum crystal_func func, uint16_t comm,
                            uint64_t count)
{
    job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_COLL,
                                  .func = (uint8_t)func,
                                  .dtype = ncclFloat32,
                                  .comm = comm,
                                  .value = count,
                                  .stream = (uint16_t)(comm + 1)});
}

static inline void job_p2p(struct job *j, int is_send, uint16_t comm, uint32_t peer,
                           uint64_t count)
{
    job_op(j,
           (struct crystal_op){.kind = is_send ? CRYSTAL_OP_SEND : CRYSTAL_OP_RECV,
                               .func = is_send ? CRYSTAL_FUNC_SEND : CRYSTAL_FUNC_RECV,
                               .dtype = ncclFloat32,
                               .comm = comm,
                               .peer = peer,
                               .value = count,
                               .stream = (uint16_t)(comm + 1)});
}

/* Sets now_ns so that the ranks' clocks agree, whatever their START records say. */
static inline void job_synchronise(struct job *j)
{
    struct crystal_trace trace;
    char path[160];

    JOB_MUST(crystal_trace_flush(j->trace, &job_err));
    job_path(j, path, sizeof path, "%s/%u.trace", j->folder, j->lrank);
    JOB_MUST(crystal_trace_read(path, &trace, &job_err));
    if (!j->epoch_ns)
        j->epoch_ns = trace.ops[0].value;
    j->now_ns = 1000000000 + j->epoch_ns - trace.ops[0].value;
    crystal_trace_fini(&trace);
}

/* The communication of record `record` began and ended. */
static inline void job_done(struct job *j, uint64_t record, uint64_t begin_ns,
                            uint64_t end_ns)
{
    struct crystal_op op = {.kind = CRYSTAL_OP_DONE,
                            .peer = (uint32_t)record,
                            .value = begin_ns,
                            .t_ns = end_ns};

    crystal_trace_append(j->trace, &op);
}

/* Host waits for everything on the stream of comm, until now_ns + blocked_ns. */
static inline void job_sync(struct job *j, uint16_t comm, uint64_t blocked_ns)
{
    job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_SYNC,
                                  .stream = (uint16_t)(comm + 1),
                                  .value = j->now_ns + blocked_ns});
    j->now_ns += blocked_ns;
}

static inline void job_hint(struct job *j, uint64_t number)
{
    job_op(j, (struct crystal_op){.kind = CRYSTAL_OP_HINT, .value = number});
}

static inline void job_payload(struct job *j, const void *bytes, uint32_t count)
{
    char path[160];
    uint64_t offset;

    if (!j->payload) {
        job_path(j, path, sizeof path, "%s/%u.payload", j->folder, j->lrank);
        j->payload =
            crystal_payload_create(path, j->lrank, j->layout.fingerprint, &job_err);
        JOB_MUST(!j->payload);
    }
    offset = crystal_payload_reserve(j->payload, count);
    JOB_MUST(crystal_payload_write(j->payload, offset, bytes, count, &job_err));
    job_op(j, (struct crystal_op){
                  .kind = CRYSTAL_OP_PAYLOAD, .value = offset, .peer = count});
}

/* The program of the rank has ended by itself, or was stopped. */
static inline void job_rank_end_as(struct job *j, int is_stopped)
{
    char path[160];

    job_op(j, (struct crystal_op){
                  .kind = CRYSTAL_OP_END, .aux = is_stopped != 0, .value = 1 << 20});
    JOB_MUST(crystal_trace_close(j->trace, &job_err));
    job_path(j, path, sizeof path, "%s/%u.trace", j->folder, j->lrank);
    JOB_MUST(crystal_trace_seal(path, &job_err));
    if (j->payload) {
        JOB_MUST(crystal_payload_close(j->payload, &job_err));
        job_path(j, path, sizeof path, "%s/%u.payload", j->folder, j->lrank);
        JOB_MUST(crystal_payload_seal(path, &job_err));
        j->payload = NULL;
    }
}

static inline void job_rank_end(struct job *j)
{
    job_rank_end_as(j, 0);
}

#endif
