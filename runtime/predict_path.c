/* The critical path, from the end of the iteration back to its begin: an operation
 * began when another one of its rank had ended, a communication ended because of the
 * member that came last. Ranks are walked when the path comes to them.
 */
#include "config.h"

#include "runtime/predict_run.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define NONE       UINT32_MAX
#define CACHE_WAYS 64 /* ranks; a path stays among neighbours for a while */

struct cached {
    uint32_t lrank; /* NONE: empty */
    uint64_t used;
    struct crystal_walk walk;
};

struct pathfinder {
    const struct crystal_prediction *pr;
    struct cached cache[CACHE_WAYS];
    uint64_t clock;
    struct crystal_path path;
    size_t capacity;
    uint32_t **colls;       /* by rep: collective instructions by local, in order */
    uint32_t **coll_firsts; /* by rep and local: where they begin */
};

/* --- communicators --- */

static int colls_init(struct pathfinder *f)
{
    const struct crystal_predict *p = f->pr->predict;

    f->colls = calloc(p->rep_count, sizeof(uint32_t *));
    f->coll_firsts = calloc(p->rep_count, sizeof(uint32_t *));
    if (!f->colls || !f->coll_firsts)
        return -ENOMEM;
    for (uint32_t i = 0; i < p->rep_count; i++) {
        const struct crystal_program *prog = p->programs[i];
        uint32_t *first = calloc(prog->local_count + 2, sizeof *first), *fill;

        f->coll_firsts[i] = first;
        f->colls[i] = malloc((prog->instr_count + 1) * sizeof **f->colls);
        if (!first || !f->colls[i])
            return -ENOMEM;
        for (uint32_t k = 0; k < prog->local_count; k++)
            first[k + 2] = first[k + 1] + (uint32_t)prog->coll_each[k];
        fill = first + 1; /* ends up as the begin of the next one */
        for (uint32_t k = 0; k < prog->instr_count; k++)
            if (prog->instrs[k].kind == CRYSTAL_OP_COLL &&
                !crystal_instr_is_empty(&prog->instrs[k]))
                f->colls[i][fill[prog->instrs[k].local]++] = k;
    }
    return 0;
}

/* The instruction of lrank in the seq-th collective of comm, NONE where it was before
 * its iterations. */
static uint32_t coll_instr(const struct pathfinder *f, uint32_t lrank, uint32_t comm,
                           uint64_t seq)
{
    const struct crystal_graph *g = f->pr->predict->graph;
    uint32_t rep = crystal_graph_rep_of(g, lrank);
    const struct crystal_program *p = f->pr->predict->programs[rep];

    for (uint32_t i = 0; i < p->local_count; i++) {
        if (crystal_graph_comm_of(g, lrank, i) != comm)
            continue;
        if (seq < p->coll_before[i] || seq - p->coll_before[i] >= p->coll_each[i])
            return NONE;
        return f->colls[rep][f->coll_firsts[rep][i] + (seq - p->coll_before[i])];
    }
    return NONE;
}

static const struct crystal_span *span_of(const struct pathfinder *f, uint32_t lrank,
                                          uint32_t instr)
{
    uint32_t rep = crystal_graph_rep_of(f->pr->predict->graph, lrank);

    return &f->pr->spans[f->pr->span_first[lrank] + f->pr->ordinals[rep][instr]];
}

/* --- walks --- */

static const struct crystal_walk *walk_of(struct pathfinder *f, uint32_t lrank)
{
    struct cached *oldest = &f->cache[0];

    f->clock++;
    for (int i = 0; i < CACHE_WAYS; i++) {
        if (f->cache[i].lrank == lrank) {
            f->cache[i].used = f->clock;
            return &f->cache[i].walk;
        }
        if (f->cache[i].used < oldest->used)
            oldest = &f->cache[i];
    }
    oldest->lrank = NONE;
    if (crystal_prediction_walk(f->pr, lrank, 1, &oldest->walk))
        return NULL;
    oldest->lrank = lrank;
    oldest->used = f->clock;
    return &oldest->walk;
}

