/* See rank_watch.h.
 *
 * rank_waits.h says who waits for whom. A rank that others wait for is told when it has
 * used no CPU for 4 s, and waits for nobody itself: who computes is only slow. Of
 * ranks that all wait for each other one is told only when they hang.
 */
#include "config.h"

#include "replay/rank_watch.h"

#include "replay/rank_waits.h"
#include "runtime/clock.h"
#include "runtime/coord.h"
#include "runtime/env.h"
#include "runtime/process.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_NS    1000000000U
#define LOOKS_IDLE 4  /* without CPU, or stopped: by now all have told who wait 3 s */
#define BUSY_TICKS 5U /* of 100 a second: what service threads use is less */

struct watched {
    uint32_t lrank, pid; /* pid 0: not known */
    uint64_t cpu_ticks;
    uint32_t idle_looks, stopped_looks; /* in a row, to the last one */
    int has_joined;                     /* pid is its process; else one of its */
    int has_ended;                      /* as whoever started it says */
    int is_told;
};

struct crystal_rank_watch {
    struct crystal_roll *roll;
    struct crystal_board *board;
    const struct crystal_layout *layout;
    struct watched *ranks; /* of the sandbox */
    uint32_t count;
    uint32_t checked; /* records whose cranks are those of the board */
    uint64_t looked_ns, hang_looks;
};

struct crystal_rank_watch *
crystal_rank_watch_create(struct crystal_roll *roll, struct crystal_board *board,
                          const struct crystal_layout *layout,
                          struct crystal_share share)
{
    struct crystal_rank_watch *w = calloc(1, sizeof *w);

    if (w)
        w->ranks = calloc(share.end - share.first + 1, sizeof *w->ranks);
    if (!w || !w->ranks) {
        free(w);
        return NULL;
    }
    w->roll = roll;
    w->board = board;
    w->layout = layout;
    w->count = share.end - share.first;
    for (uint32_t i = 0; i < w->count; i++)
        w->ranks[i].lrank = layout->sandbox[share.first + i];
    w->hang_looks = crystal_coord_hang_ns(getenv(CRYSTAL_ENV_HANG_SECONDS)) / LOOK_NS;
    return w;
}

void crystal_rank_watch_destroy(struct crystal_rank_watch *w)
{
    if (!w)
        return;
    free(w->ranks);
    free(w);
}

static struct watched *rank_of(struct crystal_rank_watch *w, uint32_t lrank)
{
    for (uint32_t i = 0; i < w->count; i++)
        if (w->ranks[i].lrank == lrank)
            return &w->ranks[i];
    return NULL;
}

void crystal_rank_watch_ended(struct crystal_rank_watch *w, uint32_t lrank)
{
    struct watched *rank = rank_of(w, lrank);

    if (rank)
        rank->has_ended = 1;
}

/* --- who is who --- */

/* A record of an earlier process of that rank says nothing of the present one. */
static int is_alive(const struct crystal_roll_record *r)
{
    struct crystal_process_look process;

    return crystal_process_look(r->pid, &process) == 0 && process.state != 'Z';
}

static int claimed_twice(const struct crystal_roll_record *r, const char *name,
                         uint32_t owner, struct crystal_error *err)
{
    return crystal_error_set(err, EINVAL,
                             "rank %u joins communicator '%s' as its rank %u, which is "
                             "rank %u; the program has to take its rank from RANK or "
                             "SLURM_PROCID",
                             r->lrank, name, r->crank, owner);
}

/* The members of a communicator on the board are known by crank; of others it is known
 * that no two processes are the same one. */
static int check_joined(const struct crystal_rank_watch *w,
                        const struct crystal_roll_record *records, uint32_t index,
                        struct crystal_error *err)
{
    const struct crystal_roll_record *r = &records[index];
    struct crystal_board_comm *comm = crystal_board_comm_find(w->board, r->comm_id);
    char name[24];

