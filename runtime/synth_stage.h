/* What the files of the synthetic job's writer share: one pipeline stage while its
 * records are written. Include synth.h instead.
 *
 * Sizes are doubles, since the products of what a description may hold exceed 64 bits;
 * what does not fit a record is remembered as the stage's fault, and the graph is not
 * written.
 */
#ifndef CRYSTAL_SYNTH_STAGE_H
#define CRYSTAL_SYNTH_STAGE_H

#include "runtime/graph_write.h"
#include "runtime/synth.h"

#include <stdbool.h>
#include <stdint.h>

/* Communicators of a rank. F: activations, B: gradients, between this stage and the one
 * before (PREV) or behind (NEXT), the last stage and the first included. */
enum synth_set { TP, CP, DP, EP, EDP, F_PREV, F_NEXT, B_PREV, B_NEXT, SET_COUNT };

#define SYNTH_BF16 2U /* bytes */
#define SYNTH_NONE UINT32_MAX

struct synth_stage {
    const struct crystal_synth *s;
    struct crystal_graph_writer *w;
    uint32_t index;
    uint32_t local[SET_COUNT]; /* SYNTH_NONE: it has none */
    uint32_t event;            /* of the next record */
    uint64_t now_ns;           /* of the host */
    double tokens;             /* of a microbatch on this rank, before tp splits them */
    const char *fault;         /* what was too great first, NULL: nothing */
    double fault_value;
};

/* synth_record.c: one record each, or none where the stage lacks the communicator. */
void synth_record(struct synth_stage *g, enum crystal_op_kind kind, uint16_t stream,
                  uint32_t peer);
void synth_kernel(struct synth_stage *g, const char *name, double flops, double bytes);
void synth_allocate(struct synth_stage *g, double bytes, bool is_free);
void synth_collective(struct synth_stage *g, enum synth_set set, enum crystal_func func,
                      double count);
/* Stream `to` waits for what `from` has been given. */
void synth_join(struct synth_stage *g, uint16_t from, uint16_t to);
void synth_message(struct synth_stage *g, enum synth_set set, bool sends);
uint16_t synth_stream(enum synth_set set);

/* synth_layer.c */
/* Sizes that appear again and again. */
struct synth_sizes {
    double t;   /* tokens here, with sequence parallelism */
    double all; /* tokens of the tensor-parallel group */
    double h, q, kv, tp;
    double routed; /* tokens that this rank's experts see */
};
struct synth_sizes synth_sizes_of(const struct synth_stage *g);
void synth_product(struct synth_stage *g, const char *name, double rows, double inner,
                   double columns);
void synth_layer_forward(struct synth_stage *g);
void synth_layer_backward(struct synth_stage *g);
double synth_dense_parameters(const struct synth_stage *g);
double synth_expert_parameters(const struct synth_stage *g);
double synth_vocabulary_parameters(const struct synth_stage *g);
double synth_activation_bytes(const struct synth_stage *g);

/* synth_stage.c: the whole iteration, with its marks. */
void synth_stage_write(struct synth_stage *g);

#endif
