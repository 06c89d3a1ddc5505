/* The graph of a synthetic job: communicators, then the iteration of each pipeline
 * stage. See synth.h.
 */
#include "config.h"

#include "runtime/synth_stage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
/* --- communicators --- */

struct groups {
    const struct crystal_synth *s;
    struct crystal_graph_writer *w;
    uint32_t lrank_count;
    uint32_t *of[SET_COUNT]; /* by lrank: communicator, or SYNTH_NONE */
    uint32_t *members;
};

/* All ranks from `first`, `step` apart, as far as `count`, and the same again `again`
 * times, `stride` apart. */
static void group(struct groups *a, enum synth_set set, uint32_t first, uint32_t count,
                  uint32_t step, uint32_t again, uint32_t stride)
{
    uint32_t n = 0, comm;

    for (uint32_t k = 0; k < again; k++)
        for (uint32_t i = 0; i < count; i++)
            a->members[n++] = first + k * stride + i * step;
    comm = crystal_graph_writer_comm(a->w, NULL, n, a->members);
    for (uint32_t i = 0; i < n; i++)
        a->of[set][a->members[i]] = comm;
}

static void edges(struct groups *a, uint32_t lrank)
{
    const struct crystal_synth *s = a->s;
    uint32_t stride = a->lrank_count / s->pp, stage = lrank / stride;
    uint32_t next = (lrank + stride) % a->lrank_count, pair[2] = {lrank, next};

    if (s->pp == 1 || (stage == s->pp - 1 && s->interleave == 1))
        return;
    a->of[F_NEXT][lrank] = a->of[F_PREV][next] =
        crystal_graph_writer_comm(a->w, NULL, 2, pair);
    a->of[B_NEXT][lrank] = a->of[B_PREV][next] =
        crystal_graph_writer_comm(a->w, NULL, 2, pair);
}

static void groups_make(struct groups *a)
{
    const struct crystal_synth *s = a->s;
    uint32_t tp = s->tp, cp = s->cp, dp = s->dp, ep = s->ep, line = tp * cp;

    for (uint32_t r = 0; r < a->lrank_count; r++) {
        uint32_t tp_at = r % tp, cp_at = r / tp % cp, dp_at = r / line % dp;

        if (tp > 1 && tp_at == 0)
            group(a, TP, r, tp, 1, 1, 0);
        if (cp > 1 && cp_at == 0)
            group(a, CP, r, cp, tp, 1, 0);
        if (cp * dp > 1 && cp_at == 0 && dp_at == 0)
            group(a, DP, r, cp, tp, dp, line);
        if (ep > 1 && dp_at % ep == 0)
            group(a, EP, r, ep, line, 1, 0);
        if (s->experts && cp * dp / ep > 1 && cp_at == 0 && dp_at < ep)
            group(a, EDP, r, cp, tp, dp / ep, line * ep);
        edges(a, r);
    }
}

static int groups_init(struct groups *a)
{
    for (int i = 0; i < SET_COUNT; i++) {
        a->of[i] = malloc(a->lrank_count * sizeof *a->of[i]);
        if (!a->of[i])
            return -ENOMEM;
        memset(a->of[i], 0xff, a->lrank_count * sizeof *a->of[i]);
    }
    a->members = malloc(a->lrank_count * sizeof *a->members);
    if (!a->members)
        return -ENOMEM;
    groups_make(a);
    return 0;
}

static void groups_fini(struct groups *a)
{
    for (int i = 0; i < SET_COUNT; i++)
        free(a->of[i]);
    free(a->members);
}

/* --- all --- */

static int stages_write(const struct groups *a, const char *path,
                        struct crystal_error *err)
{
    uint32_t stride = a->lrank_count / a->s->pp;

    for (uint32_t i = 0; i < a->s->pp; i++) {
        struct synth_stage g = {.s = a->s, .w = a->w, .index = i};
        uint32_t locals = 0;

        g.tokens = (double)a->s->sequence * a->s->microbatch / a->s->cp;
        for (int k = 0; k < SET_COUNT; k++)
            g.local[k] = a->of[k][i * stride] == SYNTH_NONE ? SYNTH_NONE : locals++;
        (void)crystal_graph_writer_rep(a->w, i * stride, locals);
        synth_stage_write(&g);
        if (g.fault)
            return crystal_error_set(
                err, ERANGE,
                "%s: it would hold %.3g %s, more than the %.3g that are possible; make "
                "the model or its batch smaller, or the hardware faster",
                path, g.fault_value, g.fault,
                strstr(g.fault, "kernel") ? (double)CRYSTAL_SYNTH_KERNEL_NS_MAX
                                          : (double)CRYSTAL_SYNTH_SIZE_MAX);
    }
    for (uint32_t r = 0; r < a->lrank_count; r++) {
        uint32_t map[SET_COUNT], count = 0;

        for (int k = 0; k < SET_COUNT; k++)
            if (a->of[k][r] != SYNTH_NONE)
                map[count++] = a->of[k][r];
        crystal_graph_writer_rank(a->w, r, r / stride, map);
    }
    return 0;
}

int crystal_synth_write(const struct crystal_synth *s, const char *path,
                        struct crystal_error *err)
{
    struct groups a = {.s = s, .lrank_count = s->tp * s->cp * s->dp * s->pp};
    int code;

    a.w = crystal_graph_writer_create(a.lrank_count);
    if (!a.w || groups_init(&a)) {
        code = crystal_error_set(err, ENOMEM, "%s: out of memory", path);
    } else {
        crystal_graph_writer_network(a.w, &s->network);
        code = stages_write(&a, path, err);
    }
    if (!code)
        code = crystal_graph_writer_write(a.w, path, 0, err);
    groups_fini(&a);
    crystal_graph_writer_destroy(a.w);
    return code;
}
