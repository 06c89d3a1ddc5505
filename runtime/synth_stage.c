/* The iteration of a pipeline stage: chunks of layers in the order of the schedule,
 * then the optimizer. See synth_stage.h.
 */
#include "config.h"

#include "runtime/synth_stage.h"

/* --- chunks of layers --- */

struct chunk {
    uint32_t virtual_stage; /* among all chunks of all stages */
    uint32_t layers;
    bool is_first, is_last;
};

static struct chunk chunk_of(const struct synth_stage *g, uint32_t index)
{
    uint32_t chunks = g->s->pp * g->s->interleave;
    struct chunk c = {.virtual_stage = index * g->s->pp + g->index};

    c.is_first = c.virtual_stage == 0;
    c.is_last = c.virtual_stage == chunks - 1;
    if (g->s->vocab && (g->s->layers + 2) % chunks == 0)
        c.layers = (g->s->layers + 2) / chunks - c.is_first - c.is_last;
    else
        c.layers = g->s->layers / chunks;
    return c;
}

static void forward(struct synth_stage *g, uint32_t index)
{
    const struct synth_sizes z = synth_sizes_of(g);
    struct chunk c = chunk_of(g, index);

    if (!c.is_first)
        synth_message(g, F_PREV, false);
    synth_allocate(g, c.layers * synth_activation_bytes(g), false);
    if (c.is_first && g->s->vocab)
        synth_kernel(g, "embedding", 0, 2 * SYNTH_BF16 * z.t * z.h);
    for (uint32_t i = 0; i < c.layers; i++)
        synth_layer_forward(g);
    if (c.is_last && g->s->vocab) {
        synth_product(g, "head", z.all, z.h, g->s->vocab / z.tp);
        synth_kernel(g, "loss", 0, 3 * 4.0 * z.all * g->s->vocab / z.tp);
    }
    if (!c.is_last)
        synth_message(g, F_NEXT, true);
}

/* The gradients of a layer are complete: they are reduced beside the computation. */
static void reduce(struct synth_stage *g, double parameters, double expert)
{
    uint32_t spread = g->s->dp * g->s->cp;

    if (g->local[DP] != SYNTH_NONE || (expert > 0 && g->local[EDP] != SYNTH_NONE))
        synth_join(g, 0, synth_stream(DP));
    synth_collective(g, DP, CRYSTAL_FUNC_REDUCESCATTER, parameters / spread);
    if (expert > 0)
        synth_collective(g, EDP, CRYSTAL_FUNC_REDUCESCATTER,
                         expert * g->s->ep / spread);
}

static void backward(struct synth_stage *g, uint32_t index, bool is_last_time)
{
    const struct synth_sizes z = synth_sizes_of(g);
    struct chunk c = chunk_of(g, index);

    if (!c.is_last)
        synth_message(g, B_NEXT, false);
    if (c.is_last && g->s->vocab) {
        synth_kernel(g, "loss'", 0, 3 * 4.0 * z.all * g->s->vocab / z.tp);
        synth_product(g, "head'", z.all, g->s->vocab / z.tp, z.h);
        synth_product(g, "head-weight'", z.h, z.all, g->s->vocab / z.tp);
        if (is_last_time)
            reduce(g, synth_vocabulary_parameters(g), 0);
    }
    for (uint32_t i = 0; i < c.layers; i++) {
        synth_layer_backward(g);
        if (is_last_time)
            reduce(g, synth_dense_parameters(g), synth_expert_parameters(g));
    }
    if (c.is_first && g->s->vocab) {
        synth_kernel(g, "embedding'", 0, 3 * SYNTH_BF16 * z.t * z.h);
        if (is_last_time)
            reduce(g, synth_vocabulary_parameters(g), 0);
    }
    synth_allocate(g, c.layers * synth_activation_bytes(g), true);
    if (!c.is_first)
        synth_message(g, B_PREV, true);
}

