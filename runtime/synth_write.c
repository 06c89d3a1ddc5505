/* The graph of a synthetic job: communicators, then for each pipeline stage the records
 * of one iteration. See synth.h.
 */
#include "config.h"

#include "runtime/graph_write.h"
#include "runtime/nccl_abi.h"
#include "runtime/synth.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Communicators of a rank. F: activations, B: gradients, between this stage and the one
 * before (PREV) or behind (NEXT), the last stage and the first included. */
enum set { TP, CP, DP, EP, EDP, F_PREV, F_NEXT, B_PREV, B_NEXT, SET_COUNT };

#define BF16 2U /* bytes */
#define NONE UINT32_MAX

struct stage {
    const struct crystal_synth *s;
    struct crystal_graph_writer *w;
    uint32_t index;
    uint32_t local[SET_COUNT]; /* NONE: it has none */
    uint32_t event;            /* of the next record */
    uint64_t now_ns;           /* of the host */
    double tokens;             /* of a microbatch on this rank, before tp splits them */
};

/* --- records --- */

static void record(struct stage *g, enum crystal_op_kind kind, uint16_t stream,
                   uint32_t peer)
{
    struct crystal_op op = {.kind = (uint8_t)kind,
                            .stream = stream,
                            .peer = peer,
                            .value = kind == CRYSTAL_OP_SYNC ? g->now_ns : 0,
                            .t_ns = g->now_ns};

    crystal_graph_writer_op(g->w, &op);
}

static void kernel(struct stage *g, const char *name, double flops, double bytes)
{
    double product_ns = flops / ((double)g->s->tflops * 1e3);
    double memory_ns =
        g->s->memory_bytes_per_s ? bytes * 1e9 / (double)g->s->memory_bytes_per_s : 0;
    double ns = product_ns > memory_ns ? product_ns : memory_ns;
    struct crystal_op op = {.kind = CRYSTAL_OP_KERNEL};

    g->now_ns += g->s->launch_ns;
    op.aux = crystal_graph_writer_label(g->w, name);
    op.value = ns > (double)g->s->kernel_ns ? (uint64_t)ns : g->s->kernel_ns;
    op.t_ns = g->now_ns;
    crystal_graph_writer_op(g->w, &op);
}

static void allocate(struct stage *g, double bytes, bool is_free)
{
    struct crystal_op op = {.kind = CRYSTAL_OP_ALLOC,
                            .aux = is_free,
                            .value = (uint64_t)bytes,
                            .t_ns = g->now_ns};

    crystal_graph_writer_op(g->w, &op);
}

static uint16_t stream_of(enum set set)
{
    return set <= CP || set == EP ? 0 : set == EDP ? DP : (uint16_t)set;
}

static void collective(struct stage *g, enum set set, enum crystal_func func,
                       double count)
{
    struct crystal_op op = {.kind = CRYSTAL_OP_COLL,
                            .func = (uint8_t)func,
                            .dtype = ncclBfloat16,
                            .stream = stream_of(set)};

    if (g->local[set] == NONE)
        return;
    g->now_ns += g->s->launch_ns;
    op.comm = (uint16_t)g->local[set];
    op.value = (uint64_t)count;
    op.t_ns = g->now_ns;
    crystal_graph_writer_op(g->w, &op);
}

/* Stream `to` waits for what `from` has been given. */
static void join(struct stage *g, uint16_t from, uint16_t to)
{
    record(g, CRYSTAL_OP_RECORD, from, g->event);
    record(g, CRYSTAL_OP_SWAIT, to, g->event++);
}

/* --- kernels of one layer --- */

/* Sizes that appear again and again. */
struct sizes {
    double t;   /* tokens here, with sequence parallelism */
    double all; /* tokens of the tensor-parallel group */
    double h, q, kv, tp;
    double routed; /* tokens that this rank's experts see */
};

static struct sizes sizes_of(const struct stage *g)
{
    const struct crystal_synth *s = g->s;
    struct sizes z = {.t = g->tokens / s->tp,
                      .all = g->tokens,
                      .h = s->hidden,
                      .q = (double)s->heads * s->head_size,
                      .kv = (double)s->kv_heads * s->head_size,
                      .tp = s->tp};

