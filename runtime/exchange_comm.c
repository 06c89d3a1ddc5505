/* Communicators of capture's exchange: their members, who stands for whom, and when
 * they are complete. See exchange.h. */
#include "config.h"

#include "runtime/exchange.h"

#include "runtime/exchange_state.h"
#include "runtime/nccl_names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void crystal_exchange_comm_free(struct comm *m)
{
    if (!m)
        return;
    crystal_exchange_coll_fini(m);
    crystal_exchange_p2p_fini(m);
    for (uint32_t i = 0; i < m->live_count; i++)
        crystal_blob_unref(m->live[i].scattered.blob);
    free(m->received);
    free(m->name);
    free(m->members);
    free(m->part_of);
    free(m->live);
    free(m);
}

static struct comm *comm_add(struct crystal_exchange *x, const uint8_t *id,
                             const char *name, uint32_t nranks,
                             struct crystal_error *err)
{
    struct comm **more = realloc(x->comms, (x->comm_count + 1) * sizeof *more);
    struct comm *m = calloc(1, sizeof *m);

    if (more)
        x->comms = more;
    if (m) {
        m->name = strdup(name);
        m->members = malloc(((size_t)nranks + 1) * sizeof *m->members);
        m->part_of = malloc(((size_t)nranks + 1) * sizeof *m->part_of);
    }
    if (!more || !m || !m->name || !m->members || !m->part_of) {
        crystal_exchange_comm_free(m);
        (void)crystal_error_set(err, ENOMEM, "coordinator: out of memory");
        return NULL;
    }
    memcpy(m->id, id, sizeof m->id);
    m->nranks = nranks;
    for (uint32_t c = 0; c < nranks; c++) {
        m->members[c] = NO_RANK;
        m->part_of[c] = CRYSTAL_NO_PART;
    }
    m->index = x->comm_count;
    x->comms[x->comm_count++] = m;
    return m;
}

static struct comm *comm_find(const struct crystal_exchange *x, const uint8_t *id)
{
    for (uint32_t i = x->comm_count; i-- > 0;) /* recent ones are asked for */
        if (memcmp(x->comms[i]->id, id, NCCL_UNIQUE_ID_BYTES) == 0)
            return x->comms[i];
    return NULL;
}

int crystal_exchange_knows(const struct crystal_exchange *x, const uint8_t *id)
{
    return comm_find(x, id) != NULL;
}

static struct member *member_add(struct comm *m, uint32_t lrank, uint32_t crank)
{
    struct member *more;

    if (m->live_count == m->live_capacity) {
        uint32_t capacity = m->live_capacity ? m->live_capacity * 2 : 8;

        more = realloc(m->live, capacity * sizeof *more);
        if (!more)
            return NULL;
        m->live = more;
        m->live_capacity = capacity;
    }
    m->live[m->live_count] = (struct member){.lrank = lrank, .crank = crank};
    return &m->live[m->live_count++];
}

struct member *crystal_exchange_member(const struct comm *m, uint32_t lrank)
{
    for (uint32_t i = 0; i < m->live_count; i++)
        if (m->live[i].lrank == lrank)
            return &m->live[i];
    return NULL;
}

/* Fills part_of and times from members: each crank is stood for by the live member that
 * represents it, if that is a member. */
static int comm_represent(const struct crystal_exchange *x, struct comm *m,
                          struct crystal_error *err)
{
    uint32_t *slot_of = malloc(((size_t)x->layout->lrank_count + 1) * sizeof *slot_of);

    if (!slot_of)
        return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    for (uint32_t r = 0; r < x->layout->lrank_count; r++)
        slot_of[r] = CRYSTAL_NO_PART;
    for (uint32_t i = 0; i < m->live_count; i++) {
        slot_of[m->live[i].lrank] = i;
        m->live[i].times = 0;
    }
    for (uint32_t c = 0; c < m->nranks; c++) {
        uint32_t lrank = m->members[c];
        uint32_t live = x->ranks[lrank].is_live
                            ? lrank
                            : crystal_layout_representative(x->layout, lrank);

        m->part_of[c] = live < x->layout->lrank_count ? slot_of[live] : CRYSTAL_NO_PART;
        if (m->part_of[c] != CRYSTAL_NO_PART)
            m->live[m->part_of[c]].times++;
    }
    free(slot_of);
    if (crystal_replica_span(&x->replica, m->members, m->nranks, &m->span))
        return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    return 0;
}

int crystal_exchange_learn(struct crystal_exchange *x, const uint8_t *id,
                           const char *name, const uint32_t *members, uint32_t nranks,
                           struct crystal_error *err)
{
    struct comm *m = comm_find(x, id);

    if (m)
        return 0; /* set twice */
    m = comm_add(x, id, name, members ? nranks : 0, err);
    if (!m)
        return -ENOMEM;
    if (!members) {
        m->named_only = 1;
        return 0;
    }
    memcpy(m->members, members, nranks * sizeof *members);
    for (uint32_t c = 0; c < nranks; c++)
        if (members[c] < x->layout->lrank_count && x->ranks[members[c]].is_live &&
            !member_add(m, members[c], c))
            return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    m->members_known = 1;
    return comm_represent(x, m, err);
}

