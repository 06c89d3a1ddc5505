/* Proofs over a graph. Equal lists are compared once: what a rank calls on a
 * communicator is known by its representative and local index, and ranks of the same
 * ones call the same. See verify.h.
 */
#include "config.h"

#include "runtime/verify.h"

#include "runtime/filehead.h"
#include "runtime/nccl_abi.h"
#include "runtime/nccl_names.h"
#include "runtime/program.h"
#include "runtime/timeline.h"
#include "runtime/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE      UINT32_MAX
#define STEPS_MAX 64

/* Calls on one communicator, or messages of one pair, of a representative. */
struct series {
    uint32_t *instrs; /* borrowed from its rep's */
    uint32_t count;
    uint64_t hash; /* of what is compared */
};

struct rep {
    struct crystal_program *program;
    uint64_t *gaps; /* zeros */
    uint32_t *instrs;
    struct series *colls; /* by local */
    struct series *pairs; /* by program pair */
};

struct verify {
    const struct crystal_graph *g;
    struct rep *reps;
    uint32_t rep_count, lrank_count;
    struct crystal_verdict *verdict;
    FILE *out; /* the witness */
};

static int no_memory(struct crystal_error *err)
{
    return crystal_error_set(err, ENOMEM, "verify: out of memory");
}

/* --- what is called --- */

/* What has to be equal among members. */
struct call {
    uint64_t value;
    uint32_t root, redop;
    uint8_t kind, func, dtype;
};

static const struct crystal_op *record_of(const struct verify *v, uint32_t rep,
                                          uint32_t instr)
{
    uint64_t count;

    return &crystal_graph_ops(v->g, rep,
                              &count)[v->reps[rep].program->instrs[instr].record];
}

static struct call call_of(const struct verify *v, uint32_t rep, uint32_t instr)
{
    const struct crystal_op *op = record_of(v, rep, instr);
    struct call call = {.value = op->value};

    if (op->kind != CRYSTAL_OP_COLL) { /* ends may count in elements of their own */
        call.value *= crystal_dtype_bytes(op->dtype);
        return call;
    }
    call.kind = op->kind;
    call.func = op->func;
    call.dtype = op->dtype;
    call.root = crystal_func_has_root(op->func) ? op->peer : 0;
    call.redop = crystal_func_reduces(op->func) ? op->aux : 0;
    return call;
}

static void print_call(const struct verify *v, uint32_t lrank, uint32_t rep,
                       const struct series *s, uint32_t at)
{
    const struct crystal_op *op;

    if (at >= s->count) {
        fprintf(v->out, "  rank %u: no more than %u\n", lrank, s->count);
        return;
    }
    op = record_of(v, rep, s->instrs[at]);
    fprintf(v->out, "  rank %u: %s, %" PRIu64 " x %s", lrank,
            crystal_func_name(op->func), op->value, crystal_dtype_name(op->dtype));
    if (op->kind == CRYSTAL_OP_COLL && crystal_func_has_root(op->func))
        fprintf(v->out, ", root %u", op->peer);
    if (op->kind == CRYSTAL_OP_COLL && crystal_func_reduces(op->func))
        fprintf(v->out, ", %s", crystal_redop_name(op->aux));
    fprintf(v->out, " (record %" PRIu64 " of rank %u)\n",
            v->reps[rep].program->instrs[s->instrs[at]].record,
            crystal_graph_rep_lrank(v->g, rep));
}

static bool is_same_call(const struct call *a, const struct call *b)
{
    return a->value == b->value && a->root == b->root && a->redop == b->redop &&
           a->kind == b->kind && a->func == b->func && a->dtype == b->dtype;
}

/* The first call in which two series differ; the greater count where they do not. */
static uint32_t first_difference(const struct verify *v, uint32_t rep_a,
                                 const struct series *a, uint32_t rep_b,
                                 const struct series *b)
{
    uint32_t i = 0;

    for (; i < a->count && i < b->count; i++) {
        struct call x = call_of(v, rep_a, a->instrs[i]);
        struct call y = call_of(v, rep_b, b->instrs[i]);

        if (!is_same_call(&x, &y))
            return i;
    }
    return i;
}

static bool is_equal(const struct series *a, const struct series *b)
{
    return a->count == b->count && a->hash == b->hash;
}

/* --- lists --- */

