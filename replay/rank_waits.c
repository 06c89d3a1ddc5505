/* See rank_waits.h. */
#include "config.h"

#include "replay/rank_waits.h"

#include "runtime/clock.h"

#define JOIN_NS UINT64_C(1000000000)

/* lrank has arrived at an operation of the communicator and other has not. */
static int is_ahead(const struct crystal_rank_waits *w, struct crystal_board_comm *comm,
                    uint32_t lrank, uint32_t other)
{
    const uint32_t own = crystal_board_crank(w->board, comm, lrank);
    const uint32_t its = crystal_board_crank(w->board, comm, other);

    if (own == UINT32_MAX || its == UINT32_MAX)
        return 0;
    if (crystal_board_header(w->board)->mode == CRYSTAL_BOARD_IMMEDIATE)
        return 1;
    for (uint64_t seq = 0; seq < CRYSTAL_BOARD_SLOTS; seq++) {
        struct crystal_board_slot *slot = crystal_board_slot(w->board, comm, seq);
        struct crystal_board_cell *cells = crystal_board_cells(w->board, comm, slot);

        if (atomic_load(&slot->seq_plus1) && atomic_load(&cells[own].arrive_ns) &&
            !atomic_load(&cells[own].end_ns) && !atomic_load(&cells[its].arrive_ns))
            return 1;
    }
    return 0;
}

/* Has this wait gone on? */
static int has_gone_on(const struct crystal_rank_waits *w, uint32_t index)
{
    const struct crystal_roll_record *r = &w->records[index];

    for (uint32_t i = index + 1; i < w->count; i++)
        if (w->records[i].lrank == r->lrank && w->records[i].comm_id == r->comm_id &&
            w->records[i].crank == r->crank && w->records[i].kind >= CRYSTAL_ROLL_WAITS)
            return 1; /* WENT_ON, or told again */
    return 0;
}

/* Has lrank arrived at an operation of this communicator that has not ended for it? */
static int is_inside(const struct crystal_rank_waits *w,
                     struct crystal_board_comm *comm, uint32_t lrank)
{
    const uint32_t crank = crystal_board_crank(w->board, comm, lrank);

    for (uint64_t seq = 0; crank != UINT32_MAX && seq < CRYSTAL_BOARD_SLOTS; seq++) {
        struct crystal_board_slot *slot = crystal_board_slot(w->board, comm, seq);
        struct crystal_board_cell *cell =
            &crystal_board_cells(w->board, comm, slot)[crank];

        if (atomic_load(&slot->seq_plus1) && atomic_load(&cell->arrive_ns) &&
            !atomic_load(&cell->end_ns))
            return 1;
    }
    return 0;
}

int crystal_rank_waits_is_waiting(const struct crystal_rank_waits *w, uint32_t lrank)
{
    uint32_t comm_count = atomic_load(&crystal_board_header(w->board)->comm_count);

    for (uint32_t i = 0; i < w->count; i++)
        if (w->records[i].kind == CRYSTAL_ROLL_WAITS && w->records[i].lrank == lrank &&
            !has_gone_on(w, i))
            return 1;
    for (uint32_t i = 0; i < comm_count; i++) {
        struct crystal_board_comm *comm = crystal_board_comm_at(w->board, i);

        if (comm && is_inside(w, comm, lrank))
            return 1;
    }
    return 0;
}

static int waits_for(const struct crystal_rank_waits *w, uint32_t index, uint32_t lrank)
{
    const struct crystal_roll_record *r = &w->records[index];
    struct crystal_board_comm *comm;

    if (r->kind != CRYSTAL_ROLL_WAITS || r->lrank == lrank || has_gone_on(w, index))
        return 0;
    if (crystal_roll_member(w->roll, r->comm_id, r->crank) == lrank)
        return 1;
    comm = crystal_board_comm_find(w->board, r->comm_id);
    return comm && is_ahead(w, comm, r->lrank, lrank);
}

/* Is lrank a member of the communicator that has not joined it? */
static int is_missed(const struct crystal_rank_waits *w,
                     const struct crystal_roll_record *record, uint32_t lrank)
{
    struct crystal_board_comm *comm =
        crystal_board_comm_find(w->board, record->comm_id);
    uint32_t crank;

    if (!comm || record->kind != CRYSTAL_ROLL_JOINED || record->lrank == lrank ||
        crystal_now_ns() - record->time_ns < JOIN_NS)
        return 0;
    crank = crystal_board_crank(w->board, comm, lrank);
    return crank != UINT32_MAX &&
           crystal_roll_member(w->roll, record->comm_id, crank) == UINT32_MAX;
}

int crystal_rank_waits_find(const struct crystal_rank_waits *w, uint32_t lrank,
                            struct crystal_rank_wait *ret)
{
    for (uint32_t i = 0; i < w->count; i++) {
        int joins = is_missed(w, &w->records[i], lrank);

        if (!joins && !waits_for(w, i, lrank))
            continue;
        *ret = (struct crystal_rank_wait){w->records[i].lrank, w->records[i].comm_id,
                                          joins};
        return 1;
    }
    return 0;
}
