/* PAT with virtual peers. See virtual_pat.h.
 *
 * A rank's own block goes out first over the widest dimension, one chunk per round, and
 * before anything of that round is needed here: that is where stand-ins of an
 * all-gather come from. A round's chunk is kept until every message of the round was
 * made.
 */
#include "config.h"

#include "replay/virtual_pat.h"

#include "replay/net.h"
#include "replay/net_payload.h"
#include "replay/net_wait.h"
#include "replay/virtual_time.h"
#include "runtime/pat_schedule.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* This rank's own chunk of a round. */
struct own_chunk {
    struct own_chunk *next;
    uint64_t round;
    uint64_t needed; /* messages of the round that were not made yet */
    unsigned char data[];
};

struct pat_line {
    struct pat_line *next;
    uint64_t seq;
    uint32_t channel;
    struct own_chunk *first;
    uint64_t kept; /* rounds so far */
};

struct pattern {
    struct pattern *next;
    enum crystal_func func;
    uint32_t aggregate;
    uint64_t messages; /* that a rank receives per round */
    struct crystal_pat pat;
};

struct crystal_pats {
    struct crystal_net_comm *comm;
    const uint8_t *is_real;
    pthread_mutex_t lock;     /* everything below */
    struct pattern *patterns; /* made once, stay */
    struct pat_line *first;
    int is_waited;
    pthread_t waiter;
};

struct crystal_pats *crystal_pats_create(struct crystal_net_comm *comm,
                                         struct crystal_board_comm *entry,
                                         struct crystal_error *err)
{
    struct crystal_pats *p;

    if (entry->real_count != 1) {
        (void)crystal_error_set(err, ENOTSUP,
                                "communicator '%s' has %u real ranks; where virtual "
                                "ranks take part, NCCL's PAT algorithm can have one: "
                                "set NCCL_PAT_ENABLE=0, or leave it out of NCCL_ALGO",
                                entry->name, entry->real_count);
        return NULL;
    }
    p = calloc(1, sizeof *p);
    if (!p) {
        (void)crystal_error_set(err, ENOMEM, "out of memory for PAT");
        return NULL;
    }
    p->comm = comm;
    p->is_real = crystal_board_is_real(comm->module->board, entry);
    (void)pthread_mutex_init(&p->lock, NULL); /* cannot fail on Linux */
    return p;
}

static void line_free(struct pat_line *line)
{
    while (line->first) {
        struct own_chunk *own = line->first;

        line->first = own->next;
        free(own);
    }
    free(line);
}

void crystal_pats_destroy(struct crystal_pats *p)
{
    if (!p)
        return;
    while (p->patterns) {
        struct pattern *pattern = p->patterns;

        p->patterns = pattern->next;
        crystal_pat_fini(&pattern->pat);
        free(pattern);
    }
    while (p->first) {
        struct pat_line *line = p->first;

        p->first = line->next;
        line_free(line);
    }
    (void)pthread_mutex_destroy(&p->lock);
    free(p);
}

uint32_t crystal_pats_count(struct crystal_pats *p)
{
    uint32_t count = 0;

    (void)pthread_mutex_lock(&p->lock);
    for (struct pat_line *line = p->first; line; line = line->next)
        count++;
    (void)pthread_mutex_unlock(&p->lock);
    return count;
}

static const struct pattern *pattern_get(struct crystal_pats *p, enum crystal_func func,
                                         uint32_t aggregate)
{
    struct pattern *pattern;

    for (pattern = p->patterns; pattern; pattern = pattern->next)
        if (pattern->func == func && pattern->aggregate == aggregate)
            return pattern;
    pattern = calloc(1, sizeof *pattern);
    if (!pattern || crystal_pat_init(&pattern->pat, func, p->comm->nranks, aggregate)) {
        free(pattern);
        return NULL;
    }
    pattern->func = func;
    pattern->aggregate = aggregate;
    for (uint32_t d = 0; d < pattern->pat.dims; d++)
        pattern->messages += pattern->pat.messages[d];
    pattern->next = p->patterns;
    p->patterns = pattern;
    return pattern;
}

/* --- a message --- */

