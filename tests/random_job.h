/* Random small jobs as graphs: collectives, messages and batches of them over a few
 * communicators and streams, some of which wait for ever.
 */
#ifndef CRYSTAL_TESTS_RANDOM_JOB_H
#define CRYSTAL_TESTS_RANDOM_JOB_H

#include "runtime/graph_write.h"
#include "tests/must.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define RANKS      6
#define COMMS      4
#define OPS        160
#define ITERATIONS 2
#define STREAMS    4
#define SEQS       (ITERATIONS * OPS)

static struct crystal_error err;
static char path[64];

static uint64_t state = 88172645463325252U;

static uint32_t below(uint32_t n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 33) % n;
}

struct comm {
    uint32_t nranks, members[RANKS];
    uint32_t local[RANKS]; /* by lrank, NONE: no member */
};

struct job {
    uint32_t n, comm_count;
    struct comm comms[COMMS];
    struct crystal_op ops[RANKS][OPS];
    uint32_t count[RANKS], locals[RANKS];
};

static void put(struct job *j, uint32_t r, struct crystal_op op)
{
    if (j->count[r] < OPS)
        j->ops[r][j->count[r]++] = op;
}

/* Something of the rank's own: a kernel, an event, a wait. */
static void noise(struct job *j, uint32_t r)
{
    static const uint8_t kinds[] = {
        CRYSTAL_OP_KERNEL, CRYSTAL_OP_KERNEL, CRYSTAL_OP_RECORD,
        CRYSTAL_OP_RECORD, CRYSTAL_OP_SWAIT,  CRYSTAL_OP_SWAIT,
        CRYSTAL_OP_WAIT,   CRYSTAL_OP_SYNC,   CRYSTAL_OP_HINT};
    struct crystal_op op = {.kind = kinds[below(sizeof kinds)],
                            .stream = (uint16_t)below(STREAMS),
                            .peer = below(5)};

    if (op.kind == CRYSTAL_OP_KERNEL)
        op.value = below(3) ? below(2000) : below(200000);
    put(j, r, op);
}

static void collective(struct job *j, uint32_t c)
{
    static const uint8_t funcs[] = {CRYSTAL_FUNC_ALLREDUCE, CRYSTAL_FUNC_ALLGATHER,
                                    CRYSTAL_FUNC_REDUCESCATTER, CRYSTAL_FUNC_BROADCAST,
                                    CRYSTAL_FUNC_ALLTOALL};
    struct crystal_op op = {.kind = CRYSTAL_OP_COLL,
                            .func = funcs[below(sizeof funcs)],
                            .dtype = 7,
                            .peer = below(j->comms[c].nranks),
                            .value = below(2) ? below(100) : below(300000)};

    for (uint32_t k = 0; k < j->comms[c].nranks; k++) {
        uint32_t r = j->comms[c].members[k];

        op.comm = (uint16_t)j->comms[c].local[r];
        op.stream = (uint16_t)below(STREAMS);
        put(j, r, op);
    }
}

/* Messages of one communicator, in groups of all their ranks. */
static void messages(struct job *j, uint32_t c)
{
    const struct comm *comm = &j->comms[c];
    uint32_t count = 1 + below(4);
    uint16_t streams[RANKS];

    for (uint32_t k = 0; k < comm->nranks; k++) {
        streams[k] = (uint16_t)below(STREAMS);
        put(j, comm->members[k],
            (struct crystal_op){.kind = CRYSTAL_OP_GROUP, .aux = 1});
    }
    while (count--) {
        uint32_t from = below(comm->nranks), to = below(comm->nranks);
        struct crystal_op op = {.dtype = 7,
                                .value = below(3) ? below(1000) : below(2500000)};

        op.kind = CRYSTAL_OP_SEND;
        op.func = CRYSTAL_FUNC_SEND;
        op.comm = (uint16_t)comm->local[comm->members[from]];
        op.stream = streams[from];
        op.peer = to;
        put(j, comm->members[from], op);
        op.kind = CRYSTAL_OP_RECV;
        op.func = CRYSTAL_FUNC_RECV;
        op.comm = (uint16_t)comm->local[comm->members[to]];
        op.stream = streams[to];
        op.peer = from;
        put(j, comm->members[to], op);
    }
    for (uint32_t k = 0; k < comm->nranks; k++)
        put(j, comm->members[k], (struct crystal_op){.kind = CRYSTAL_OP_GROUP});
}

