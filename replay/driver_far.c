/* The driver's letters from and to other nodes. See driver_far.h. */
#include "config.h"

#include "replay/driver_far.h"

#include "replay/driver_internal.h"

#include "runtime/nccl_names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SETTLED_NS 1U /* times up to here mean "not yet" and "long ago" */

uint64_t dr_job_ns(const struct crystal_driver *d, uint64_t own_ns)
{
    return own_ns <= SETTLED_NS ? own_ns
                                : own_ns + (uint64_t)crystal_links_clock_ns(d->links);
}

uint64_t dr_own_ns(const struct crystal_driver *d, uint64_t job_ns)
{
    return job_ns <= SETTLED_NS ? job_ns
                                : job_ns - (uint64_t)crystal_links_clock_ns(d->links);
}

bool dr_is_local(const struct crystal_driver *d, uint32_t lrank)
{
    return crystal_layout_node_of(d->layout, crystal_links_count(d->links), lrank) ==
           crystal_links_node(d->links);
}

int dr_far_init(struct crystal_driver *d, struct crystal_error *err)
{
    uint32_t count = crystal_graph_comm_count(d->graph);

    if (!d->links)
        return 0;
    d->has_local = calloc(count + 1, 1);
    if (!d->has_local)
        return crystal_error_set(err, ENOMEM, "out of memory");
    for (uint32_t i = 0; i < count; i++) {
        struct crystal_graph_comm comm;

        crystal_graph_comm(d->graph, i, &comm);
        for (uint32_t k = 0; k < comm.nranks && !d->has_local[i]; k++)
            d->has_local[i] = dr_is_local(d, comm.members[k]);
    }
    return 0;
}

void dr_far_fini(struct crystal_driver *d)
{
    free(d->inbox);
    free(d->letters);
    free(d->has_local);
}

void dr_far_tell(struct crystal_driver *d, struct crystal_far_arrival *arrival)
{
    if (d->links)
        crystal_links_tell(d->links, CRYSTAL_LINK_ARRIVAL, arrival, sizeof *arrival);
}

bool dr_far_is_missing(const struct dr_comm *dc, uint64_t seq)
{
    for (uint32_t i = 0; i < dc->far_count; i++)
        if (dc->far_next[i] <= seq)
            return true;
    return false;
}

/* The first rank of this node that has come to the slot; who described it said the same
 * as the others, or the job is stopped. */
static uint32_t who_came(struct crystal_driver *d, const struct dr_comm *dc,
                         struct crystal_board_slot *slot)
{
    struct crystal_board_cell *cells = crystal_board_cells(d->board, dc->entry, slot);
    uint32_t i = 0;

    while (i + 1 < dc->real_count && !atomic_load(&cells[dc->real[i]].arrive_ns) &&
           !atomic_load(&cells[dc->real[i]].end_ns))
        i++;
    return dc->real_count ? dc->members[dc->real[i]] : UINT32_MAX;
}

void dr_far_compare(struct crystal_driver *d, struct dr_comm *dc,
                    struct crystal_board_slot *slot, uint64_t seq)
{
    struct crystal_far_arrival *told;
    struct crystal_error err;

    if (!dc->far_count || !atomic_load_explicit(&slot->described, memory_order_acquire))
        return;
    told = &dc->told[seq % CRYSTAL_BOARD_SLOTS];
    if (told->kind != CRYSTAL_FAR_COLLECTIVE || told->seq != seq)
        return;
    told->kind = 0;
    if (!told->func || (told->func == slot->func && told->dtype == slot->dtype &&
                        told->root == slot->root && told->count == slot->count))
        return;
    (void)crystal_error_set(
        &err, EPROTO,
        "communicator '%s', operation %llu: rank %u calls %s of %llu elements (type "
        "%u, root %u), rank %u of another node %s of %llu (type %u, root %u)",
        dc->entry->name, (unsigned long long)seq, who_came(d, dc, slot),
        crystal_func_name(slot->func), (unsigned long long)slot->count, slot->dtype,
        slot->root, dc->members[told->from], crystal_func_name(told->func),
        (unsigned long long)told->count, told->dtype, told->root);
    dr_fail(d, &err);
}

/* --- letters --- */

static int letter_read(struct dr_letter *letter, unsigned type, const void *body,
                       uint32_t bytes)
{
    size_t want = type == CRYSTAL_LINK_ARRIVAL ? sizeof letter->body.arrival
                  : type == CRYSTAL_LINK_START ? sizeof letter->body.start
                  : type == CRYSTAL_LINK_FREE  ? sizeof letter->body.why
                                               : UINT32_MAX;

    if (bytes != want)
        return -EBADMSG;
    letter->type = type;
    memcpy(&letter->body, body, bytes);
    return 0;
}