static int rep_series(struct verify *v, uint32_t index, struct crystal_error *err)
{
    struct rep *rep = &v->reps[index];
    const struct crystal_program *p = rep->program;
    uint32_t used = 0;

    rep->gaps = calloc(p->instr_count + 1, sizeof *rep->gaps);
    rep->instrs = malloc((p->instr_count + 1) * sizeof *rep->instrs);
    rep->colls = calloc(p->local_count + 1, sizeof *rep->colls);
    rep->pairs = calloc(p->pair_count + 1, sizeof *rep->pairs);
    if (!rep->gaps || !rep->instrs || !rep->colls || !rep->pairs)
        return no_memory(err);
    for (uint32_t i = 0; i < p->local_count; i++) {
        rep->colls[i].instrs = rep->instrs + used;
        used += (uint32_t)p->coll_each[i];
    }
    for (uint32_t i = 0; i < p->pair_count; i++) {
        rep->pairs[i].instrs = rep->instrs + used;
        used += p->pairs[i].each;
    }
    for (uint32_t i = 0; i < p->instr_count; i++) {
        const struct crystal_instr *in = &p->instrs[i];
        struct series *s = NULL;
        struct {
            struct call call;
            uint64_t hash;
        } link;

        if (in->kind == CRYSTAL_OP_COLL && !crystal_instr_is_empty(in))
            s = &rep->colls[in->local];
        else if (in->kind == CRYSTAL_OP_SEND || in->kind == CRYSTAL_OP_RECV)
            s = &rep->pairs[in->slot];
        if (!s)
            continue;
        s->instrs[s->count++] = i;
        memset(&link, 0, sizeof link);
        link.call = call_of(v, index, i);
        link.hash = s->hash;
        s->hash = crystal_hash(&link, sizeof link);
    }
    return 0;
}

static int rep_init(struct verify *v, uint32_t index, struct crystal_error *err)
{
    uint32_t mark_count;
    const uint64_t *marks = crystal_graph_marks(v->g, index, &mark_count);
    uint64_t end;

    (void)crystal_graph_ops(v->g, index, &end);
    if (mark_count)
        end = marks[mark_count - 1];
    v->reps[index].program = crystal_program_create_range(v->g, index, 0, end, 0, err);
    return v->reps[index].program ? rep_series(v, index, err) : -EINVAL;
}

/* --- collectives --- */

static const char *comm_text(const struct verify *v, uint32_t comm, char *text,
                             size_t bytes)
{
    struct crystal_graph_comm c;

    crystal_graph_comm(v->g, comm, &c);
    (void)snprintf(text, bytes, "communicator %u (%u ranks%s%s%s)", comm, c.nranks,
                   c.name ? ", '" : "", c.name ? c.name : "", c.name ? "'" : "");
    return text;
}

static void differ(const struct verify *v, uint32_t comm, uint32_t a, uint32_t local_a,
                   uint32_t b, uint32_t local_b)
{
    uint32_t rep_a = crystal_graph_rep_of(v->g, a);
    uint32_t rep_b = crystal_graph_rep_of(v->g, b);
    const struct series *x = &v->reps[rep_a].colls[local_a];
    const struct series *y = &v->reps[rep_b].colls[local_b];
    uint32_t at = first_difference(v, rep_a, x, rep_b, y);
    char text[256];

    fprintf(v->out, "collective %u of %s differs between ranks %u and %u:\n", at,
            comm_text(v, comm, text, sizeof text), a, b);
    print_call(v, a, rep_a, x, at);
    print_call(v, b, rep_b, y, at);
}

static int check_colls(struct verify *v, struct crystal_error *err)
{
    uint32_t comm_count = crystal_graph_comm_count(v->g);
    struct {
        uint32_t lrank, local;
    } *first = malloc((comm_count + 1) * sizeof *first);

    if (!first)
        return no_memory(err);
    memset(first, 0xff, (comm_count + 1) * sizeof *first);
    for (uint32_t r = 0; r < v->lrank_count && v->verdict->is_sound; r++) {
        uint32_t rep = crystal_graph_rep_of(v->g, r);
        uint32_t locals = v->reps[rep].program->local_count;

        for (uint32_t i = 0; i < locals && v->verdict->is_sound; i++) {
            uint32_t c = crystal_graph_comm_of(v->g, r, i), other;

            v->verdict->collective_count += v->reps[rep].colls[i].count;
            if (first[c].lrank == NONE) {
                first[c].lrank = r;
                first[c].local = i;
                continue;
            }
            other = crystal_graph_rep_of(v->g, first[c].lrank);
            if (is_equal(&v->reps[other].colls[first[c].local], &v->reps[rep].colls[i]))
                continue;
            v->verdict->is_sound = 0;
            differ(v, c, first[c].lrank, first[c].local, r, i);
        }
    }
    free(first);
    return 0;
}

