/* Turns at the two sides of a NIC, in order of time.
 *
 * A sender's NIC sends what it is given in that order, and each message for as long as
 * its bytes take, whether its receiver is there or not; a receiver's takes in as
 * runtime/ingress.h says, in the order in which both sides are ready. So does the
 * plugin with real messages. What is ready at once comes in NCCL's rounds.
 *
 * A turn is given only when nothing else can go on and within the horizon: until then
 * something may still come that is earlier. Nothing that follows from a turn is.
 */
#include "config.h"

#include "runtime/timeline_internal.h"

#include <errno.h>
#include <stdlib.h>

static bool is_before(const struct tl_turn *a, const struct tl_turn *b)
{
    if (a->time_ns != b->time_ns)
        return a->time_ns < b->time_ns;
    if (a->kind != b->kind)
        return a->kind < b->kind;
    if (a->order != b->order)
        return a->order < b->order;
    if (a->kind != TL_TURN_SENDER && a->kind != TL_TURN_RECEIVER)
        return a->seq < b->seq;
    if (a->pair->from_lrank != b->pair->from_lrank)
        return a->pair->from_lrank < b->pair->from_lrank;
    return a->pair->comm != b->pair->comm ? a->pair->comm < b->pair->comm
                                          : a->seq < b->seq;
}

void tl_turn_wait(struct crystal_timeline *t, struct tl_turn turn)
{
    uint32_t i = t->turn_count;

    if (i == t->turn_capacity) {
        uint32_t capacity = i ? 2 * i : 64;
        struct tl_turn *more = realloc(t->turns, capacity * sizeof *more);

        if (!more) {
            t->code = -ENOMEM;
            return;
        }
        t->turns = more;
        t->turn_capacity = capacity;
    }
    t->turn_count++;
    while (i && is_before(&turn, &t->turns[(i - 1) / 2])) {
        t->turns[i] = t->turns[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    t->turns[i] = turn;
}

static struct tl_turn turn_pop(struct crystal_timeline *t)
{
    struct tl_turn first = t->turns[0], last = t->turns[--t->turn_count];
    uint32_t i = 0, child;

    while ((child = 2 * i + 1) < t->turn_count) {
        if (child + 1 < t->turn_count &&
            is_before(&t->turns[child + 1], &t->turns[child]))
            child++;
        if (!is_before(&t->turns[child], &last))
            break;
        t->turns[i] = t->turns[child];
        i = child;
    }
    t->turns[i] = last;
    return first;
}

/* A message has its turn at its sender's NIC. */
static void sent(struct crystal_timeline *t, const struct tl_turn *turn)
{
    struct tl_pair *pair = turn->pair;
    uint64_t occupy_ns = crystal_transfer_occupy_ns(
        &t->wires[pair->wire], pair->ring[turn->seq & (pair->capacity - 1)].bytes);
    uint64_t held_ns, leave_ns = tl_nic_take(t, &t->ranks[pair->from_lrank], pair->way,
                                             turn->time_ns, occupy_ns, &held_ns);

    tl_message_sent(t, pair, turn->seq, leave_ns, held_ns);
}

void tl_turn_next(struct crystal_timeline *t)
{
    struct tl_turn turn = turn_pop(t);

    switch (turn.kind) {
    case TL_TURN_IDLE:
        tl_nic_idle(t, &turn);
        break;
    case TL_TURN_END:
        tl_flow_end(t, &turn);
        break;
    case TL_TURN_SENDER:
        sent(t, &turn);
        break;
    case TL_TURN_BEGIN:
        tl_flow_begin(t, turn.flow);
        break;
    case TL_TURN_RECEIVER:
        tl_message_leave(t, turn.pair, turn.seq);
        break;
    }
}

struct tl_inlet *tl_inlet_new(struct crystal_timeline *t, uint32_t refs)
{
    struct tl_inlet *inlet = t->free_inlets;

    if (inlet)
        t->free_inlets = inlet->next;
    else if (!(inlet = malloc(sizeof *inlet)))
        t->code = -ENOMEM;
    if (inlet) {
        inlet->ingress.count = 0;
        inlet->refs = refs;
        inlet->next = NULL;
    }
    return inlet;
}

void tl_inlet_put(struct crystal_timeline *t, struct tl_inlet *inlet)
{
    if (inlet->refs == 0 || --inlet->refs)
        return;
    inlet->next = t->free_inlets;
    t->free_inlets = inlet;
}
