/* Finding the iterations of a trace. Every period p is tried at every p-th position:
 * how far do the symbols agree with those p later, to the right and to the left? Each
 * answer is a binary search over prefix hashes modulo 2^61 - 1, so all periods together
 * take n (1 + 1/2 + 1/3 + ...) such searches.
 */
#include "config.h"

#include "runtime/iteration.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define PRIME ((UINT64_C(1) << 61) - 1)
#define BASE  UINT64_C(0x0d4c7a9e5b31f287)

__extension__ typedef unsigned __int128 wide;

static uint64_t multiply(uint64_t a, uint64_t b)
{
    wide product = (wide)a * b;
    uint64_t sum = (uint64_t)(product & PRIME) + (uint64_t)(product >> 61);

    return sum >= PRIME ? sum - PRIME : sum;
}

struct prefix {
    uint64_t *hash;  /* of symbols[0 .. i-1] */
    uint64_t *power; /* BASE^i */
    size_t count;
};

static int prefix_init(struct prefix *p, const uint64_t *symbols, size_t count)
{
    p->count = count;
    p->hash = malloc((count + 1) * sizeof *p->hash);
    p->power = malloc((count + 1) * sizeof *p->power);
    if (!p->hash || !p->power)
        return -ENOMEM;
    p->hash[0] = 0;
    p->power[0] = 1;
    for (size_t i = 0; i < count; i++) {
        p->hash[i + 1] = (multiply(p->hash[i], BASE) + symbols[i] % PRIME) % PRIME;
        p->power[i + 1] = multiply(p->power[i], BASE);
    }
    return 0;
}

static void prefix_fini(struct prefix *p)
{
    free(p->hash);
    free(p->power);
}

static uint64_t part(const struct prefix *p, size_t start, size_t length)
{
    uint64_t head = multiply(p->hash[start], p->power[length]);

    return (p->hash[start + length] + PRIME - head) % PRIME;
}