    z.routed = z.t * s->experts_per_token;
    return z;
}

static void product(struct stage *g, const char *name, double rows, double inner,
                    double columns)
{
    kernel(g, name, 2 * rows * inner * columns,
           BF16 * (rows * inner + inner * columns + rows * columns));
}

static void attention_forward(struct stage *g)
{
    const struct sizes z = sizes_of(g);

    kernel(g, "norm", 0, 2 * BF16 * z.t * z.h);
    collective(g, TP, CRYSTAL_FUNC_ALLGATHER, z.t * z.h);
    product(g, "qkv", z.all, z.h, (z.q + 2 * z.kv) / z.tp);
    kernel(g, "qk-norm", 0, 2 * BF16 * z.all * (z.q + z.kv) / z.tp);
    kernel(g, "rotary", 0, 2 * BF16 * z.all * (z.q + z.kv) / z.tp);
    collective(g, CP, CRYSTAL_FUNC_ALLGATHER, 2 * z.all * z.kv / z.tp);
    kernel(g, "attention", 2 * z.all * g->s->sequence * z.q / z.tp,
           BF16 * z.all * (2 * z.q + 2 * z.kv) / z.tp);
    product(g, "projection", z.all, z.q / z.tp, z.h);
    collective(g, TP, CRYSTAL_FUNC_REDUCESCATTER, z.t * z.h);
    kernel(g, "add-norm", 0, 4 * BF16 * z.t * z.h);
}

static void attention_backward(struct stage *g)
{
    const struct sizes z = sizes_of(g);

    kernel(g, "add-norm'", 0, 6 * BF16 * z.t * z.h);
    collective(g, TP, CRYSTAL_FUNC_ALLGATHER, z.t * z.h);
    product(g, "projection'", z.all, z.h, z.q / z.tp);
    product(g, "projection-weight'", z.q / z.tp, z.all, z.h);
    kernel(g, "attention'", 5 * z.all * g->s->sequence * z.q / z.tp,
           BF16 * z.all * (4 * z.q + 4 * z.kv) / z.tp);
    collective(g, CP, CRYSTAL_FUNC_REDUCESCATTER, 2 * z.all * z.kv / z.tp);
    kernel(g, "rotary'", 0, 2 * BF16 * z.all * (z.q + z.kv) / z.tp);
    kernel(g, "qk-norm'", 0, 3 * BF16 * z.all * (z.q + z.kv) / z.tp);
    product(g, "qkv'", z.all, (z.q + 2 * z.kv) / z.tp, z.h);
    collective(g, TP, CRYSTAL_FUNC_ALLGATHER, z.t * z.h);
    product(g, "qkv-weight'", z.h, z.all, (z.q + 2 * z.kv) / z.tp);
    collective(g, TP, CRYSTAL_FUNC_REDUCESCATTER, z.t * z.h);
    kernel(g, "norm'", 0, 3 * BF16 * z.t * z.h);
}

static void dense_forward(struct stage *g)
{
    const struct sizes z = sizes_of(g);
    double ffn = g->s->ffn / z.tp;

    collective(g, TP, CRYSTAL_FUNC_ALLGATHER, z.t * z.h);
    product(g, "ffn-up", z.all, z.h, 2 * ffn);
    kernel(g, "swiglu", 0, 3 * BF16 * z.all * ffn);
    product(g, "ffn-down", z.all, ffn, z.h);
    collective(g, TP, CRYSTAL_FUNC_REDUCESCATTER, z.t * z.h);
    kernel(g, "add", 0, 3 * BF16 * z.t * z.h);
}

