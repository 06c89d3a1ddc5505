/* A job that was never run: from a description of model, parallel layout, schedule and
 * hardware to the job.graph of one training iteration of all its ranks, as Megatron
 * would do it. For predictions before there is a program, tests and benchmarks.
 *
 * Ranks are numbered with tp fastest, then cp, dp and pp; ep lies inside dp. One
 * representative for each pipeline stage. Layers are transformers: attention, then a
 * dense or a mixture-of-experts part; with sequence parallelism where tp > 1, grouped
 * all-to-all where ep > 1, keys and values gathered where cp > 1, 1F1B or interleaved
 * 1F1B where pp > 1, gradients reduced and parameters gathered layer by layer
 * (distributed optimizer) where dp * cp > 1. Collectives of tp, cp and ep are on the
 * compute stream, the others on streams of their own. Durations are MODELLED: the
 * greater of FLOPs over `hardware.tflops` and bytes over `hardware.memory-bandwidth`.
 */
#ifndef CRYSTAL_SYNTH_H
#define CRYSTAL_SYNTH_H

#include "runtime/error.h"
#include "runtime/graph.h"

#include <stddef.h>
#include <stdint.h>

/* Layers times microbatches: some 70 records of 32 bytes each. */
#define CRYSTAL_SYNTH_PASSES_MAX (1U << 18)
/* Elements or bytes of one operation: what a double counts exactly. */
#define CRYSTAL_SYNTH_SIZE_MAX (UINT64_C(1) << 53)
/* Duration of one kernel. */
#define CRYSTAL_SYNTH_KERNEL_NS_MAX UINT64_C(1000000000000)

struct crystal_synth {
    uint32_t tp, cp, dp, pp, ep;
    uint32_t interleave; /* chunks of layers on each stage */
    uint32_t layers, hidden, heads, kv_heads, head_size, ffn;
    uint32_t experts, experts_per_token, expert_ffn; /* 0: dense */
    uint32_t vocab; /* 0: neither embedding nor head, and layers divide evenly */
    uint32_t sequence, microbatch, microbatches;
    uint32_t tflops;             /* that matrix products reach */
    uint64_t memory_bytes_per_s; /* that the other kernels reach */
    uint64_t kernel_ns;          /* of the shortest kernel */
    uint64_t launch_ns;          /* of the host, for each kernel or call */
    struct crystal_graph_network network;
};

/* Keys of the description, for help and manual; ends with a NULL name. */
struct crystal_synth_key {
    const char *name, *default_text /* NULL: needed */, *doc;
};
const struct crystal_synth_key *crystal_synth_keys(void);

/* Reads a description in YAML. Unknown keys, missing ones and a layout that does not
 * fit (ranks, divisibility) are errors with the place. */
int crystal_synth_read(const char *path, struct crystal_synth *ret,
                       struct crystal_error *err);
/* The same from memory; name stands for the path in sentences. */
int crystal_synth_parse(const char *name, const char *text, size_t text_bytes,
                        struct crystal_synth *ret, struct crystal_error *err);

/* Writes the graph; -ERANGE where a size or a duration is beyond the limits above. */
int crystal_synth_write(const struct crystal_synth *s, const char *path,
                        struct crystal_error *err);

#endif