/* --- messages --- */

/* One direction between two cranks, as its ends see it. */
struct way {
    uint32_t comm, from, to;
    uint32_t lranks[2], pairs[2]; /* of receiver and sender; NONE: not seen */
};

struct ways {
    struct way *places;
    uint64_t mask, count;
};

static struct way *way_of(struct ways *w, uint32_t comm, uint32_t from, uint32_t to)
{
    uint64_t i = ((uint64_t)comm << 40 ^ (uint64_t)from << 20 ^ to) *
                     UINT64_C(0x9e3779b97f4a7c15) >>
                 20;

    for (;; i++) {
        struct way *way = &w->places[i & w->mask];

        if (way->comm == NONE) {
            *way = (struct way){comm, from, to, {NONE, NONE}, {NONE, NONE}};
            return way;
        }
        if (way->comm == comm && way->from == from && way->to == to)
            return way;
    }
}

static int ways_init(struct verify *v, struct ways *w)
{
    uint64_t most = 0, capacity = 64;

    for (uint32_t r = 0; r < v->lrank_count; r++)
        most += v->reps[crystal_graph_rep_of(v->g, r)].program->pair_count;
    while (capacity < 2 * most)
        capacity *= 2;
    w->mask = capacity - 1;
    w->places = malloc(capacity * sizeof *w->places);
    if (!w->places)
        return -ENOMEM;
    memset(w->places, 0xff, capacity * sizeof *w->places);
    for (uint32_t r = 0; r < v->lrank_count; r++) {
        const struct rep *rep = &v->reps[crystal_graph_rep_of(v->g, r)];

        for (uint32_t i = 0; i < rep->program->pair_count; i++) {
            const struct crystal_program_pair *p = &rep->program->pairs[i];
            uint32_t comm = crystal_graph_comm_of(v->g, r, p->local);
            uint32_t own = crystal_graph_crank_of(v->g, comm, r);
            uint32_t peer = crystal_graph_peer_of(v->g, r, p->local, p->peer);
            struct way *way =
                way_of(w, comm, p->is_send ? own : peer, p->is_send ? peer : own);

            way->lranks[p->is_send] = r;
            way->pairs[p->is_send] = i;
            if (p->is_send)
                v->verdict->message_count += rep->pairs[i].count;
        }
    }
    return 0;
}

static void check_way(struct verify *v, const struct way *way)
{
    static const struct series nothing;
    const struct series *s[2] = {&nothing, &nothing};
    struct crystal_graph_comm c;
    uint32_t reps[2] = {0, 0}, at;
    char text[256];

    for (int i = 0; i < 2; i++)
        if (way->lranks[i] != NONE) {
            reps[i] = crystal_graph_rep_of(v->g, way->lranks[i]);
            s[i] = &v->reps[reps[i]].pairs[way->pairs[i]];
        }
    if (is_equal(s[0], s[1]))
        return;
    v->verdict->is_sound = 0;
    crystal_graph_comm(v->g, way->comm, &c);
    at = first_difference(v, reps[0], s[0], reps[1], s[1]);
    fprintf(v->out, "message %u from rank %u to rank %u on %s does not fit:\n", at,
            c.members[way->from], c.members[way->to],
            comm_text(v, way->comm, text, sizeof text));
    print_call(v, c.members[way->from], reps[1], s[1], at);
    print_call(v, c.members[way->to], reps[0], s[0], at);
}

static int check_messages(struct verify *v, struct crystal_error *err)
{
    struct ways ways;

    if (ways_init(v, &ways))
        return no_memory(err);
    for (uint64_t i = 0; i <= ways.mask && v->verdict->is_sound; i++)
        if (ways.places[i].comm != NONE)
            check_way(v, &ways.places[i]);
    free(ways.places);
    return 0;
}

/* --- waits --- */