/* The operation of an instruction: they are in the order of issue, nearly that of
 * instructions (groups are launched at their end). */
static uint32_t find(const struct crystal_walk *walk, uint32_t instr)
{
    size_t low = 0, high = walk->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (walk->ops[middle].instr < instr)
            low = middle + 1;
        else
            high = middle;
    }
    for (size_t i = low; i < walk->count; i++)
        if (walk->ops[i].instr == instr && walk->ops[i].kind >= CRYSTAL_WALK_COLL)
            return (uint32_t)i;
    for (size_t i = low; i-- > 0;)
        if (walk->ops[i].instr == instr && walk->ops[i].kind >= CRYSTAL_WALK_COLL)
            return (uint32_t)i;
    return NONE;
}

/* --- who came last --- */

struct place {
    uint32_t lrank, instr;
    uint64_t arrive_ns;
};

static void last_of_coll(const struct pathfinder *f, uint32_t lrank,
                         const struct crystal_instr *in, uint32_t nth,
                         struct place *last)
{
    const struct crystal_graph *g = f->pr->predict->graph;
    const struct crystal_program *p =
        f->pr->predict->programs[crystal_graph_rep_of(g, lrank)];
    uint32_t comm = crystal_graph_comm_of(g, lrank, in->local);
    struct crystal_graph_comm c;

    crystal_graph_comm(g, comm, &c);
    for (uint32_t k = 0; k < c.nranks; k++) {
        uint32_t instr =
            coll_instr(f, c.members[k], comm, p->coll_before[in->local] + nth);

        if (instr == NONE ||
            span_of(f, c.members[k], instr)->arrive_ns <= last->arrive_ns)
            continue;
        last->lrank = c.members[k];
        last->instr = instr;
        last->arrive_ns = span_of(f, last->lrank, instr)->arrive_ns;
    }
}

/* The other end of the nth message of this pair. */
static void last_of_message(const struct pathfinder *f, uint32_t lrank,
                            const struct crystal_instr *in, uint32_t nth,
                            struct place *last)
{
    const struct crystal_graph *g = f->pr->predict->graph;
    const struct crystal_program *p =
        f->pr->predict->programs[crystal_graph_rep_of(g, lrank)];
    const struct crystal_program_pair *own = &p->pairs[in->slot];
    uint32_t comm = crystal_graph_comm_of(g, lrank, in->local), other, rep;
    uint32_t crank = crystal_graph_crank_of(g, comm, lrank);
    const struct crystal_program *q;
    struct crystal_graph_comm c;
    uint64_t seq = own->before + nth;

    crystal_graph_comm(g, comm, &c);
    other = c.members[crystal_graph_peer_of(g, lrank, in->local, in->peer)];
    rep = crystal_graph_rep_of(g, other);
    q = f->pr->predict->programs[rep];
    for (uint32_t i = 0; i < q->pair_count; i++) {
        const struct crystal_program_pair *pair = &q->pairs[i];

        if (pair->is_send == own->is_send ||
            crystal_graph_comm_of(g, other, pair->local) != comm ||
            crystal_graph_peer_of(g, other, pair->local, pair->peer) != crank ||
            seq < pair->before || seq - pair->before >= pair->each)
            continue;
        seq -= pair->before;
        for (uint32_t k = 0; k < q->instr_count; k++) {
            const struct crystal_instr *there = &q->instrs[k];

            if ((there->kind != CRYSTAL_OP_SEND && there->kind != CRYSTAL_OP_RECV) ||
                there->slot != i || seq-- != 0)
                continue;
            if (span_of(f, other, k)->arrive_ns > last->arrive_ns)
                *last = (struct place){other, k, span_of(f, other, k)->arrive_ns};
            return;
        }
    }
}