/* --- an iteration --- */

/* The chunk of the k-th forward (or, backwards, backward) pass of a stage. */
static uint32_t turn_of(const struct crystal_synth *s, uint32_t k)
{
    return k / s->pp % s->interleave;
}

/* Is the k-th pass the one of the last microbatch for its chunk? */
static bool is_last_time(const struct crystal_synth *s, uint32_t k)
{
    uint32_t round = s->pp * s->interleave;

    if (s->interleave == 1)
        return k == s->microbatches - 1;
    return k / round == s->microbatches / s->pp - 1 && k % s->pp == s->pp - 1;
}

static void backward_turn(struct synth_stage *g, uint32_t k)
{
    backward(g, g->s->interleave - 1 - turn_of(g->s, k), is_last_time(g->s, k));
}

static void schedule(struct synth_stage *g)
{
    const struct crystal_synth *s = g->s;
    uint32_t total = s->microbatches * s->interleave, warm, behind;

    behind = s->pp - 1 - g->index;
    warm = s->interleave == 1 ? behind : 2 * behind + (s->interleave - 1) * s->pp;
    warm = warm < total ? warm : total;
    for (uint32_t k = 0; k < warm; k++)
        forward(g, turn_of(s, k));
    for (uint32_t k = warm; k < total; k++) {
        forward(g, turn_of(s, k));
        backward_turn(g, k - warm);
    }
    for (uint32_t k = total - warm; k < total; k++)
        backward_turn(g, k);
}

static double stage_parameters(const struct synth_stage *g, double *ret_expert)
{
    double sum = 0;

    *ret_expert = 0;
    for (uint32_t i = 0; i < g->s->interleave; i++) {
        struct chunk c = chunk_of(g, i);

        sum += c.layers * synth_dense_parameters(g) +
               (c.is_first + c.is_last) * synth_vocabulary_parameters(g);
        *ret_expert += c.layers * synth_expert_parameters(g);
    }
    return sum;
}

/* Gradients are there: step, and parameters come back layer by layer. */
static void optimize(struct synth_stage *g)
{
    uint32_t spread = g->s->dp * g->s->cp;
    double expert, dense = stage_parameters(g, &expert);
    double own = dense / spread + expert * g->s->ep / spread;

    if (g->local[DP] != SYNTH_NONE)
        synth_join(g, synth_stream(DP), 0);
    synth_kernel(g, "optimizer", 0, own * 28);
    if (g->local[DP] != SYNTH_NONE)
        synth_join(g, 0, synth_stream(DP));
    for (uint32_t i = 0; i < g->s->interleave; i++) {
        struct chunk c = chunk_of(g, i);

        for (uint32_t k = 0; k < c.layers; k++) {
            synth_collective(g, DP, CRYSTAL_FUNC_ALLGATHER,
                             synth_dense_parameters(g) / spread);
            if (g->s->experts)
                synth_collective(g, EDP, CRYSTAL_FUNC_ALLGATHER,
                                 synth_expert_parameters(g) * g->s->ep / spread);
        }
        if (g->s->vocab && (c.is_first || c.is_last))
            synth_collective(g, DP, CRYSTAL_FUNC_ALLGATHER,
                             synth_vocabulary_parameters(g) / spread);
    }
    for (int i = 0; i <= B_NEXT; i++)
        if (i == 0 || (g->local[i] != SYNTH_NONE && synth_stream(i) == i))
            synth_record(g, CRYSTAL_OP_SYNC, i, 0);
}

void synth_stage_write(struct synth_stage *g)
{
    uint32_t spread = g->s->dp * g->s->cp;
    double expert, dense = stage_parameters(g, &expert);

    synth_allocate(g, (dense + expert) * 6 + (dense + expert * g->s->ep) / spread * 12,
                   false);
    crystal_graph_writer_mark(g->w);
    schedule(g);
    optimize(g);
    crystal_graph_writer_mark(g->w);
}