    if (comm)
        return r->crank < comm->nranks &&
                       crystal_board_members(w->board, comm)[r->crank] != r->lrank
                   ? claimed_twice(r, comm->name,
                                   crystal_board_members(w->board, comm)[r->crank], err)
                   : 0;
    for (uint32_t i = 0; i < index; i++) {
        const struct crystal_roll_record *other = &records[i];

        if (other->kind == CRYSTAL_ROLL_JOINED && other->comm_id == r->comm_id &&
            other->crank == r->crank && other->lrank != r->lrank && is_alive(other) &&
            is_alive(r)) {
            (void)snprintf(name, sizeof name, "%016" PRIx64, r->comm_id);
            return claimed_twice(r, name, other->lrank, err);
        }
    }
    return 0;
}

static int check_claims(struct crystal_rank_watch *w,
                        const struct crystal_roll_record *records, uint32_t count,
                        struct crystal_error *err)
{
    for (uint32_t i = w->checked; i < count; i++) {
        const struct crystal_roll_record *r = &records[i];
        struct watched *rank = rank_of(w, r->lrank);
        int code =
            r->kind == CRYSTAL_ROLL_JOINED ? check_joined(w, records, i, err) : 0;

        if (code)
            return code;
        /* in a container of its own it has another number here */
        if (rank && rank->pid != r->pid && crystal_process_is_rank(r->pid, r->lrank)) {
            rank->has_joined = 1;
            rank->pid = r->pid;
        }
    }
    return 0;
}

/* --- looking --- */

/* What a rank that has joined nothing does; another job may have the same rank here. */
static void look_for(const struct crystal_rank_watch *w, struct watched *rank,
                     struct crystal_process_look *ret)
{
    char setting[4200];

    (void)snprintf(setting, sizeof setting, CRYSTAL_ENV_BOARD "=%s/board",
                   crystal_board_directory(w->board));
    crystal_process_find(setting, rank->lrank, &rank->pid, ret);
}

static void count_look(struct watched *rank, const struct crystal_process_look *process)
{
    rank->stopped_looks =
        crystal_process_is_stopped(process) ? rank->stopped_looks + 1 : 0;
    /* less than before: one of its processes has ended */
    rank->idle_looks =
        process->cpu_ticks - rank->cpu_ticks < BUSY_TICKS ? rank->idle_looks + 1 : 0;
    rank->cpu_ticks = process->cpu_ticks;
    if (!rank->idle_looks)
        rank->is_told = 0;
}

static void look_at(struct watched *rank)
{
    struct crystal_process_look process;

    if (!rank->has_joined)
        return; /* looked for where it is missed */
    if (rank->has_ended || crystal_process_look(rank->pid, &process) ||
        process.state == 'Z') { /* another process of the rank may follow */
        rank->has_joined = 0;
        rank->idle_looks = rank->stopped_looks = 0;
    } else {
        count_look(rank, &process);
    }
}

static void place_text(struct crystal_rank_watch *w,
                       const struct crystal_rank_wait *wait, char *out,
                       size_t out_bytes)
{
    struct crystal_board_comm *comm = crystal_board_comm_find(w->board, wait->comm_id);

    (void)snprintf(out, out_bytes, "rank %u waits for it%s", wait->lrank,
                   wait->joins ? " to join communicator '" : " in communicator '");
    if (comm)
        (void)snprintf(out + strlen(out), out_bytes - strlen(out), "%s'", comm->name);
    else
        (void)snprintf(out + strlen(out), out_bytes - strlen(out), "%016" PRIx64 "'",
                       wait->comm_id);
}

static int judge(struct crystal_rank_watch *w, struct watched *rank,
                 const struct crystal_rank_wait *wait, int is_itself_waiting,
                 char *notice, size_t notice_bytes, struct crystal_error *err)
{
    char place[256];
    int is_stopped = rank->stopped_looks > 0;

    place_text(w, wait, place, sizeof place);
    if (rank->idle_looks >= w->hang_looks)
        return crystal_error_set(
            err, ETIMEDOUT, "a rank hangs: rank %u (pid %u) %s for %u s; %s",
            rank->lrank, rank->pid, is_stopped ? "is stopped" : "has used no CPU",
            rank->idle_looks, place);
    if (rank->is_told || is_itself_waiting)
        return 0;
    rank->is_told = 1;
    (void)snprintf(notice, notice_bytes, "rank %u (pid %u) %s; %s", rank->lrank,
                   rank->pid, crystal_process_idle_text(is_stopped), place);
    return 1;
}