static void dense_backward(struct stage *g)
{
    const struct sizes z = sizes_of(g);
    double ffn = g->s->ffn / z.tp;

    kernel(g, "add'", 0, 2 * BF16 * z.t * z.h);
    collective(g, TP, CRYSTAL_FUNC_ALLGATHER, z.t * z.h);
    product(g, "ffn-down'", z.all, z.h, ffn);
    product(g, "ffn-down-weight'", ffn, z.all, z.h);
    kernel(g, "swiglu'", 0, 5 * BF16 * z.all * ffn);
    product(g, "ffn-up'", z.all, 2 * ffn, z.h);
    collective(g, TP, CRYSTAL_FUNC_ALLGATHER, z.t * z.h);
    product(g, "ffn-up-weight'", z.h, z.all, 2 * ffn);
    collective(g, TP, CRYSTAL_FUNC_REDUCESCATTER, z.t * z.h);
}

static void all_to_all(struct stage *g)
{
    const struct sizes z = sizes_of(g);

    collective(g, EP, CRYSTAL_FUNC_ALLTOALL, z.routed * z.h / g->s->ep);
}

static void experts_forward(struct stage *g)
{
    const struct sizes z = sizes_of(g);
    double ffn = g->s->expert_ffn;

    product(g, "router", z.t, z.h, g->s->experts);
    kernel(g, "top-k", 0, 4 * 4.0 * z.t * g->s->experts);
    kernel(g, "permute", 0, 2 * BF16 * z.routed * z.h);
    all_to_all(g);
    kernel(g, "sort", 0, 2 * BF16 * z.routed * z.h);
    product(g, "expert-up", z.routed, z.h, 2 * ffn);
    kernel(g, "swiglu", 0, 3 * BF16 * z.routed * ffn);
    product(g, "expert-down", z.routed, ffn, z.h);
    kernel(g, "unsort", 0, 2 * BF16 * z.routed * z.h);
    all_to_all(g);
    kernel(g, "unpermute", 0, BF16 * (z.routed + z.t) * z.h);
    kernel(g, "add", 0, 3 * BF16 * z.t * z.h);
}

static void experts_backward(struct stage *g)
{
    const struct sizes z = sizes_of(g);
    double ffn = g->s->expert_ffn;

    kernel(g, "add'", 0, 2 * BF16 * z.t * z.h);
    kernel(g, "unpermute'", 0, BF16 * (z.routed + z.t) * z.h);
    all_to_all(g);
    kernel(g, "unsort'", 0, 2 * BF16 * z.routed * z.h);
    product(g, "expert-down'", z.routed, z.h, ffn);
    product(g, "expert-down-weight'", ffn, z.routed, z.h);
    kernel(g, "swiglu'", 0, 5 * BF16 * z.routed * ffn);
    product(g, "expert-up'", z.routed, 2 * ffn, z.h);
    product(g, "expert-up-weight'", z.h, z.routed, 2 * ffn);
    kernel(g, "sort'", 0, 2 * BF16 * z.routed * z.h);
    all_to_all(g);
    kernel(g, "permute'", 0, BF16 * (z.routed + z.t) * z.h);
    kernel(g, "top-k'", 0, 4 * 4.0 * z.t * g->s->experts);
    product(g, "router'", z.t, g->s->experts, z.h);
    product(g, "router-weight'", z.h, z.t, g->s->experts);
}

/* --- chunks of layers --- */

static double dense_parameters(const struct stage *g)
{
    const struct sizes z = sizes_of(g);
    double parameters = (z.h * (z.q + 2 * z.kv) + z.q * z.h) / z.tp + 2 * z.h;

    return parameters +
           (g->s->experts ? z.h * g->s->experts : 3 * z.h * g->s->ffn / z.tp);
}

static double expert_parameters(const struct stage *g)
{
    return 3.0 * g->s->hidden * g->s->expert_ffn * g->s->experts / g->s->ep;
}

static double vocabulary_parameters(const struct stage *g)
{
    return (double)g->s->vocab * g->s->hidden / g->s->tp;
}

/* Bytes that the backward pass of a layer needs of its forward pass. */
static double activation_bytes(const struct stage *g)
{
    const struct sizes z = sizes_of(g);
    double inner = g->s->experts ? z.routed * (2 * z.h + 3.0 * g->s->expert_ffn)
                                 : 3 * z.all * g->s->ffn / z.tp;

    return BF16 * (4 * z.t * z.h + 2 * z.all * (z.q + 2 * z.kv) / z.tp + inner);
}

