/* One transformer layer: its kernels and collectives forward and backward, and how
 * large it is. See synth_stage.h.
 */
#include "config.h"

#include "runtime/synth_stage.h"

struct synth_sizes synth_sizes_of(const struct synth_stage *g)
{
    const struct crystal_synth *s = g->s;
    struct synth_sizes z = {.t = g->tokens / s->tp,
                            .all = g->tokens,
                            .h = s->hidden,
                            .q = (double)s->heads * s->head_size,
                            .kv = (double)s->kv_heads * s->head_size,
                            .tp = s->tp};

    z.routed = z.t * s->experts_per_token;
    return z;
}

void synth_product(struct synth_stage *g, const char *name, double rows, double inner,
                   double columns)
{
    synth_kernel(g, name, 2 * rows * inner * columns,
                 SYNTH_BF16 * (rows * inner + inner * columns + rows * columns));
}

static void attention_forward(struct synth_stage *g)
{
    const struct synth_sizes z = synth_sizes_of(g);

    synth_kernel(g, "norm", 0, 2 * SYNTH_BF16 * z.t * z.h);
    synth_collective(g, TP, CRYSTAL_FUNC_ALLGATHER, z.t * z.h);
    synth_product(g, "qkv", z.all, z.h, (z.q + 2 * z.kv) / z.tp);
    synth_kernel(g, "qk-norm", 0, 2 * SYNTH_BF16 * z.all * (z.q + z.kv) / z.tp);
    synth_kernel(g, "rotary", 0, 2 * SYNTH_BF16 * z.all * (z.q + z.kv) / z.tp);
    synth_collective(g, CP, CRYSTAL_FUNC_ALLGATHER, 2 * z.all * z.kv / z.tp);
    synth_kernel(g, "attention", 2 * z.all * g->s->sequence * z.q / z.tp,
                 SYNTH_BF16 * z.all * (2 * z.q + 2 * z.kv) / z.tp);
    synth_product(g, "projection", z.all, z.q / z.tp, z.h);
    synth_collective(g, TP, CRYSTAL_FUNC_REDUCESCATTER, z.t * z.h);
    synth_kernel(g, "add-norm", 0, 4 * SYNTH_BF16 * z.t * z.h);
}

static void attention_backward(struct synth_stage *g)
{
    const struct synth_sizes z = synth_sizes_of(g);

    synth_kernel(g, "add-norm'", 0, 6 * SYNTH_BF16 * z.t * z.h);
    synth_collective(g, TP, CRYSTAL_FUNC_ALLGATHER, z.t * z.h);
    synth_product(g, "projection'", z.all, z.h, z.q / z.tp);
    synth_product(g, "projection-weight'", z.q / z.tp, z.all, z.h);
    synth_kernel(g, "attention'", 5 * z.all * g->s->sequence * z.q / z.tp,
                 SYNTH_BF16 * z.all * (4 * z.q + 4 * z.kv) / z.tp);
    synth_collective(g, CP, CRYSTAL_FUNC_REDUCESCATTER, 2 * z.all * z.kv / z.tp);
    synth_kernel(g, "rotary'", 0, 2 * SYNTH_BF16 * z.all * (z.q + z.kv) / z.tp);
    synth_kernel(g, "qk-norm'", 0, 3 * SYNTH_BF16 * z.all * (z.q + z.kv) / z.tp);
    synth_product(g, "qkv'", z.all, (z.q + 2 * z.kv) / z.tp, z.h);
    synth_collective(g, TP, CRYSTAL_FUNC_ALLGATHER, z.t * z.h);
    synth_product(g, "qkv-weight'", z.h, z.all, (z.q + 2 * z.kv) / z.tp);
    synth_collective(g, TP, CRYSTAL_FUNC_REDUCESCATTER, z.t * z.h);
    synth_kernel(g, "norm'", 0, 3 * SYNTH_BF16 * z.t * z.h);
}

static void dense_forward(struct synth_stage *g)
{
    const struct synth_sizes z = synth_sizes_of(g);
    double ffn = g->s->ffn / z.tp;

    synth_collective(g, TP, CRYSTAL_FUNC_ALLGATHER, z.t * z.h);
    synth_product(g, "ffn-up", z.all, z.h, 2 * ffn);
    synth_kernel(g, "swiglu", 0, 3 * SYNTH_BF16 * z.all * ffn);
    synth_product(g, "ffn-down", z.all, ffn, z.h);
    synth_collective(g, TP, CRYSTAL_FUNC_REDUCESCATTER, z.t * z.h);
    synth_kernel(g, "add", 0, 3 * SYNTH_BF16 * z.t * z.h);
}

