/* PAT's patterns; see pat_schedule.h.
 *
 * NCCL walks through the distances s in an order that keeps few messages open: the
 * high bits of s (`wide`, a power of two of them) are walked fastest, so that chunks of
 * ranks far apart share a message; the low bits count down (ReduceScatter) or follow
 * the tree (AllGather). Distances that are multiples of the low range are walked per
 * height at the end (ReduceScatter) or the beginning (AllGather).
 */
#include "config.h"

#include "runtime/pat_schedule.h"

#include "runtime/channel_part.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define STEP_DEPTH        8U /* steps of a connection's buffer */
#define CHUNK_BYTES_LEAST 65536U

struct walk {
    struct crystal_pat *pat;
    uint32_t nranks;
    uint32_t group;                    /* chunks per message */
    uint32_t wide;                     /* high parts of a distance */
    uint32_t low;                      /* distances per high part */
    uint32_t cursor[CRYSTAL_PAT_DIMS]; /* messages that are complete */
    uint32_t room;
    bool is_out_of_memory;
};

static uint32_t power_above(uint32_t value)
{
    uint32_t power = 1;

    while (power < value)
        power *= 2;
    return power;
}

static uint32_t log2_of(uint32_t power)
{
    return (uint32_t)__builtin_ctz(power);
}

static void emit(struct walk *w, uint32_t dim, uint32_t ahead, uint32_t place,
                 uint32_t rank)
{
    struct crystal_pat *pat = w->pat;

    if (pat->piece_count == w->room) {
        uint32_t room = w->room ? 2 * w->room : 64;
        struct crystal_pat_piece *more = realloc(pat->pieces, room * sizeof *more);

        if (!more) {
            w->is_out_of_memory = true;
            return;
        }
        pat->pieces = more;
        w->room = room;
    }
    pat->pieces[pat->piece_count++] = (struct crystal_pat_piece){
        .dim = dim, .message = w->cursor[dim] + ahead, .place = place, .rank = rank};
}

/* Bits in reverse order, each inverted: the largest comes first. */
static uint32_t falling(uint32_t i, uint32_t count)
{
    uint32_t value = 0;

    for (uint32_t bit = 1, mirrored = count / 2; bit < count; bit *= 2, mirrored /= 2)
        if (!(i & bit))
            value += mirrored;
    return value;
}

/* Whether the i-th of count, a power of two, is the first that goes to another peer:
 * only upper bits are set in it. */
static bool is_new_peer(uint32_t i, uint32_t count)
{
    uint32_t rest = (i ^ (count - 1)) + 1;

    return (rest & (rest - 1)) == 0 && rest != 0;
}

static bool is_group_end(const struct walk *w, uint32_t i, uint32_t count)
{
    return (i + 1) % w->group == 0 || i + 1 == count;
}

/* --- ReduceScatter --- */

/* Own chunks of the ranks at odd distances, to the next rank. */
static void scatter_own(struct walk *w, uint32_t as)
{
    for (uint32_t a = 0; a < w->wide; a++) {
        uint32_t s = falling(a, w->wide) * w->low + as;

        if (s >= w->nranks)
            continue;
        emit(w, 0, 0, a % w->group, s);
        if (is_group_end(w, a, w->wide))
            w->cursor[0]++;
    }
}

/* What came over the lowest bit of `as` goes on without that bit. */
static void scatter_pass(struct walk *w, uint32_t as)
{
    const uint32_t bit = as & -as;
    uint32_t skipped = 0, ahead = 0;

    for (uint32_t a = 0; a < w->wide; a++) {
        uint32_t from = falling(a, w->wide) * w->low + as, s = from - bit;
        uint32_t place = a % w->group, now = ahead;
        const bool goes = s < w->nranks;

        if (s && as == bit) {
            if (is_new_peer(a, w->wide)) {
                skipped = a;
                ahead = now = 0;
            }
            place = (a - skipped) % w->group;
        }
        if (goes && s) {
            uint32_t dim = (uint32_t)__builtin_ctz(s);

            emit(w, dim, now, place, s);
            if (bit == 1 && is_group_end(w, a, w->wide))
                w->cursor[dim]++;
        }
        if (bit > 1 && (a - skipped + 1) % w->group == 0 && goes)
            ahead++;
    }
}

