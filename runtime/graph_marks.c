/* Where the iterations of a graph's ranks begin: by the NVTX range that the layout
 * names, else by what repeats. See graph_build.h.
 */
#include "config.h"

#include "runtime/graph_build_internal.h"

#include "runtime/iteration.h"
#include "runtime/iteration_range.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- by what repeats --- */

/* All ranks get the iterations that all have; the recording of the others begins one
 * or two later, where the first ones have another structure. */
static void agree_at_end(struct crystal_graph_build *b)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < b->layout.live_count; i++)
        if (b->sources[i].mark_count && (!count || b->sources[i].mark_count < count))
            count = b->sources[i].mark_count;
    for (uint32_t i = 0; i < b->layout.live_count; i++) {
        struct crystal_graph_source *s = &b->sources[i];

        if (s->mark_count > count) {
            memmove(s->marks, s->marks + s->mark_count - count,
                    count * sizeof *s->marks);
            s->mark_count = count;
        }
    }
}

static int by_structure(struct crystal_graph_build *b, struct crystal_error *err)
{
    for (uint32_t i = 0; i < b->layout.live_count; i++) {
        struct crystal_graph_source *s = &b->sources[i];

        if (crystal_iteration_find(s->trace.ops, s->trace.op_count, &s->marks,
                                   &s->mark_count))
            return crystal_error_set(err, ENOMEM, "out of memory");
    }
    agree_at_end(b);
    return 0;
}

/* --- by ranges --- */

#define WAY_OUT                                                               \
    "; capture.iteration_range has to be a range that every step of every "   \
    "rank begins with: correct it or leave it out, then run layout, capture " \
    "and graph again"

/* Do all ranks begin it? *ret_is_hidden: other tools keep some ranks from telling. */
static int look(const struct crystal_graph_build *b, bool *ret_is_hidden,
                struct crystal_error *err)
{
    const uint32_t *live = b->layout.live;
    uint32_t begins = UINT32_MAX, never = UINT32_MAX;

    *ret_is_hidden = false;
    for (uint32_t i = 0; i < b->layout.live_count; i++) {
        const struct crystal_trace *t = &b->sources[i].trace;
        enum crystal_range_sight sight = crystal_range_look(t->ops, t->op_count);

        *ret_is_hidden |= sight == CRYSTAL_RANGE_HIDDEN;
        if (sight == CRYSTAL_RANGE_BEGINS && begins == UINT32_MAX)
            begins = live[i];
        if (sight == CRYSTAL_RANGE_NEVER && never == UINT32_MAX)
            never = live[i];
    }
    if (*ret_is_hidden || never == UINT32_MAX)
        return 0;
    return begins == UINT32_MAX
               ? crystal_error_set(err, EINVAL,
                                   "no rank has begun the NVTX range '%.64s'" WAY_OUT,
                                   b->layout.iteration_range)
               : crystal_error_set(err, EINVAL,
                                   "rank %u has begun the NVTX range '%.64s', rank %u "
                                   "never" WAY_OUT,
                                   begins, b->layout.iteration_range, never);
}

/* Iterations are counted alike in all ranks: those that all have, from the first that
 * is no warm-up anywhere. */
static int agree_by_number(struct crystal_graph_build *b, const uint32_t *left_counts,
                           struct crystal_error *err)
{
    uint32_t first = 0, end = UINT32_MAX;

    for (uint32_t i = 0; i < b->layout.live_count; i++) {
        uint32_t own_end = left_counts[i] + b->sources[i].mark_count - 1;

        first = left_counts[i] > first ? left_counts[i] : first;
        end = own_end < end ? own_end : end;
    }
    if (end <= first)
        return crystal_error_set(
            err, ENODATA,
            "no iteration of the NVTX range '%.64s' is whole in all "
            "ranks; capture more of them (--crystal-iterations)",
            b->layout.iteration_range);
    for (uint32_t i = 0; i < b->layout.live_count; i++) {
        struct crystal_graph_source *s = &b->sources[i];

        s->mark_count = end - first + 1;
        memmove(s->marks, s->marks + (first - left_counts[i]),
                s->mark_count * sizeof *s->marks);
    }
    return 0;
}

static uint64_t colls_of(const struct crystal_graph_source *s, uint32_t local)
{
    uint64_t count = 0;

    for (uint64_t i = s->marks[s->mark_count - 2]; i < s->marks[s->mark_count - 1]; i++)
        count +=
            s->trace.ops[i].kind == CRYSTAL_OP_COLL && s->trace.ops[i].comm == local;
    return count;
}

/* In an iteration the members of a communicator make as many collectives there. */
static int agree_in_colls(const struct crystal_graph_build *b,
                          struct crystal_error *err)
{
    struct {
        uint64_t count;
        uint32_t lrank; /* UINT32_MAX: none yet */
    } *known = malloc(((size_t)b->comms.named_count + 1) * sizeof *known);
    int code = 0;

    if (!known)
        return crystal_error_set(err, ENOMEM, "out of memory");
    for (uint32_t i = 0; i < b->comms.named_count; i++)
        known[i].lrank = UINT32_MAX;
    for (uint32_t r = 0; !code && r < b->layout.live_count; r++)
        for (uint32_t i = 0; !code && i < b->sources[r].local_count; i++) {
            uint32_t entry = b->sources[r].locals[i];
            uint64_t count = colls_of(&b->sources[r], i);

            if (known[entry].lrank == UINT32_MAX) {
                known[entry].lrank = b->layout.live[r];
                known[entry].count = count;
            } else if (known[entry].count != count) {
                code = crystal_error_set(
                    err, EINVAL,
                    "in an iteration of the NVTX range '%.64s' rank %u makes %llu "
                    "collectives in '%.64s' and rank %u %llu" WAY_OUT,
                    b->layout.iteration_range, known[entry].lrank,
                    (unsigned long long)known[entry].count,
                    b->comms.entries[entry].name, b->layout.live[r],
                    (unsigned long long)count);
            }
        }
    free(known);
    return code;
}

static int by_ranges(struct crystal_graph_build *b, struct crystal_error *err)
{
    uint32_t *left_counts = calloc(b->layout.live_count, sizeof *left_counts);
    int code = left_counts ? 0 : crystal_error_set(err, ENOMEM, "out of memory");

    for (uint32_t i = 0; !code && i < b->layout.live_count; i++) {
        struct crystal_graph_source *s = &b->sources[i];
        struct crystal_range_marks m = {0};
        struct crystal_error why = {0};

        code = crystal_range_find(s->trace.ops, s->trace.op_count, &m, &why);
        s->marks = m.marks;
        s->mark_count = m.count;
        left_counts[i] = m.left_count;
        if (code)
            code = crystal_error_set(
                err, -code, "NVTX range '%.64s' of rank %u: %.160s" WAY_OUT,
                b->layout.iteration_range, b->layout.live[i], crystal_error_text(&why));
    }
    if (!code)
        code = agree_by_number(b, left_counts, err);
    if (!code)
        code = agree_in_colls(b, err);
    free(left_counts);
    return code;
}

int graph_marks_find(struct crystal_graph_build *b, struct crystal_error *err)
{
    bool is_hidden = true;
    int code = b->layout.iteration_range ? look(b, &is_hidden, err) : 0;

    if (code)
        return code;
    return is_hidden ? by_structure(b, err) : by_ranges(b, err);
}