struct chunk {
    uint32_t virtual_stage; /* among all chunks of all stages */
    uint32_t layers;
    bool is_first, is_last;
};

static struct chunk chunk_of(const struct stage *g, uint32_t index)
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

static void message(struct stage *g, enum set set, bool sends)
{
    bool is_behind = set == F_NEXT || set == B_NEXT; /* the other stage */
    struct crystal_op op = {.kind = sends ? CRYSTAL_OP_SEND : CRYSTAL_OP_RECV,
                            .func = sends ? CRYSTAL_FUNC_SEND : CRYSTAL_FUNC_RECV,
                            .dtype = ncclBfloat16,
                            .stream = stream_of(set),
                            .comm = (uint16_t)g->local[set],
                            .peer = is_behind};

    if (sends)
        join(g, 0, op.stream);
    g->now_ns += g->s->launch_ns;
    op.value = (uint64_t)(g->tokens / g->s->tp * g->s->hidden);
    op.t_ns = g->now_ns;
    crystal_graph_writer_op(g->w, &op);
    if (!sends)
        join(g, op.stream, 0);
}

static void forward(struct stage *g, uint32_t index)
{
    const struct sizes z = sizes_of(g);
    struct chunk c = chunk_of(g, index);

    if (!c.is_first)
        message(g, F_PREV, false);
    allocate(g, c.layers * activation_bytes(g), false);
    if (c.is_first && g->s->vocab)
        kernel(g, "embedding", 0, 2 * BF16 * z.t * z.h);
    for (uint32_t i = 0; i < c.layers; i++) {
        attention_forward(g);
        if (g->s->experts)
            experts_forward(g);
        else
            dense_forward(g);
    }
    if (c.is_last && g->s->vocab) {
        product(g, "head", z.all, z.h, g->s->vocab / z.tp);
        kernel(g, "loss", 0, 3 * 4.0 * z.all * g->s->vocab / z.tp);
    }
    if (!c.is_last)
        message(g, F_NEXT, true);
}

/* The gradients of a layer are complete: they are reduced beside the computation. */
static void reduce(struct stage *g, double parameters, double expert)
{
    uint32_t spread = g->s->dp * g->s->cp;

    if (g->local[DP] != NONE || (expert > 0 && g->local[EDP] != NONE))
        join(g, 0, stream_of(DP));
    collective(g, DP, CRYSTAL_FUNC_REDUCESCATTER, parameters / spread);
    if (expert > 0)
        collective(g, EDP, CRYSTAL_FUNC_REDUCESCATTER, expert * g->s->ep / spread);
}