static int letter_put(struct crystal_driver *d, const struct dr_letter *letter)
{
    if (d->inbox_count == d->inbox_room) {
        size_t room = d->inbox_room ? 2 * d->inbox_room : 64;
        struct dr_letter *more = realloc(d->inbox, room * sizeof *more);

        if (!more)
            return -ENOMEM;
        d->inbox = more;
        d->inbox_room = room;
    }
    d->inbox[d->inbox_count++] = *letter;
    return 0;
}

int crystal_driver_far(struct crystal_driver *d, unsigned type, const void *body,
                       uint32_t bytes)
{
    struct dr_letter letter;
    int code = letter_read(&letter, type, body, bytes);

    if (code)
        return code;
    (void)pthread_mutex_lock(&d->inbox_lock);
    code = letter_put(d, &letter);
    (void)pthread_mutex_unlock(&d->inbox_lock);
    crystal_board_ring(d->board);
    return code;
}

/* The board's entry of a far arrival, if this node has it. */
static struct dr_comm *comm_of(struct crystal_driver *d, uint64_t comm_id)
{
    for (uint32_t i = 0; i < d->head->comm_capacity; i++) {
        struct dr_comm *dc = &d->comms[i];

        if (!dc->entry)
            return NULL; /* entries are opened in order */
        if (dc->entry->comm_id == comm_id)
            return dc;
    }
    return NULL;
}

static void note(struct dr_comm *dc, const struct crystal_far_arrival *a)
{
    uint32_t i = 0;

    if (!dc || a->kind != CRYSTAL_FAR_COLLECTIVE)
        return;
    while (i < dc->far_count && dc->far[i] != a->from)
        i++;
    if (i == dc->far_count)
        return;  /* no member that runs there */
    if (a->func) /* there is something to compare */
        dc->told[a->seq % CRYSTAL_BOARD_SLOTS] = *a;
    if (dc->far_next[i] <= a->seq)
        dc->far_next[i] = a->seq + 1;
}

static void on_arrival(struct crystal_driver *d, const struct crystal_far_arrival *a)
{
    struct crystal_error err = {0};
    int code = 0;

    note(comm_of(d, a->comm_id), a);
    if (d->is_free || !d->timeline)
        return;
    if (a->kind == CRYSTAL_FAR_COLLECTIVE)
        code = crystal_timeline_feed(d->timeline, a->graph_comm, a->seq, a->from,
                                     a->time_ns, &err);
    else if (a->kind == CRYSTAL_FAR_SENDS || a->kind == CRYSTAL_FAR_RECEIVES)
        code = crystal_timeline_feed_p2p(d->timeline, a->graph_comm, a->from, a->to,
                                         a->seq, a->kind == CRYSTAL_FAR_SENDS,
                                         a->time_ns, &err);
    if (code)
        dr_fail(d, &err);
}

static void on_letter(struct crystal_driver *d, const struct dr_letter *letter)
{
    uint64_t wish_ns = letter->body.start.time_ns;
    uint64_t own_ns = dr_job_ns(d, d->setup_end_ns);

    switch (letter->type) {
    case CRYSTAL_LINK_ARRIVAL:
        on_arrival(d, &letter->body.arrival);
        break;
    case CRYSTAL_LINK_START:
        if (crystal_links_node(d->links) > 0)
            dr_start_at(d, wish_ns);
        else if (!d->is_started) {
            struct crystal_far_start word = {wish_ns > own_ns ? wish_ns : own_ns};

            crystal_links_tell(d->links, CRYSTAL_LINK_START, &word, sizeof word);
            dr_start_at(d, word.time_ns);
        }
        break;
    default:
        d->is_free = true; /* whoever found it has said why */
        atomic_store(&d->head->timeline, letter->body.why);
    }
}

bool dr_far_look(struct crystal_driver *d)
{
    struct dr_letter *full;
    size_t count, room;

    if (!d->links)
        return false;
    (void)pthread_mutex_lock(&d->inbox_lock);
    full = d->inbox;
    count = d->inbox_count;
    room = d->inbox_room;
    d->inbox = d->letters;
    d->inbox_room = d->letters_room;
    d->inbox_count = 0;
    (void)pthread_mutex_unlock(&d->inbox_lock);
    d->letters = full;
    d->letters_room = room;
    for (size_t i = 0; i < count && !d->is_failed; i++)
        on_letter(d, &full[i]);
    return count > 0;
}