/* Does this rank wait itself? A stopped one does not. */
static int is_waiting(const struct crystal_rank_waits *waits,
                      const struct watched *rank)
{
    return !rank->stopped_looks && crystal_rank_waits_is_waiting(waits, rank->lrank);
}

/* Does every process that runs here wait and use no CPU? */
static int do_all_wait(struct crystal_rank_watch *w,
                       const struct crystal_rank_waits *waits)
{
    for (uint32_t i = 0; i < w->count; i++)
        if (!w->ranks[i].has_ended &&
            (w->ranks[i].idle_looks < LOOKS_IDLE || !is_waiting(waits, &w->ranks[i])))
            return 0;
    return 1;
}

/* A rank that has ended, and nobody has seen it: its neighbours are virtual. Where
 * these answer at once, who waits for it is certain only when nobody does anything
 * else, or in set-up, which needs all that are real. */
static int judge_ended(struct crystal_rank_watch *w, const struct watched *rank,
                       const struct crystal_rank_wait *wait,
                       const struct crystal_rank_waits *waits,
                       struct crystal_error *err)
{
    if (crystal_board_header(w->board)->mode == CRYSTAL_BOARD_IMMEDIATE &&
        !wait->joins && !do_all_wait(w, waits))
        return 0;
    return crystal_error_set(
        err, ECANCELED, "rank %u has ended while rank %u still communicates with it",
        rank->lrank, wait->lrank);
}

/* Does one that waits for nobody keep others waiting? Then those that wait for each
 * other wait for it: it is told itself, later than they would be, or only slow. */
static int has_holder(struct crystal_rank_watch *w,
                      const struct crystal_rank_waits *waits)
{
    struct crystal_rank_wait wait;

    for (uint32_t i = 0; i < w->count; i++) {
        const struct watched *rank = &w->ranks[i];

        if (rank->pid && !rank->has_ended && !is_waiting(waits, rank) &&
            crystal_rank_waits_find(waits, rank->lrank, &wait))
            return 1;
    }
    return 0;
}

/* Does this rank keep others waiting? */
static int look_whom(struct crystal_rank_watch *w, struct watched *rank,
                     int is_itself_waiting, const struct crystal_rank_waits *waits,
                     char *notice, size_t notice_bytes, struct crystal_error *err)
{
    struct crystal_process_look process;
    struct crystal_rank_wait wait;

    if (!crystal_rank_waits_find(waits, rank->lrank, &wait))
        return 0;
    if (rank->has_ended)
        return judge_ended(w, rank, &wait, waits, err);
    if (!rank->has_joined) {
        look_for(w, rank, &process);
        if (process.state)
            count_look(rank, &process);
    }
    return rank->idle_looks < LOOKS_IDLE || (is_itself_waiting && has_holder(w, waits))
               ? 0
               : judge(w, rank, &wait, is_itself_waiting, notice, notice_bytes, err);
}

int crystal_rank_watch_look(struct crystal_rank_watch *w, char *notice,
                            size_t notice_bytes, struct crystal_error *err)
{
    uint64_t now_ns = crystal_now_ns();
    struct crystal_rank_waits waits = {.roll = w->roll, .board = w->board};
    int result;

    waits.records = crystal_roll_records(w->roll, &waits.count);
    result = check_claims(w, waits.records, waits.count, err);
    if (result || now_ns - w->looked_ns < LOOK_NS)
        return result;
    w->looked_ns = now_ns;
    w->checked = waits.count;
    for (uint32_t i = 0; i < w->count; i++)
        look_at(&w->ranks[i]);
    /* who has ended first, who waits itself last; who computes costs no look */
    for (uint32_t i = 0; !result && i < 3 * w->count; i++) {
        struct watched *rank = &w->ranks[i % w->count];
        uint32_t turn;

        if (rank->has_joined && !rank->has_ended && rank->idle_looks < LOOKS_IDLE)
            continue;
        turn = rank->has_ended ? 0 : !is_waiting(&waits, rank) ? 1 : 2;
        if (turn == i / w->count)
            result = look_whom(w, rank, turn == 2, &waits, notice, notice_bytes, err);
    }
    return result;
}
