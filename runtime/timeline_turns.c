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
    if (a->is_receiver != b->is_receiver)
        return !a->is_receiver; /* it may be ready at once, too */
    if (a->order != b->order)
        return a->order < b->order;
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

void tl_turn_next(struct crystal_timeline *t)
{
    struct tl_turn turn = turn_pop(t);
    struct tl_pair *pair = turn.pair;
    uint64_t *free_ns, start;

    if (turn.is_receiver) {
        tl_message_leave(t, pair, turn.seq);
        return;
    }
    free_ns = &t->ranks[pair->from_lrank].nic_free_ns[pair->way];
    start = *free_ns > turn.time_ns ? *free_ns : turn.time_ns;
    *free_ns = start + crystal_transfer_occupy_ns(
                           &t->wires[pair->wire],
                           pair->ring[turn.seq & (pair->capacity - 1)].bytes);
    tl_message_sent(t, pair, turn.seq, start);
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