/* Distances that are odd multiples of scale * low: what came from the next rank ... */
static void scatter_far_near(struct walk *w, uint32_t scale)
{
    const uint32_t count = w->wide / (2 * scale);

    for (uint32_t a = 0; a < count; a++) {
        uint32_t s = (2 * falling(a, count) + 1) * scale * w->low;
        uint32_t dim = (uint32_t)__builtin_ctz(s);

        if (s >= w->nranks)
            continue;
        emit(w, dim, 0, a % w->group, s);
        if (is_group_end(w, a, count))
            w->cursor[dim]++;
    }
}

/* ... and what came over the distance's own lowest bit. */
static void scatter_far(struct walk *w, uint32_t scale)
{
    const uint32_t count = w->wide / (2 * scale);
    uint32_t skipped = 0, ahead = 0;

    for (uint32_t a = 0; a < count; a++) {
        uint32_t from = (2 * falling(a, count) + 1) * scale * w->low;
        uint32_t s = from - (from & -from), now = ahead;
        const bool goes = s < w->nranks;

        if (is_new_peer(a, count)) {
            skipped = a;
            ahead = now = 0;
        }
        if (goes && s)
            emit(w, (uint32_t)__builtin_ctz(s), now, (a - skipped) % w->group, s);
        if ((a - skipped + 1) % w->group == 0 && goes)
            ahead++;
    }
}

static void walk_scatter(struct walk *w)
{
    for (uint32_t as = w->low - 1;;) {
        scatter_own(w, as);
        if (as == 1)
            break;
        do
            scatter_pass(w, as--);
        while (as % 2 == 0);
    }
    for (uint32_t scale = 1; scale < w->wide; scale *= 2) {
        scatter_far_near(w, scale);
        scatter_far(w, scale);
    }
}

/* --- AllGather --- */

/* The order of the low bits: each bit stays for as long as the tree below it takes. */
struct low_order {
    uint32_t bits;
    uint32_t value;
    uint32_t left[32], zeros[32];
};

static uint32_t low_next(struct low_order *o)
{
    for (uint32_t d = 0; d < o->bits; d++) {
        uint32_t power = 1U << d;

        if (--o->left[d])
            continue;
        o->value ^= power;
        o->left[d] = power;
        if (o->value & power)
            continue;
        o->left[d] += (uint32_t)__builtin_ctz(o->zeros[d]) - 1;
        if (!o->left[d]) {
            o->value ^= power;
            o->left[d] = power;
        }
        o->zeros[d]++;
    }
    return o->value;
}

static void gather_far(struct walk *w, uint32_t scale)
{
    for (uint32_t a = 0; a < w->wide / (2 * scale); a++) {
        uint64_t s = (2 * (uint64_t)a + 1) * scale * w->low;
        uint64_t next = (2 * ((uint64_t)a + 1) + 1) * scale * w->low;

        if (s >= w->nranks)
            continue;
        emit(w, (uint32_t)__builtin_ctzll(s), 0, a % w->group, (uint32_t)s);
        if ((a + 1) % w->group == 0 || next >= w->nranks)
            w->cursor[__builtin_ctzll(s)]++;
    }
}

static void gather_low(struct walk *w, uint32_t as)
{
    for (uint32_t a = 0; a < w->wide; a++) {
        uint64_t s = (uint64_t)a * w->low + as;

        if (s >= w->nranks)
            continue;
        emit(w, (uint32_t)__builtin_ctzll(s), 0, a % w->group, (uint32_t)s);
        if ((a + 1) % w->group == 0 || s + w->low >= w->nranks)
            w->cursor[__builtin_ctzll(s)]++;
    }
}

static void walk_gather(struct walk *w)
{
    struct low_order order = {.bits = log2_of(w->low)};
    uint32_t as;

    for (uint32_t d = 0; d < order.bits; d++) {
        order.left[d] = order.bits - d;
        order.zeros[d] = 1;
    }
    for (uint32_t scale = w->wide / 2; scale; scale /= 2)
        gather_far(w, scale);
    as = low_next(&order);
    do {
        while (as % 2 == 0) {
            gather_low(w, as);
            as = low_next(&order);
        }
        gather_low(w, as);
        as = low_next(&order);
    } while (as != w->low / 2);
}

/* --- the pattern --- */