struct facts {
    const struct pattern *pattern;
    struct crystal_pat_cut cut;
    const struct crystal_pat_piece *pieces;
    uint32_t piece_count;
    uint32_t dim;
    uint64_t round, rounds;
    uint64_t chunk_bytes;  /* of this round */
    uint64_t offset_bytes; /* of this round's chunk in a rank's block */
    uint64_t bytes;
};

/* The power of two that is the distance to a peer, or DIMS where it is none. */
static uint32_t dim_of(const struct crystal_pats *p,
                       const struct crystal_pat_message *m, int is_send)
{
    const uint32_t n = p->comm->nranks, me = p->comm->crank;
    const int is_up = (m->op->func == CRYSTAL_FUNC_REDUCESCATTER) == is_send;
    uint32_t distance = is_up ? (m->peer + n - me) % n : (me + n - m->peer) % n;

    return distance && !(distance & (distance - 1)) ? (uint32_t)__builtin_ctz(distance)
                                                    : CRYSTAL_PAT_DIMS;
}

/* With the lock held. */
static int facts_find(struct crystal_pats *p, const struct crystal_pat_message *m,
                      int is_send, struct facts *f, struct crystal_error *err)
{
    const struct crystal_operation *op = m->op;
    struct crystal_pat_op pat_op = {.func = (enum crystal_func)op->func,
                                    .nranks = p->comm->nranks,
                                    .count = op->count,
                                    .elt_bytes = (uint32_t)op->elt_bytes,
                                    .channel_count =
                                        op->channel_count ? op->channel_count : 1,
                                    .channel = m->channel};
    uint32_t per_round;
    uint64_t left;

    memset(f, 0, sizeof *f);
    crystal_pat_cut(&pat_op, &f->cut);
    f->pattern = pattern_get(p, pat_op.func, f->cut.aggregate);
    if (!f->pattern)
        return crystal_error_set(err, ENOMEM, "out of memory for PAT");
    f->dim = dim_of(p, m, is_send);
    if (m->index >= crystal_pat_message_count(&f->pattern->pat, &f->cut, f->dim))
        return crystal_error_set(
            err, EPROTO, "message %llu %s rank %u is none of PAT's schedule",
            (unsigned long long)m->index, is_send ? "to" : "from", m->peer);
    per_round = f->pattern->pat.messages[f->dim];
    f->round = m->index / per_round;
    f->rounds = (f->cut.bytes + f->cut.chunk_bytes - 1) / f->cut.chunk_bytes;
    f->pieces = crystal_pat_pieces(&f->pattern->pat, f->dim,
                                   (uint32_t)(m->index % per_round), &f->piece_count);
    left = f->cut.bytes - f->round * f->cut.chunk_bytes;
    f->chunk_bytes = left < f->cut.chunk_bytes ? left : f->cut.chunk_bytes;
    f->offset_bytes = f->cut.offset_bytes + f->round * f->cut.chunk_bytes;
    if (f->piece_count)
        f->bytes = (f->pieces[f->piece_count - 1].place + 1ULL) * f->chunk_bytes;
    return 0;
}

static struct pat_line *line_get(struct crystal_pats *p, uint64_t seq, uint32_t channel)
{
    struct pat_line *line;

    for (line = p->first; line; line = line->next)
        if (line->seq == seq && line->channel == channel)
            return line;
    line = calloc(1, sizeof *line);
    if (!line)
        return NULL;
    line->seq = seq;
    line->channel = channel;
    line->next = p->first;
    p->first = line;
    return line;
}

/* Keeps this rank's own chunk of the round, which is one of the message's pieces. */
static int own_keep(struct crystal_pats *p, const struct crystal_pat_message *m,
                    const struct facts *f, const unsigned char *data,
                    struct crystal_error *err)
{
    struct pat_line *line;
    struct own_chunk *own;
    uint32_t i = 0;

    while (i < f->piece_count && f->pieces[i].rank != 1U << f->dim)
        i++;
    if (i == f->piece_count)
        return 0;
    line = line_get(p, m->op->seq, m->channel);
    own = malloc(sizeof *own + f->chunk_bytes);
    if (!line || !own) {
        free(own);
        return crystal_error_set(err, ENOMEM, "out of memory for PAT");
    }
    own->round = f->round;
    own->needed = f->pattern->messages;
    memcpy(own->data, data + f->pieces[i].place * f->chunk_bytes, f->chunk_bytes);
    own->next = line->first;
    line->first = own;
    line->kept++;
    return 0;
}