static void dense_backward(struct synth_stage *g)
{
    const struct synth_sizes z = synth_sizes_of(g);
    double ffn = g->s->ffn / z.tp;

    synth_kernel(g, "add'", 0, 2 * SYNTH_BF16 * z.t * z.h);
    synth_collective(g, TP, CRYSTAL_FUNC_ALLGATHER, z.t * z.h);
    synth_product(g, "ffn-down'", z.all, z.h, ffn);
    synth_product(g, "ffn-down-weight'", ffn, z.all, z.h);
    synth_kernel(g, "swiglu'", 0, 5 * SYNTH_BF16 * z.all * ffn);
    synth_product(g, "ffn-up'", z.all, 2 * ffn, z.h);
    synth_collective(g, TP, CRYSTAL_FUNC_ALLGATHER, z.t * z.h);
    synth_product(g, "ffn-up-weight'", z.h, z.all, 2 * ffn);
    synth_collective(g, TP, CRYSTAL_FUNC_REDUCESCATTER, z.t * z.h);
}

static void all_to_all(struct synth_stage *g)
{
    const struct synth_sizes z = synth_sizes_of(g);

    synth_collective(g, EP, CRYSTAL_FUNC_ALLTOALL, z.routed * z.h / g->s->ep);
}

static void experts_forward(struct synth_stage *g)
{
    const struct synth_sizes z = synth_sizes_of(g);
    double ffn = g->s->expert_ffn;

    synth_product(g, "router", z.t, z.h, g->s->experts);
    synth_kernel(g, "top-k", 0, 4 * 4.0 * z.t * g->s->experts);
    synth_kernel(g, "permute", 0, 2 * SYNTH_BF16 * z.routed * z.h);
    all_to_all(g);
    synth_kernel(g, "sort", 0, 2 * SYNTH_BF16 * z.routed * z.h);
    synth_product(g, "expert-up", z.routed, z.h, 2 * ffn);
    synth_kernel(g, "swiglu", 0, 3 * SYNTH_BF16 * z.routed * ffn);
    synth_product(g, "expert-down", z.routed, ffn, z.h);
    synth_kernel(g, "unsort", 0, 2 * SYNTH_BF16 * z.routed * z.h);
    all_to_all(g);
    synth_kernel(g, "unpermute", 0, SYNTH_BF16 * (z.routed + z.t) * z.h);
    synth_kernel(g, "add", 0, 3 * SYNTH_BF16 * z.t * z.h);
}

static void experts_backward(struct synth_stage *g)
{
    const struct synth_sizes z = synth_sizes_of(g);
    double ffn = g->s->expert_ffn;

    synth_kernel(g, "add'", 0, 2 * SYNTH_BF16 * z.t * z.h);
    synth_kernel(g, "unpermute'", 0, SYNTH_BF16 * (z.routed + z.t) * z.h);
    all_to_all(g);
    synth_kernel(g, "unsort'", 0, 2 * SYNTH_BF16 * z.routed * z.h);
    synth_product(g, "expert-down'", z.routed, z.h, ffn);
    synth_product(g, "expert-down-weight'", ffn, z.routed, z.h);
    synth_kernel(g, "swiglu'", 0, 5 * SYNTH_BF16 * z.routed * ffn);
    synth_product(g, "expert-up'", z.routed, 2 * ffn, z.h);
    synth_product(g, "expert-up-weight'", z.h, z.routed, 2 * ffn);
    synth_kernel(g, "sort'", 0, 2 * SYNTH_BF16 * z.routed * z.h);
    all_to_all(g);
    synth_kernel(g, "permute'", 0, SYNTH_BF16 * (z.routed + z.t) * z.h);
    synth_kernel(g, "top-k'", 0, 4 * 4.0 * z.t * g->s->experts);
    synth_product(g, "router'", z.t, g->s->experts, z.h);
    synth_product(g, "router-weight'", z.h, z.t, g->s->experts);
}

double synth_dense_parameters(const struct synth_stage *g)
{
    const struct synth_sizes z = synth_sizes_of(g);
    double parameters = (z.h * (z.q + 2 * z.kv) + z.q * z.h) / z.tp + 2 * z.h;

    return parameters +
           (g->s->experts ? z.h * g->s->experts : 3 * z.h * g->s->ffn / z.tp);
}

double synth_expert_parameters(const struct synth_stage *g)
{
    return 3.0 * g->s->hidden * g->s->expert_ffn * g->s->experts / g->s->ep;
}

double synth_vocabulary_parameters(const struct synth_stage *g)
{
    return (double)g->s->vocab * g->s->hidden / g->s->tp;
}

/* Bytes that the backward pass of a layer needs of its forward pass. */
double synth_activation_bytes(const struct synth_stage *g)
{
    const struct synth_sizes z = synth_sizes_of(g);
    double inner = g->s->experts ? z.routed * (2 * z.h + 3.0 * g->s->expert_ffn)
                                 : 3 * z.all * g->s->ffn / z.tp;

    return SYNTH_BF16 * (4 * z.t * z.h + 2 * z.all * (z.q + 2 * z.kv) / z.tp + inner);
}

void synth_layer_forward(struct synth_stage *g)
{
    attention_forward(g);
    if (g->s->experts)
        experts_forward(g);
    else
        dense_forward(g);
}

void synth_layer_backward(struct synth_stage *g)
{
    if (g->s->experts)
        experts_backward(g);
    else
        dense_backward(g);
    attention_backward(g);
}