static struct place last_of(const struct pathfinder *f, uint32_t lrank,
                            const struct crystal_walk_op *op)
{
    uint32_t rep = crystal_graph_rep_of(f->pr->predict->graph, lrank);
    const struct crystal_instr *in = &f->pr->predict->programs[rep]->instrs[op->instr];
    struct place last = {lrank, op->instr, op->start_ns};

    if (op->kind == CRYSTAL_WALK_COLL)
        last_of_coll(f, lrank, in, op->nth, &last);
    else if (op->end_ns > op->start_ns) /* else it ended without the other */
        last_of_message(f, lrank, in, op->nth, &last);
    return last;
}

/* --- the path --- */

static int put(struct pathfinder *f, struct crystal_path_part part)
{
    if (part.from_ns >= part.to_ns)
        return 0;
    if (f->path.count == f->capacity) {
        size_t capacity = f->capacity ? 2 * f->capacity : 1024;
        struct crystal_path_part *parts =
            realloc(f->path.parts, capacity * sizeof *parts);

        if (!parts)
            return -ENOMEM;
        f->path.parts = parts;
        f->capacity = capacity;
    }
    f->path.parts[f->path.count++] = part;
    return 0;
}

static int follow(struct pathfinder *f)
{
    uint32_t lrank = f->pr->last_lrank;
    const struct crystal_walk *walk = walk_of(f, lrank);
    uint64_t at_ns = f->pr->iteration_ns;
    uint32_t index;

    if (!walk)
        return -ENOMEM;
    index = walk->last;
    while (at_ns && index != NONE) {
        const struct crystal_walk_op *op = &walk->ops[index];
        struct place last = {lrank, op->instr, op->start_ns};

        /* computation behind the last wait of the host, where hosts are not listed */
        if (put(f, (struct crystal_path_part){op->end_ns, at_ns, lrank, NONE,
                                              CRYSTAL_WALK_HOST}))
            return -ENOMEM;
        at_ns = op->end_ns < at_ns ? op->end_ns : at_ns;
        if (op->kind >= CRYSTAL_WALK_COLL)
            last = last_of(f, lrank, op);
        if (put(f, (struct crystal_path_part){last.arrive_ns, at_ns, lrank, op->instr,
                                              op->kind}))
            return -ENOMEM;
        at_ns = last.arrive_ns < at_ns ? last.arrive_ns : at_ns;
        index = op->before;
        if (last.lrank == lrank && last.instr == op->instr)
            continue;
        lrank = last.lrank;
        walk = walk_of(f, lrank);
        if (!walk)
            return -ENOMEM;
        index = find(walk, last.instr);
        index = index == NONE ? NONE : walk->ops[index].before;
    }
    return put(f, (struct crystal_path_part){0, at_ns, lrank, NONE, CRYSTAL_WALK_HOST});
}

int crystal_prediction_path(const struct crystal_prediction *pr,
                            struct crystal_path *ret, struct crystal_error *err)
{
    struct pathfinder *f = calloc(1, sizeof *f);
    int code = f ? 0 : -ENOMEM;

    if (f) {
        f->pr = pr;
        for (int i = 0; i < CACHE_WAYS; i++)
            f->cache[i].lrank = NONE;
        code = colls_init(f);
    }
    if (!code)
        code = follow(f);
    for (size_t i = 0; !code && i < f->path.count / 2; i++) {
        struct crystal_path_part part = f->path.parts[i];

        f->path.parts[i] = f->path.parts[f->path.count - 1 - i];
        f->path.parts[f->path.count - 1 - i] = part;
    }
    if (!code)
        *ret = f->path;
    else if (f)
        free(f->path.parts);
    for (int i = 0; f && i < CACHE_WAYS; i++)
        crystal_walk_fini(&f->cache[i].walk);
    for (uint32_t i = 0; f && i < pr->predict->rep_count; i++) {
        free(f->colls ? f->colls[i] : NULL);
        free(f->coll_firsts ? f->coll_firsts[i] : NULL);
    }
    if (f) {
        free(f->colls);
        free(f->coll_firsts);
    }
    free(f);
    return code ? crystal_error_set(err, ENOMEM, "predict: out of memory") : 0;
}

void crystal_path_fini(struct crystal_path *path)
{
    free(path->parts);
    path->parts = NULL;
    path->count = 0;
}