/* Only an all-gather with stand-ins needs this rank's block. */
static int is_own_needed(const struct crystal_pat_message *m, int *ret,
                         struct crystal_payload_plan *plan, struct crystal_error *err)
{
    int code = crystal_payload_plan(m->op, plan, err);

    *ret = m->op->func == CRYSTAL_FUNC_ALLGATHER && !plan->is_recorded &&
           crystal_payload_is_valued(m->op);
    return code;
}

int crystal_pats_send(struct crystal_pats *p, const struct crystal_pat_message *m,
                      const void *data, uint64_t bytes, struct crystal_error *err)
{
    struct crystal_payload_plan plan;
    struct facts f;
    int code, is_needed, wakes;

    (void)pthread_mutex_lock(&p->lock);
    code = facts_find(p, m, 1, &f, err);
    if (!code && f.bytes != bytes)
        code =
            crystal_error_set(err, EPROTO,
                              "message %llu to rank %u has %llu bytes where PAT's "
                              "schedule has %llu",
                              (unsigned long long)m->index, m->peer,
                              (unsigned long long)bytes, (unsigned long long)f.bytes);
    if (!code)
        code = is_own_needed(m, &is_needed, &plan, err);
    if (!code && is_needed && f.dim + 1 == f.pattern->pat.dims)
        code = own_keep(p, m, &f, data, err);
    wakes = p->is_waited && !pthread_equal(p->waiter, pthread_self());
    p->is_waited = 0;
    (void)pthread_mutex_unlock(&p->lock);
    if (wakes)
        crystal_net_wake();
    return code;
}

/* --- what a virtual peer sends --- */

static struct own_chunk *own_find(struct crystal_pats *p,
                                  const struct crystal_pat_message *m, uint64_t round)
{
    for (struct pat_line *line = p->first; line; line = line->next)
        if (line->seq == m->op->seq && line->channel == m->channel)
            for (struct own_chunk *own = line->first; own; own = own->next)
                if (own->round == round)
                    return own;
    return NULL;
}

/* A message of the round was made: forgets what nobody needs any more. */
static void own_settle(struct crystal_pats *p, const struct crystal_pat_message *m,
                       struct own_chunk *own, uint64_t rounds)
{
    struct pat_line **at = &p->first, *line;
    struct own_chunk **here;

    if (--own->needed)
        return;
    while ((*at)->seq != m->op->seq || (*at)->channel != m->channel)
        at = &(*at)->next;
    line = *at;
    for (here = &line->first; *here != own; here = &(*here)->next)
        ;
    *here = own->next;
    free(own);
    if (!line->first && line->kept == rounds) {
        *at = line->next;
        line_free(line);
    }
}

/* A chunk of an all-gather: rank X's block as it is where it was recorded, else this
 * rank's own. */
static int gather_put(const struct crystal_pats *p, const struct crystal_pat_message *m,
                      const struct facts *f, const struct crystal_payload_plan *plan,
                      const struct own_chunk *own, uint32_t rank, void *data,
                      struct crystal_error *err)
{
    const uint32_t crank = (p->comm->crank + rank) % p->comm->nranks;
    const void *recorded;
    int code = -ENODATA;

    if (plan->is_recorded || plan->is_bulk)
        code = crystal_payload_get(m->op, plan, crank, f->offset_bytes, f->chunk_bytes,
                                   &recorded, plan->is_recorded ? err : NULL);
    if (!code)
        memcpy(data, recorded, f->chunk_bytes);
    if (!code || !own)
        return code;
    memcpy(data, own->data, f->chunk_bytes);
    if (!plan->is_unneeded)
        crystal_operation_standin(m->op, f->chunk_bytes);
    return 0;
}

/* A chunk of a reduce-scatter for the rank that stands `rank` behind the sender: the
 * contributions of the sender and of those whose chunks it has. */