/* Length of the longest common prefix of what begins at a and at b > a. */
static size_t agree_right(const struct prefix *p, size_t a, size_t b)
{
    size_t low = 0, high = p->count - b;

    while (low < high) {
        size_t middle = high - (high - low) / 2;

        if (part(p, a, middle) == part(p, b, middle))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Length of the longest common suffix of what ends before a and before b > a. */
static size_t agree_left(const struct prefix *p, size_t a, size_t b)
{
    size_t low = 0, high = a;

    while (low < high) {
        size_t middle = high - (high - low) / 2;

        if (part(p, a - middle, middle) == part(p, b - middle, middle))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* The longest stretch of this period; its length is 0 where it does not come twice. */
static struct crystal_stretch longest(const struct prefix *p, size_t period)
{
    struct crystal_stretch best = {0, 0, period};

    for (size_t at = 0; at + period < p->count; at += period) {
        size_t right = agree_right(p, at, at + period);
        size_t left = agree_left(p, at, at + period);

        if (left + right >= period && left + right + period > best.end - best.start) {
            best.start = at - left;
            best.end = at + right + period;
        }
    }
    return best;
}

int crystal_stretch_find(const uint64_t *symbols, size_t count,
                         struct crystal_stretch *ret)
{
    struct crystal_stretch best = {0, 0, 0};
    struct prefix p;
    int code = prefix_init(&p, symbols, count);

    for (size_t period = 1; !code && period <= count / 2; period++) {
        struct crystal_stretch s = longest(&p, period);

        /* a longer period has to explain clearly more: an accident may let it reach a
         * few symbols further than the true one */
        if (10 * (s.end - s.start) > 11 * (best.end - best.start))
            best = s;
    }
    prefix_fini(&p);
    if (!code)
        *ret = best;
    return code;
}

/* --- traces --- */

#define WITH_SIZES 1U
#define WITH_HINTS 2U

struct symbols {
    uint64_t *symbol;
    uint64_t *record; /* index of the record behind each */
    size_t count;
};

static uint64_t symbol_of(const struct crystal_op *op, unsigned with)
{
    struct crystal_op key;

    memset(&key, 0, sizeof key);
    key.kind = op->kind;
    if (op->kind == CRYSTAL_OP_HINT)
        return crystal_hash(&key, sizeof key);
    key.func = op->func;
    key.comm = op->comm;
    key.stream = op->stream;
    key.peer = op->peer;
    if (with & WITH_SIZES) {
        key.dtype = op->dtype;
        key.aux = op->aux;
        key.value = op->value;
    }
    return crystal_hash(&key, sizeof key);
}

static bool is_symbol(const struct crystal_op *op, unsigned with)
{
    return op->kind == CRYSTAL_OP_COLL || op->kind == CRYSTAL_OP_SEND ||
           op->kind == CRYSTAL_OP_RECV ||
           (op->kind == CRYSTAL_OP_HINT && op->aux != CRYSTAL_HINT_HIDDEN &&
            (with & WITH_HINTS));
}

static void symbols_fill(struct symbols *s, const struct crystal_op *ops,
                         uint64_t op_count, unsigned with)
{
    s->count = 0;
    for (uint64_t i = 0; i < op_count; i++)
        if (is_symbol(&ops[i], with)) {
            s->symbol[s->count] = symbol_of(&ops[i], with);
            s->record[s->count++] = i;
        }
}

static size_t length(const struct crystal_stretch *s)
{
    return s->end - s->start;
}

/* Where the iteration that begins with symbol i begins in records: its group starts
 * before its first call, and a hint ends the iteration before it. */
static uint64_t begin_of(const struct symbols *s, const struct crystal_op *ops,
                         size_t i)
{
    uint64_t at;

    if (i > 0 && ops[s->record[i - 1]].kind == CRYSTAL_OP_HINT)
        return s->record[i - 1] + 1;
    at = s->record[i];
    while (at > 0 && ops[at - 1].kind == CRYSTAL_OP_GROUP && ops[at - 1].aux == 1)
        at--;
    return at;
}

/* Where an iteration of this period ends whose last symbol is the last of all: behind
 * as many records of the same kinds as the iteration before it had there. */
static uint64_t end_of(const struct symbols *s, const struct crystal_op *ops,
                       uint64_t op_count, size_t period)
{
    size_t i = s->count;
    uint64_t at = s->record[i - 1] + 1, model = s->record[i - 1 - period] + 1;
    uint64_t model_end = begin_of(s, ops, i - period);

    while (at < op_count && model < model_end && ops[at].kind == ops[model].kind) {
        at++;
        model++;
    }
    return at;
}

static int marks_make(const struct symbols *s, const struct crystal_stretch *stretch,
                      const struct crystal_op *ops, uint64_t op_count, uint64_t **ret,
                      uint32_t *ret_count)
{
    size_t first = stretch->start, count;

    /* Iterations end at hints where there are any; the last hint of a period counts,
     * as a program may have several optimizers. */
    for (size_t i = stretch->end; i > stretch->end - stretch->period; i--)
        if (ops[s->record[i - 1]].kind == CRYSTAL_OP_HINT) {
            first = stretch->start + (i - stretch->start) % stretch->period;
            break;
        }
    count = (stretch->end - first) / stretch->period + 1;
    if (count < 2)
        return 0;
    *ret = malloc(count * sizeof **ret);
    if (!*ret)
        return -ENOMEM;
    for (size_t k = 0; k < count; k++)
        (*ret)[k] = first + k * stretch->period < s->count
                        ? begin_of(s, ops, first + k * stretch->period)
                        : end_of(s, ops, op_count, stretch->period);
    *ret_count = (uint32_t)count;
    return 0;
}

/* Sharper structure may lose the warm-up, not half of what repeats without it. */
static bool is_enough(const struct crystal_stretch *sharp,
                      const struct crystal_stretch *plain)
{
    return sharp->period && 2 * length(sharp) > length(plain);
}

int crystal_iteration_find(const struct crystal_op *ops, uint64_t op_count,
                           uint64_t **ret, uint32_t *ret_count)
{
    static const unsigned withs[] = {WITH_SIZES | WITH_HINTS, WITH_HINTS, WITH_SIZES};
    struct crystal_stretch plain = {0, 0, 0}, stretch = {0, 0, 0};
    size_t capacity = (size_t)op_count + 1;
    struct symbols s = {malloc(capacity * 8), malloc(capacity * 8), 0};
    int code = -ENOMEM;

    *ret = NULL;
    *ret_count = 0;
    if (!s.symbol || !s.record)
        goto out;
    symbols_fill(&s, ops, op_count, 0);
    code = crystal_stretch_find(s.symbol, s.count, &plain);
    if (code || !plain.period)
        goto out;
    for (size_t i = 0; i < sizeof withs / sizeof withs[0]; i++) {
        symbols_fill(&s, ops, op_count, withs[i]);
        code = crystal_stretch_find(s.symbol, s.count, &stretch);
        if (code)
            goto out;
        if (is_enough(&stretch, &plain)) {
            code = marks_make(&s, &stretch, ops, op_count, ret, ret_count);
            goto out;
        }
    }
    symbols_fill(&s, ops, op_count, 0);
    code = marks_make(&s, &plain, ops, op_count, ret, ret_count);
out:
    free(s.symbol);
    free(s.record);
    return code;
}
