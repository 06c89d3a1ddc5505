/* The records of a pipeline stage, one by one. See synth_stage.h. */
#include "config.h"

#include "runtime/synth_stage.h"

#include "runtime/nccl_abi.h"

/* What goes into a record is a whole number of at most `most`. */
static uint64_t whole(struct synth_stage *g, const char *what, double value,
                      uint64_t most)
{
    if (value <= (double)most) /* no NaN */
        return (uint64_t)value;
    if (!g->fault) {
        g->fault = what;
        g->fault_value = value;
    }
    return most;
}

void synth_record(struct synth_stage *g, enum crystal_op_kind kind, uint16_t stream,
                  uint32_t peer)
{
    struct crystal_op op = {.kind = (uint8_t)kind,
                            .stream = stream,
                            .peer = peer,
                            .value = kind == CRYSTAL_OP_SYNC ? g->now_ns : 0,
                            .t_ns = g->now_ns};

    crystal_graph_writer_op(g->w, &op);
}

void synth_kernel(struct synth_stage *g, const char *name, double flops, double bytes)
{
    double product_ns = flops / ((double)g->s->tflops * 1e3);
    double memory_ns =
        g->s->memory_bytes_per_s ? bytes * 1e9 / (double)g->s->memory_bytes_per_s : 0;
    double ns = product_ns > memory_ns ? product_ns : memory_ns;
    struct crystal_op op = {.kind = CRYSTAL_OP_KERNEL};

    g->now_ns += g->s->launch_ns;
    op.aux = crystal_graph_writer_label(g->w, name);
    op.value = g->s->kernel_ns;
    if (!(ns <= (double)g->s->kernel_ns))
        op.value = whole(g, "nanoseconds of a kernel", ns, CRYSTAL_SYNTH_KERNEL_NS_MAX);
    op.t_ns = g->now_ns;
    crystal_graph_writer_op(g->w, &op);
}

void synth_allocate(struct synth_stage *g, double bytes, bool is_free)
{
    struct crystal_op op = {
        .kind = CRYSTAL_OP_ALLOC,
        .aux = is_free,
        .value = whole(g, "bytes of memory", bytes, CRYSTAL_SYNTH_SIZE_MAX),
        .t_ns = g->now_ns};

    crystal_graph_writer_op(g->w, &op);
}

uint16_t synth_stream(enum synth_set set)
{
    return set <= CP || set == EP ? 0 : set == EDP ? DP : (uint16_t)set;
}

void synth_collective(struct synth_stage *g, enum synth_set set, enum crystal_func func,
                      double count)
{
    struct crystal_op op = {.kind = CRYSTAL_OP_COLL,
                            .func = (uint8_t)func,
                            .dtype = ncclBfloat16,
                            .stream = synth_stream(set)};

    if (g->local[set] == SYNTH_NONE)
        return;
    g->now_ns += g->s->launch_ns;
    op.comm = (uint16_t)g->local[set];
    op.value = whole(g, "elements of a collective", count, CRYSTAL_SYNTH_SIZE_MAX);
    op.t_ns = g->now_ns;
    crystal_graph_writer_op(g->w, &op);
}

/* Stream `to` waits for what `from` has been given. */
void synth_join(struct synth_stage *g, uint16_t from, uint16_t to)
{
    synth_record(g, CRYSTAL_OP_RECORD, from, g->event);
    synth_record(g, CRYSTAL_OP_SWAIT, to, g->event++);
}

void synth_message(struct synth_stage *g, enum synth_set set, bool sends)
{
    bool is_behind = set == F_NEXT || set == B_NEXT; /* the other stage */
    struct crystal_op op = {.kind = sends ? CRYSTAL_OP_SEND : CRYSTAL_OP_RECV,
                            .func = sends ? CRYSTAL_FUNC_SEND : CRYSTAL_FUNC_RECV,
                            .dtype = ncclBfloat16,
                            .stream = synth_stream(set),
                            .comm = (uint16_t)g->local[set],
                            .peer = is_behind};

    if (sends)
        synth_join(g, 0, op.stream);
    g->now_ns += g->s->launch_ns;
    op.value = whole(g, "elements of a message", g->tokens / g->s->tp * g->s->hidden,
                     CRYSTAL_SYNTH_SIZE_MAX);
    op.t_ns = g->now_ns;
    crystal_graph_writer_op(g->w, &op);
    if (!sends)
        synth_join(g, op.stream, 0);
}