static int scatter_put(const struct crystal_pats *p,
                       const struct crystal_pat_message *m, const struct facts *f,
                       const struct crystal_payload_plan *plan, uint32_t rank,
                       void *data, struct crystal_error *err)
{
    const uint32_t n = p->comm->nranks;
    const uint64_t block = m->op->count * m->op->elt_bytes;
    struct crystal_payload_sum sum = {
        .op = m->op,
        .plan = plan,
        .data = data,
        .elts = (uint32_t)(f->chunk_bytes / m->op->elt_bytes)};

    for (uint32_t k = 0; k < 1U << f->dim && rank + k < n; k++) {
        int code =
            crystal_payload_add(&sum, (m->peer + n - k) % n,
                                (m->peer + rank) % n * block + f->offset_bytes, err);

        if (code)
            return code;
    }
    crystal_payload_end(&sum);
    return 0;
}

/* When the contributions of virtual ranks in this message could be here. */
static uint64_t arrive_ns(const struct crystal_pats *p,
                          const struct crystal_pat_message *m, const struct facts *f)
{
    const struct crystal_wire *wire = &p->comm->module->wire;
    const uint64_t hop_ns = crystal_vt_hop_ns(wire, f->bytes);
    const uint32_t n = p->comm->nranks;
    const int is_gather = m->op->func == CRYSTAL_FUNC_ALLGATHER;
    uint64_t most_ns = 0;

    for (uint32_t i = 0; m->cells && i < f->piece_count; i++) {
        uint32_t count = is_gather ? 1 : 1U << f->dim;

        for (uint32_t k = 0; k < count && f->pieces[i].rank + k < n; k++) {
            uint32_t from = is_gather ? (p->comm->crank + f->pieces[i].rank) % n
                                      : (m->peer + n - k) % n;
            uint32_t hops = is_gather ? (uint32_t)__builtin_popcount(f->pieces[i].rank)
                                      : (uint32_t)__builtin_popcount(k) + 1;
            uint64_t at_ns =
                atomic_load_explicit(&m->cells[from].arrive_ns, memory_order_relaxed);

            if (at_ns > 1 && at_ns + hops * hop_ns > most_ns)
                most_ns = at_ns + hops * hop_ns;
        }
    }
    return most_ns ? most_ns + m->index * crystal_wire_occupy_ns(wire, f->bytes) : 0;
}

static int take_locked(struct crystal_pats *p, const struct crystal_pat_message *m,
                       const struct facts *f, unsigned char *data, uint64_t room,
                       struct crystal_error *err)
{
    struct crystal_payload_plan plan;
    struct own_chunk *own = NULL;
    int is_needed, code = is_own_needed(m, &is_needed, &plan, err);

    if (!code && f->bytes > room)
        code =
            crystal_error_set(err, EMSGSIZE,
                              "a message of %llu bytes of PAT does not fit the %llu "
                              "that were posted",
                              (unsigned long long)f->bytes, (unsigned long long)room);
    if (code)
        return code;
    if (is_needed) {
        own = own_find(p, m, f->round);
        if (!own) {
            p->is_waited = 1;
            p->waiter = pthread_self();
            return 0;
        }
    }
    if (!data) /* nobody asks for contents */
        crystal_operation_standin(m->op, f->bytes);
    for (uint32_t i = 0; i < f->piece_count && !code && data; i++) {
        const struct crystal_pat_piece *piece = &f->pieces[i];
        unsigned char *at = data + piece->place * f->chunk_bytes;

        code = m->op->func == CRYSTAL_FUNC_ALLGATHER
                   ? gather_put(p, m, f, &plan, own, piece->rank, at, err)
                   : scatter_put(p, m, f, &plan, piece->rank, at, err);
    }
    if (!code && own)
        own_settle(p, m, own, f->rounds);
    return code ? code : 1;
}

int crystal_pats_take(struct crystal_pats *p, const struct crystal_pat_message *m,
                      void *data, uint64_t room, uint64_t *ret_bytes, uint64_t *ret_ns,
                      struct crystal_error *err)
{
    struct facts f;
    int code;

    (void)pthread_mutex_lock(&p->lock);
    code = facts_find(p, m, 0, &f, err);
    if (!code)
        code = take_locked(p, m, &f, data, room, err);
    (void)pthread_mutex_unlock(&p->lock);
    if (code > 0) {
        *ret_bytes = f.bytes;
        *ret_ns = arrive_ns(p, m, &f);
    }
    return code;
}
