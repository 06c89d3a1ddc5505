/* Places in rings. See net_rings.h. They are made at the first question after the real
 * members have told, all at once. */
#include "config.h"

#include "replay/net_rings.h"

#include "replay/net.h"
#include "replay/wait_list.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct made {
    uint32_t count;   /* rings; channel c has c % count */
    uint32_t *places; /* [count][nranks] place by crank, owned; NULL: rank order */
    struct crystal_ring_place at[];
};

struct crystal_rings {
    struct crystal_net_comm *comm;
    struct crystal_board_comm *entry;
    uint32_t crank;
    _Atomic(struct made *) made; /* NULL: not yet */
    pthread_mutex_t lock;        /* making it */
};

struct crystal_rings *crystal_rings_create(struct crystal_net_comm *comm,
                                           struct crystal_board_comm *entry,
                                           struct crystal_error *err)
{
    struct crystal_rings *rings = calloc(1, sizeof *rings);

    if (!rings) {
        (void)crystal_error_set(err, ENOMEM, "out of memory for rings");
        return NULL;
    }
    rings->comm = comm;
    rings->entry = entry;
    rings->crank = comm->crank;
    (void)pthread_mutex_init(&rings->lock, NULL); /* cannot fail on Linux */
    return rings;
}

static void made_free(struct made *made)
{
    if (made)
        free(made->places);
    free(made);
}

void crystal_rings_destroy(struct crystal_rings *rings)
{
    if (!rings)
        return;
    made_free(atomic_load(&rings->made));
    (void)pthread_mutex_destroy(&rings->lock);
    free(rings);
}

/* The nearest real rank before or behind this one; it is real itself, so the walk
 * ends. Returns how many virtual ones are between them. */
static uint32_t walk(const struct crystal_ring_place *p, const uint8_t *is_real,
                     int is_behind, uint32_t *ret_crank)
{
    const uint32_t n = p->nranks, step = is_behind ? 1 : n - 1;
    uint32_t run = 0, at = (p->place + step) % n;

    for (; !is_real[crystal_ring_crank(p, at)]; at = (at + step) % n)
        run++;
    *ret_crank = crystal_ring_crank(p, at);
    return run;
}

static void place_find(struct crystal_rings *rings, struct crystal_ring_place *p)
{
    const uint8_t *is_real =
        crystal_board_is_real(rings->comm->module->board, rings->entry);

    p->nranks = rings->entry->nranks;
    p->place = crystal_ring_place_of(p, rings->crank);
    p->run_before = walk(p, is_real, 0, &p->sender);
    p->run_behind = walk(p, is_real, 1, &p->receiver);
}

/* Turns a ring round: place by crank. Every crank has to be there once. */
static int ring_invert(const uint32_t *cranks, uint32_t n, uint32_t *places)
{
    for (uint32_t i = 0; i < n; i++)
        places[i] = n;
    for (uint32_t i = 0; i < n; i++) {
        if (cranks[i] >= n || places[cranks[i]] != n)
            return -EPROTO;
        places[cranks[i]] = i;
    }
    return 0;
}

static int rings_find(struct crystal_rings *rings, struct made *made)
{
    const uint32_t n = rings->entry->nranks;

    made->places = malloc(sizeof *made->places * n * (size_t)made->count);
    if (!made->places)
        return -ENOMEM;
    for (uint32_t i = 0; i < made->count; i++) {
        const uint32_t *cranks =
            crystal_board_ring_ranks(rings->comm->module->board, rings->entry, i);
        uint32_t *places = made->places + (size_t)i * n;

        if (!cranks || ring_invert(cranks, n, places))
            return -EPROTO;
        made->at[i].cranks = cranks;
        made->at[i].places = places;
    }
    return 0;
}

static int make(struct crystal_rings *rings, uint32_t state, struct crystal_error *err)
{
    const int is_listed = state == CRYSTAL_BOARD_RINGS_LISTED;
    const uint32_t count = is_listed ? rings->entry->ring_count : 1;
    struct made *made = count && count <= CRYSTAL_NET_CHANNELS
                            ? calloc(1, sizeof *made + count * sizeof made->at[0])
                            : NULL;
    int code = made ? 0 : count && count <= CRYSTAL_NET_CHANNELS ? -ENOMEM : -EPROTO;

    if (made)
        made->count = count;
    if (!code && is_listed)
        code = rings_find(rings, made);
    if (code) {
        made_free(made);
        return crystal_error_set(
            err, -code, "communicator '%s': %s", rings->entry->name,
            code == -ENOMEM ? "out of memory for rings"
                            : "the board's list of its rings is broken");
    }
    for (uint32_t i = 0; i < count; i++)
        place_find(rings, &made->at[i]);
    atomic_store_explicit(&rings->made, made, memory_order_release);
    return 0;
}

int crystal_rings_place(struct crystal_rings *rings, uint32_t channel,
                        const struct crystal_ring_place **ret,
                        struct crystal_error *err)
{
    struct made *made = atomic_load_explicit(&rings->made, memory_order_acquire);
    uint32_t state;
    int code = 0;

    if (!made) {
        state = atomic_load_explicit(&rings->entry->rings, memory_order_acquire);
        if (state == CRYSTAL_BOARD_RINGS_AWAITED) {
            crystal_wait_board();
            return 0;
        }
        (void)pthread_mutex_lock(&rings->lock);
        if (!atomic_load(&rings->made))
            code = make(rings, state, err);
        made = atomic_load(&rings->made);
        (void)pthread_mutex_unlock(&rings->lock);
        if (code)
            return code;
    }
    *ret = &made->at[channel % made->count];
    return 1;
}