/* The name alone was known: members come from who joins. */
static int comm_size(struct comm *m, uint32_t nranks, struct crystal_error *err)
{
    uint32_t *members = malloc(((size_t)nranks + 1) * sizeof *members);
    uint32_t *part_of = malloc(((size_t)nranks + 1) * sizeof *part_of);

    if (!members || !part_of) {
        free(members);
        free(part_of);
        return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    }
    for (uint32_t c = 0; c < nranks; c++) {
        members[c] = NO_RANK;
        part_of[c] = CRYSTAL_NO_PART;
    }
    free(m->members);
    free(m->part_of);
    m->members = members;
    m->part_of = part_of;
    m->nranks = nranks;
    m->named_only = 0;
    return 0;
}

static int compare_cranks(const void *a, const void *b)
{
    uint32_t x = ((const struct member *)a)->crank,
             y = ((const struct member *)b)->crank;

    return x < y ? -1 : x > y;
}

/* All live members have asked. */
static int comm_complete(struct crystal_exchange *x, struct comm *m,
                         struct crystal_error *err)
{
    int known_name = 0;

    if (!m->members_known) {
        qsort(m->live, m->live_count, sizeof *m->live, compare_cranks);
        if (comm_represent(x, m, err) < 0)
            return -ENOMEM;
    }
    m->ready = 1;
    for (uint32_t i = 0; i < x->comm_count; i++)
        if (x->comms[i] != m && x->comms[i]->ready &&
            strcmp(x->comms[i]->name, m->name) == 0)
            known_name = 1;
    if (!known_name && x->hooks.comm_made)
        x->hooks.comm_made(x->hooks.context, m->name, m->members, m->nranks);
    for (uint32_t i = 0; i < m->live_count; i++) {
        x->ranks[m->live[i].lrank].joining = NULL;
        x->hooks.comm_ready(x->hooks.context, m->live[i].lrank, m->live[i].request,
                            m->index, m->name);
    }
    return 0;
}

static struct comm *comm_of_init(struct crystal_exchange *x,
                                 const struct crystal_msg_comm_init *init,
                                 struct crystal_error *err)
{
    struct comm *m = comm_find(x, init->id);
    char name[128];

    if (m)
        return m->named_only && comm_size(m, init->nranks, err) < 0 ? NULL : m;
    /* Its id did not come through the store: a child's says what it is a child of
     * (capture/park_split.c). */
    if (memcmp(init->id, "CRCHILD1", 8) == 0)
        (void)snprintf(name, sizeof name, "%.112s", (const char *)init->id + 16);
    else
        (void)snprintf(name, sizeof name, "id:%02x%02x%02x%02x%02x%02x%02x%02x",
                       init->id[0], init->id[1], init->id[2], init->id[3], init->id[4],
                       init->id[5], init->id[6], init->id[7]);
    for (char *c = name; *c; c++)
        if ((unsigned char)*c < ' ') /* it goes into lines of comms.tab */
            *c = '?';
    return comm_add(x, init->id, name, init->nranks, err);
}

int crystal_exchange_comm_init(struct crystal_exchange *x, uint32_t lrank,
                               uint32_t request,
                               const struct crystal_msg_comm_init *init,
                               struct crystal_error *err)
{
    struct comm *m;
    struct member *member;

    if (init->nranks == 0 || init->nranks > x->layout->lrank_count ||
        init->crank >= init->nranks)
        return crystal_error_set(
            err, EINVAL,
            "coordinator: rank %" PRIu32 " joins a communicator as %" PRIu32
            " of %" PRIu32 ", but the job has %" PRIu32 " ranks",
            lrank, init->crank, init->nranks, x->layout->lrank_count);
    m = comm_of_init(x, init, err);
    if (!m)
        return -ENOMEM;
    if (init->nranks != m->nranks)
        return crystal_error_set(
            err, EINVAL,
            "coordinator: rank %" PRIu32 " joins communicator '%s' "
            "as one of %" PRIu32 " ranks, but it has %" PRIu32 " (the job has %" PRIu32
            " logical ranks); does the "
            "program take its world size from WORLD_SIZE?",
            lrank, m->name, init->nranks, m->nranks, x->layout->lrank_count);
    if (m->members[init->crank] == NO_RANK)
        m->members[init->crank] = lrank;
    if (m->members[init->crank] != lrank)
        return crystal_error_set(err, EINVAL,
                                 "coordinator: rank %" PRIu32
                                 " joins communicator '%s' "
                                 "as its rank %" PRIu32 ", which is rank %" PRIu32
                                 "; the program has to take its rank from RANK or "
                                 "SLURM_PROCID",
                                 lrank, m->name, init->crank, m->members[init->crank]);
    member = crystal_exchange_member(m, lrank);
    if (!member && !m->members_known)
        member = member_add(m, lrank, init->crank);
    if (!member)
        return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    if (member->joined || member->crank != init->crank)
        return crystal_error_set(
            err, EINVAL, "coordinator: rank %" PRIu32 " joins communicator '%s' twice",
            lrank, m->name);
    member->joined = 1;
    member->request = request;
    x->ranks[lrank].joining = m;
    m->joined_count++;
    if (m->joined_count == (m->members_known ? m->live_count : m->nranks))
        return comm_complete(x, m, err);
    return 0;
}
