/* COMM_INIT of capture. A rank SETs an id in the store and asks for its communicator on
 * another connection; the question may come first. So one whose id is not known waits a
 * moment for the store to learn it; then it counts as an id that came some other way.
 */
#include "config.h"

#include "runtime/coord_state.h"

#include <stdlib.h>

#define HOLD_NS 200000000U

/* A question that waits. */
struct held_init {
    struct held_init *next;
    uint32_t lrank, request;
    struct crystal_msg_comm_init init;
};

static void ask(struct crystal_coord *coord, uint32_t lrank, uint32_t request,
                const struct crystal_msg_comm_init *init)
{
    struct crystal_error err = {0};

    if (crystal_exchange_comm_init(coord->exchange, lrank, request, init, &err) < 0)
        crystal_coord_fail(coord, crystal_error_text(&err));
}

/* Asks what need not wait longer; all of it where all is set. */
static void release(struct crystal_coord *coord, int all)
{
    struct held_init **at = &coord->held_inits;

    while (*at && !coord->failed) {
        struct held_init *held = *at;

        if (!all && !crystal_exchange_knows(coord->exchange, held->init.id)) {
            at = &held->next;
            continue;
        }
        *at = held->next;
        ask(coord, held->lrank, held->request, &held->init);
        free(held);
    }
    if (!coord->held_inits)
        crystal_timer_stop(&coord->held_timer);
    if (!coord->failed)
        crystal_coord_watch(coord);
}

static void on_hold_end(void *context)
{
    release(context, 1);
}

void crystal_coord_comm_init(struct crystal_coord *coord, uint32_t lrank,
                             uint32_t request, const struct crystal_msg_comm_init *init)
{
    struct held_init *held;

    if (crystal_exchange_knows(coord->exchange, init->id)) {
        ask(coord, lrank, request, init);
        return;
    }
    held = calloc(1, sizeof *held);
    if (!held) {
        crystal_coord_fail(coord, "coordinator: out of memory");
        return;
    }
    held->lrank = lrank;
    held->request = request;
    held->init = *init;
    held->next = coord->held_inits;
    coord->held_inits = held;
    crystal_timer_start(&coord->held_timer, coord->loop, HOLD_NS, on_hold_end, coord);
}

void crystal_coord_id_learned(struct crystal_coord *coord)
{
    if (coord->held_inits)
        release(coord, 0);
}

void crystal_coord_forget_inits(struct crystal_coord *coord)
{
    crystal_timer_stop(&coord->held_timer);
    while (coord->held_inits) {
        struct held_init *gone = coord->held_inits;

        coord->held_inits = gone->next;
        free(gone);
    }
}
