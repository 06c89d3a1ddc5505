/* Compiling the last recorded iteration of a representative. See program.h. */
#include "config.h"

#include "runtime/program.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int crystal_program_is_instr(const struct crystal_op *op)
{
    switch (op->kind) {
    case CRYSTAL_OP_COLL:
    case CRYSTAL_OP_SEND:
    case CRYSTAL_OP_RECV:
    case CRYSTAL_OP_GROUP:
    case CRYSTAL_OP_RECORD:
    case CRYSTAL_OP_WAIT:
    case CRYSTAL_OP_SWAIT:
    case CRYSTAL_OP_SYNC:
    case CRYSTAL_OP_HINT:
    case CRYSTAL_OP_KERNEL:
        return 1;
    default:
        return 0;
    }
}

void crystal_program_destroy(struct crystal_program *p)
{
    if (!p)
        return;
    free(p->instrs);
    free(p->coll_before);
    free(p->coll_each);
    free(p->pairs);
    free(p);
}

/* The slot behind the event that record `at` waits for: the number, among those of its
 * iteration, of the nearest RECORD before it, be it in this iteration or in the one
 * before. numbers[i - before] is that number of record i. */
static uint32_t event_slot(const struct crystal_op *ops, const uint32_t *numbers,
                           uint64_t before, uint64_t at, uint32_t slot_count)
{
    for (uint64_t i = at; i-- > before;)
        if (ops[i].kind == CRYSTAL_OP_RECORD && ops[i].peer == ops[at].peer)
            return numbers[i - before] < slot_count ? numbers[i - before]
                                                    : CRYSTAL_PROGRAM_NONE;
    return CRYSTAL_PROGRAM_NONE;
}

static uint32_t pair_find(struct crystal_program *p, const struct crystal_op *op)
{
    uint8_t is_send = op->kind == CRYSTAL_OP_SEND;

    for (uint32_t i = 0; i < p->pair_count; i++)
        if (p->pairs[i].local == op->comm && p->pairs[i].peer == op->peer &&
            p->pairs[i].is_send == is_send)
            return i;
    return CRYSTAL_PROGRAM_NONE;
}

static int pair_add(struct crystal_program *p, const struct crystal_op *op)
{
    struct crystal_program_pair *pairs;

    if (pair_find(p, op) != CRYSTAL_PROGRAM_NONE)
        return 0;
    pairs = realloc(p->pairs, (p->pair_count + 1) * sizeof *pairs);
    if (!pairs)
        return -ENOMEM;
    p->pairs = pairs;
    pairs[p->pair_count++] = (struct crystal_program_pair){
        op->comm, op->kind == CRYSTAL_OP_SEND, op->peer, 0, 0};
    return 0;
}

static bool is_p2p(const struct crystal_op *op)
{
    return op->kind == CRYSTAL_OP_SEND || op->kind == CRYSTAL_OP_RECV;
}

static void instr_fill(struct crystal_program *p, const struct crystal_op *op,
                       uint64_t record, uint16_t *streams)
{
    struct crystal_instr *in = &p->instrs[p->instr_count++];

    memset(in, 0, sizeof *in);
    in->kind = op->kind;
    in->func = op->func;
    in->dtype = op->dtype;
    in->local = op->comm;
    in->peer = op->peer;
    in->count = op->value;
    in->record = record;
    in->slot = CRYSTAL_PROGRAM_NONE;
    if (op->kind == CRYSTAL_OP_GROUP) {
        in->starts_group = op->aux != 0;
        return;
    }
    if (streams[op->stream] == UINT16_MAX)
        streams[op->stream] = (uint16_t)p->stream_count++;
    in->stream = streams[op->stream];
    if (is_p2p(op)) {
        in->slot = pair_find(p, op);
        p->pairs[in->slot].each++;
    } else if (op->kind == CRYSTAL_OP_COLL) {
        p->coll_each[op->comm]++;
    } else if (op->kind == CRYSTAL_OP_RECORD) {
        in->slot = p->event_count++;
    }
}

static int compile(struct crystal_program *p, const struct crystal_op *ops,
                   const uint64_t *marks, uint32_t mark_count)
{
    uint64_t begin = marks[mark_count - 2], end = marks[mark_count - 1];
    uint64_t before = mark_count > 2 ? marks[mark_count - 3] : begin;
    uint32_t *numbers, number = 0;
    uint16_t *streams;

    for (uint64_t i = begin; i < end; i++)
        if (is_p2p(&ops[i]) && pair_add(p, &ops[i]))
            return -ENOMEM;
    for (uint64_t i = 0; i < marks[0]; i++) {
        if (ops[i].kind == CRYSTAL_OP_COLL)
            p->coll_before[ops[i].comm]++;
        if (is_p2p(&ops[i]) && pair_find(p, &ops[i]) != CRYSTAL_PROGRAM_NONE)
            p->pairs[pair_find(p, &ops[i])].before++;
    }
    streams = malloc((UINT16_MAX + 1) * sizeof *streams);
    p->instrs = malloc((size_t)(end - begin) * sizeof *p->instrs);
    numbers = malloc((size_t)(end - before) * sizeof *numbers);
    if (!streams || !p->instrs || !numbers) {
        free(streams);
        free(numbers);
        return -ENOMEM;
    }
    for (uint64_t i = before; i < end; i++) {
        if (i == begin)
            number = 0;
        numbers[i - before] = number;
        number += ops[i].kind == CRYSTAL_OP_RECORD;
    }
    memset(streams, 0xff, (UINT16_MAX + 1) * sizeof *streams);
    for (uint64_t i = begin; i < end; i++)
        if (crystal_program_is_instr(&ops[i]))
            instr_fill(p, &ops[i], i, streams);
    for (uint32_t i = 0; i < p->instr_count; i++)
        if (p->instrs[i].kind == CRYSTAL_OP_WAIT ||
            p->instrs[i].kind == CRYSTAL_OP_SWAIT)
            p->instrs[i].slot =
                event_slot(ops, numbers, before, p->instrs[i].record, p->event_count);
    free(numbers);
    free(streams);
    return 0;
}

struct crystal_program *crystal_program_create(const struct crystal_graph *g,
                                               uint32_t rep, struct crystal_error *err)
{
    uint32_t lrank = crystal_graph_rep_lrank(g, rep), mark_count;
    const uint64_t *marks = crystal_graph_marks(g, rep, &mark_count);
    struct crystal_program *p;
    uint64_t op_count;
    const struct crystal_op *ops = crystal_graph_ops(g, rep, &op_count);

    if (mark_count < 2) {
        (void)crystal_error_set(err, ENODATA,
                                "rank %u: no repeating iterations in its recording; "
                                "capture more of them (--crystal-iterations)",
                                lrank);
        return NULL;
    }
    p = calloc(1, sizeof *p);
    if (!p)
        goto err_memory;
    p->rep = rep;
    p->local_count = crystal_graph_local_count(g, lrank);
    p->coll_before = calloc(p->local_count + 1, sizeof *p->coll_before);
    p->coll_each = calloc(p->local_count + 1, sizeof *p->coll_each);
    if (!p->coll_before || !p->coll_each || compile(p, ops, marks, mark_count))
        goto err_memory;
    return p;

err_memory:
    crystal_program_destroy(p);
    (void)crystal_error_set(err, ENOMEM, "rank %u: out of memory", lrank);
    return NULL;
}