static void print_step(const struct verify *v, const struct crystal_timeline_wait *step)
{
    uint32_t rep = crystal_graph_rep_of(v->g, step->lrank);
    const struct crystal_op *op;
    char text[256];

    if (step->instr == NONE) {
        fprintf(v->out, "  rank %u has ended\n", step->lrank);
        return;
    }
    op = record_of(v, rep, step->instr);
    fprintf(v->out,
            "  rank %u waits in %s %" PRIu64 " of %s, record %" PRIu64 " of rank %u",
            step->lrank, crystal_func_name(op->func), step->seq,
            comm_text(v, step->comm, text, sizeof text),
            v->reps[rep].program->instrs[step->instr].record,
            crystal_graph_rep_lrank(v->g, rep));
    if (step->for_lrank != NONE)
        fprintf(v->out, ", for rank %u", step->for_lrank);
    if (step->missing_count > 1)
        fprintf(v->out, " and %u more", step->missing_count - 1);
    putc('\n', v->out);
}

static void print_waits(const struct verify *v, const struct crystal_timeline *t)
{
    struct crystal_timeline_wait steps[STEPS_MAX];
    uint32_t cycle, count = crystal_timeline_witness(t, steps, STEPS_MAX, &cycle);

    if (cycle < count)
        fprintf(v->out, "%u ranks wait for each other for ever:\n", count - cycle);
    else
        fprintf(v->out, "rank %u waits for ever:\n", count ? steps[0].lrank : 0);
    for (uint32_t i = cycle < count ? cycle : 0; i < count; i++)
        print_step(v, &steps[i]);
}

static int check_waits(struct verify *v, struct crystal_error *err)
{
    struct crystal_timeline_config config = {
        .graph = v->g, .is_untimed = 1, .iterations = 1};
    struct crystal_program **programs = calloc(v->rep_count, sizeof *programs);
    const uint64_t **gaps = calloc(v->rep_count, sizeof *gaps);
    struct crystal_timeline *t = NULL;
    int code = programs && gaps ? 0 : no_memory(err);

    for (uint32_t i = 0; !code && i < v->rep_count; i++) {
        programs[i] = v->reps[i].program;
        gaps[i] = v->reps[i].gaps;
    }
    config.programs = programs;
    config.gap_ns = gaps;
    if (!code && !(t = crystal_timeline_create(&config, err)))
        code = -EINVAL;
    if (!code)
        code = crystal_timeline_start(t, 0, err);
    if (!code)
        code = crystal_timeline_advance(t, UINT64_MAX, err);
    if (!code) {
        struct crystal_timeline_wait step;
        uint32_t cycle;

        if (crystal_timeline_witness(t, &step, 1, &cycle)) {
            v->verdict->is_sound = 0;
            print_waits(v, t);
        }
    }
    crystal_timeline_destroy(t);
    free(programs);
    free(gaps);
    return code;
}

/* --- all --- */

static void reps_fini(struct verify *v)
{
    for (uint32_t i = 0; v->reps && i < v->rep_count; i++) {
        crystal_program_destroy(v->reps[i].program);
        free(v->reps[i].gaps);
        free(v->reps[i].instrs);
        free(v->reps[i].colls);
        free(v->reps[i].pairs);
    }
    free(v->reps);
}

int crystal_verify(const struct crystal_graph *g, struct crystal_verdict *ret,
                   struct crystal_error *err)
{
    struct crystal_verdict verdict = {.is_sound = 1};
    struct verify v = {.g = g, .verdict = &verdict};
    size_t bytes = 0;
    int code = 0;

    v.rep_count = crystal_graph_rep_count(g);
    v.lrank_count = crystal_graph_lrank_count(g);
    v.reps = calloc(v.rep_count, sizeof *v.reps);
    v.out = open_memstream(&verdict.witness, &bytes);
    if (!v.reps || !v.out)
        code = no_memory(err);
    for (uint32_t i = 0; !code && i < v.rep_count; i++)
        code = rep_init(&v, i, err);
    if (!code)
        code = check_colls(&v, err);
    if (!code && verdict.is_sound)
        code = check_messages(&v, err);
    if (!code && verdict.is_sound)
        code = check_waits(&v, err);
    reps_fini(&v);
    if (v.out && (ferror(v.out) | fclose(v.out)) != 0 && !code)
        code = no_memory(err);
    if (code || verdict.is_sound) {
        free(verdict.witness);
        verdict.witness = NULL;
    }
    if (!code)
        *ret = verdict;
    return code;
}

void crystal_verdict_fini(struct crystal_verdict *v)
{
    free(v->witness);
    v->witness = NULL;
}