static int compare_pieces(const void *a, const void *b)
{
    const struct crystal_pat_piece *x = a, *y = b;

    if (x->dim != y->dim)
        return x->dim < y->dim ? -1 : 1;
    if (x->message != y->message)
        return x->message < y->message ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

/* A chunk that is added to several times is one piece. */
static void sort_pieces(struct crystal_pat *pat)
{
    uint32_t kept = 0;

    qsort(pat->pieces, pat->piece_count, sizeof *pat->pieces, compare_pieces);
    for (uint32_t i = 0; i < pat->piece_count; i++)
        if (!kept || compare_pieces(&pat->pieces[kept - 1], &pat->pieces[i]) != 0)
            pat->pieces[kept++] = pat->pieces[i];
    pat->piece_count = kept;
    for (uint32_t d = 0, i = 0; d <= pat->dims; d++) {
        while (i < kept && pat->pieces[i].dim < d)
            i++;
        pat->first[d] = i;
    }
}

int crystal_pat_init(struct crystal_pat *pat, enum crystal_func func, uint32_t nranks,
                     uint32_t aggregate)
{
    struct walk w = {.pat = pat, .nranks = nranks, .group = aggregate};

    memset(pat, 0, sizeof *pat);
    w.wide = aggregate;
    for (uint32_t depth = STEP_DEPTH; depth > 1 && w.wide < nranks / 2; depth /= 2)
        w.wide *= 2;
    w.low = power_above(nranks) / w.wide;
    pat->dims = log2_of(power_above(nranks));
    if (func == CRYSTAL_FUNC_ALLGATHER)
        walk_gather(&w);
    else
        walk_scatter(&w);
    if (w.is_out_of_memory) {
        crystal_pat_fini(pat);
        return -ENOMEM;
    }
    memcpy(pat->messages, w.cursor, sizeof pat->messages);
    sort_pieces(pat);
    return 0;
}

void crystal_pat_fini(struct crystal_pat *pat)
{
    free(pat->pieces);
    memset(pat, 0, sizeof *pat);
}

void crystal_pat_cut(const struct crystal_pat_op *op, struct crystal_pat_cut *ret)
{
    const int is_gather = op->func == CRYSTAL_FUNC_ALLGATHER; /* moves bytes */
    const uint32_t unit_bytes = is_gather ? 1 : op->elt_bytes;
    const uint32_t grain = crystal_form_grain_bytes(CRYSTAL_PROTO_SIMPLE);
    struct crystal_channel_part part = crystal_channel_part(
        op->count * op->elt_bytes / unit_bytes, unit_bytes, op->nranks,
        CRYSTAL_PROTO_SIMPLE, op->channel_count, op->channel);
    uint64_t chunk = crystal_form_step_bytes(CRYSTAL_PROTO_SIMPLE), all;

    ret->offset_bytes = part.offset * unit_bytes;
    ret->bytes = part.units * unit_bytes;
    all = ret->bytes * op->nranks;
    while (chunk * (is_gather ? 32 : 16) > all && chunk > CHUNK_BYTES_LEAST)
        chunk /= 2;
    ret->chunk_bytes = chunk / grain * grain;
    ret->aggregate = 1;
    while (ret->bytes && ret->chunk_bytes / (ret->bytes * ret->aggregate) >= 2 &&
           ret->aggregate < op->nranks / 2)
        ret->aggregate *= 2;
}

uint64_t crystal_pat_message_count(const struct crystal_pat *pat,
                                   const struct crystal_pat_cut *cut, uint32_t dim)
{
    return dim < pat->dims ? (cut->bytes + cut->chunk_bytes - 1) / cut->chunk_bytes *
                                 pat->messages[dim]
                           : 0;
}

const struct crystal_pat_piece *crystal_pat_pieces(const struct crystal_pat *pat,
                                                   uint32_t dim, uint32_t message,
                                                   uint32_t *ret_count)
{
    uint32_t low = pat->first[dim], high = pat->first[dim + 1], begin;

    while (low < high) { /* the first piece of the message */
        uint32_t middle = low + (high - low) / 2;

        if (pat->pieces[middle].message < message)
            low = middle + 1;
        else
            high = middle;
    }
    begin = low;
    while (low < pat->first[dim + 1] && pat->pieces[low].message == message)
        low++;
    *ret_count = low - begin;
    return pat->pieces + begin;
}