static void backward(struct stage *g, uint32_t index, bool is_last_time)
{
    const struct sizes z = sizes_of(g);
    struct chunk c = chunk_of(g, index);

    if (!c.is_last)
        message(g, B_NEXT, false);
    if (c.is_last && g->s->vocab) {
        kernel(g, "loss'", 0, 3 * 4.0 * z.all * g->s->vocab / z.tp);
        product(g, "head'", z.all, g->s->vocab / z.tp, z.h);
        product(g, "head-weight'", z.h, z.all, g->s->vocab / z.tp);
        if (is_last_time)
            reduce(g, vocabulary_parameters(g), 0);
    }
    for (uint32_t i = 0; i < c.layers; i++) {
        if (g->s->experts)
            experts_backward(g);
        else
            dense_backward(g);
        attention_backward(g);
        if (is_last_time)
            reduce(g, dense_parameters(g), expert_parameters(g));
    }
    if (c.is_first && g->s->vocab) {
        kernel(g, "embedding'", 0, 3 * BF16 * z.t * z.h);
        if (is_last_time)
            reduce(g, vocabulary_parameters(g), 0);
    }
    allocate(g, c.layers * activation_bytes(g), true);
    if (!c.is_first)
        message(g, B_PREV, true);
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

static void backward_turn(struct stage *g, uint32_t k)
{
    backward(g, g->s->interleave - 1 - turn_of(g->s, k), is_last_time(g->s, k));
}

static void schedule(struct stage *g)
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

static double stage_parameters(const struct stage *g, double *ret_expert)
{
    double sum = 0;

    *ret_expert = 0;
    for (uint32_t i = 0; i < g->s->interleave; i++) {
        struct chunk c = chunk_of(g, i);

        sum += c.layers * dense_parameters(g) +
               (c.is_first + c.is_last) * vocabulary_parameters(g);
        *ret_expert += c.layers * expert_parameters(g);
    }
    return sum;
}

/* Gradients are there: step, and parameters come back layer by layer. */
static void optimize(struct stage *g)
{
    uint32_t spread = g->s->dp * g->s->cp;
    double expert, dense = stage_parameters(g, &expert);
    double own = dense / spread + expert * g->s->ep / spread;

    if (g->local[DP] != NONE)
        join(g, stream_of(DP), 0);
    kernel(g, "optimizer", 0, own * 28);
    if (g->local[DP] != NONE)
        join(g, 0, stream_of(DP));
    for (uint32_t i = 0; i < g->s->interleave; i++) {
        struct chunk c = chunk_of(g, i);

        for (uint32_t k = 0; k < c.layers; k++) {
            collective(g, DP, CRYSTAL_FUNC_ALLGATHER, dense_parameters(g) / spread);
            if (g->s->experts)
                collective(g, EDP, CRYSTAL_FUNC_ALLGATHER,
                           expert_parameters(g) * g->s->ep / spread);
        }
        if (g->s->vocab && (c.is_first || c.is_last))
            collective(g, DP, CRYSTAL_FUNC_ALLGATHER,
                       vocabulary_parameters(g) / spread);
    }
    for (uint16_t i = 0; i <= B_NEXT; i++)
        if (i == 0 || (g->local[i] != NONE && stream_of(i) == i))
            record(g, CRYSTAL_OP_SYNC, i, 0);
}

static void stage_write(struct stage *g)
{
    uint32_t spread = g->s->dp * g->s->cp;
    double expert, dense = stage_parameters(g, &expert);

    allocate(g, (dense + expert) * 6 + (dense + expert * g->s->ep) / spread * 12,
             false);
    crystal_graph_writer_mark(g->w);
    schedule(g);
    optimize(g);
    crystal_graph_writer_mark(g->w);
}

/* --- communicators --- */

struct groups {
    const struct crystal_synth *s;
    struct crystal_graph_writer *w;
    uint32_t lrank_count;
    uint32_t *of[SET_COUNT]; /* by lrank: communicator, or NONE */
    uint32_t *members;
};

/* All ranks from `first`, `step` apart, as far as `count`, and the same again `again`
 * times, `stride` apart. */
static void group(struct groups *a, enum set set, uint32_t first, uint32_t count,
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

static void stages_write(const struct groups *a)
{
    uint32_t stride = a->lrank_count / a->s->pp;

    for (uint32_t i = 0; i < a->s->pp; i++) {
        struct stage g = {.s = a->s, .w = a->w, .index = i};
        uint32_t locals = 0;

        g.tokens = (double)a->s->sequence * a->s->microbatch / a->s->cp;
        for (int k = 0; k < SET_COUNT; k++)
            g.local[k] = a->of[k][i * stride] == NONE ? NONE : locals++;
        (void)crystal_graph_writer_rep(a->w, i * stride, locals);
        stage_write(&g);
    }
    for (uint32_t r = 0; r < a->lrank_count; r++) {
        uint32_t map[SET_COUNT], count = 0;

        for (int k = 0; k < SET_COUNT; k++)
            if (a->of[k][r] != NONE)
                map[count++] = a->of[k][r];
        crystal_graph_writer_rank(a->w, r, r / stride, map);
    }
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
        stages_write(&a);
        code = crystal_graph_writer_write(a.w, path, 0, err);
    }
    groups_fini(&a);
    crystal_graph_writer_destroy(a.w);
    return code;
}