static void comms_make(struct job *j)
{
    j->comm_count = 1 + below(COMMS);
    memset(j->locals, 0, sizeof j->locals);
    for (uint32_t c = 0; c < j->comm_count; c++) {
        struct comm *comm = &j->comms[c];

        comm->nranks = 0;
        for (uint32_t r = 0; r < j->n; r++) {
            comm->local[r] = UINT32_MAX;
            if (c == 0 || below(2)) {
                comm->local[r] = j->locals[r]++;
                comm->members[comm->nranks++] = r;
            }
        }
        if (!comm->nranks) {
            comm->local[0] = j->locals[0]++;
            comm->members[comm->nranks++] = 0;
        }
    }
}

static bool is_call(const struct crystal_op *op)
{
    return op->kind == CRYSTAL_OP_COLL || op->kind == CRYSTAL_OP_SEND ||
           op->kind == CRYSTAL_OP_RECV;
}

/* Two near calls of one rank change places where each communicator still sees its own
 * in order: at times a deadlock. */
static void spoil(struct job *j)
{
    uint32_t r = below(j->n), i = below(j->count[r]), k = i + 1 + below(8);
    struct crystal_op op = j->ops[r][i];

    if (k >= j->count[r] || op.kind != j->ops[r][k].kind)
        return;
    if (!is_call(&op))
        return;
    for (uint32_t m = i; m < k; m++)
        if (is_call(&j->ops[r][m]) && j->ops[r][m].comm == j->ops[r][k].comm)
            return;
    for (uint32_t m = i + 1; m <= k; m++)
        if (is_call(&j->ops[r][m]) && j->ops[r][m].comm == op.comm)
            return;
    j->ops[r][i] = j->ops[r][k];
    j->ops[r][k] = op;
}

static void job_make(struct job *j)
{
    uint32_t steps = 2 + below(14);

    memset(j, 0, sizeof *j);
    j->n = 1 + below(RANKS);
    comms_make(j);
    while (steps--) {
        uint32_t c = below(j->comm_count);

        for (uint32_t k = below(8); k > 0; k--)
            noise(j, below(j->n));
        if (below(3))
            collective(j, c);
        else
            messages(j, c);
    }
    for (uint32_t r = 0; r < j->n; r++)
        put(j, r, (struct crystal_op){.kind = CRYSTAL_OP_HINT});
    if (below(4) == 0)
        for (int i = 0; i < 40; i++)
            spoil(j);
}

static struct crystal_graph *job_write(const struct job *j)
{
    struct crystal_graph_writer *w = crystal_graph_writer_create(j->n);
    struct crystal_graph *g;

    MUST(!w);
    for (uint32_t c = 0; c < j->comm_count; c++)
        (void)crystal_graph_writer_comm(w, NULL, j->comms[c].nranks,
                                        j->comms[c].members);
    for (uint32_t r = 0; r < j->n; r++) {
        (void)crystal_graph_writer_rep(w, r, j->locals[r]);
        crystal_graph_writer_mark(w);
        for (uint32_t i = 0; i < j->count[r]; i++)
            crystal_graph_writer_op(w, &j->ops[r][i]);
        crystal_graph_writer_mark(w);
    }
    for (uint32_t r = 0; r < j->n; r++) {
        uint32_t map[COMMS];

        for (uint32_t c = 0; c < j->comm_count; c++)
            if (j->comms[c].local[r] != UINT32_MAX)
                map[j->comms[c].local[r]] = c;
        crystal_graph_writer_rank(w, r, r, map);
    }
    MUST(crystal_graph_writer_write(w, path, 0, &err));
    crystal_graph_writer_destroy(w);
    g = crystal_graph_open(path, &err);
    MUST(!g);
    return g;
}

#endif
