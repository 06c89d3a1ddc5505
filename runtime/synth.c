/* The description of a synthetic job: its keys, and whether they fit. See synth.h. */
#include "config.h"

#include "runtime/synth.h"

#include "runtime/conf.h"
#include "runtime/yaml_map.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum type { COUNT, BANDWIDTH, DURATION };

#define AT(field) offsetof(struct crystal_synth, field)

static const struct {
    enum type type;
    size_t offset;
} places[] = {
    {COUNT, AT(tp)},
    {COUNT, AT(cp)},
    {COUNT, AT(dp)},
    {COUNT, AT(pp)},
    {COUNT, AT(ep)},
    {COUNT, AT(interleave)},
    {COUNT, AT(layers)},
    {COUNT, AT(hidden)},
    {COUNT, AT(heads)},
    {COUNT, AT(kv_heads)},
    {COUNT, AT(head_size)},
    {COUNT, AT(ffn)},
    {COUNT, AT(experts)},
    {COUNT, AT(experts_per_token)},
    {COUNT, AT(expert_ffn)},
    {COUNT, AT(vocab)},
    {COUNT, AT(sequence)},
    {COUNT, AT(microbatch)},
    {COUNT, AT(microbatches)},
    {COUNT, AT(tflops)},
    {BANDWIDTH, AT(memory_bytes_per_s)},
    {DURATION, AT(kernel_ns)},
    {DURATION, AT(launch_ns)},
    {COUNT, AT(network.ranks_per_node)},
    {BANDWIDTH, AT(network.bytes_per_s)},
    {DURATION, AT(network.latency_ns)},
    {BANDWIDTH, AT(network.node_bytes_per_s)},
    {DURATION, AT(network.node_latency_ns)},
};

/* In the order of places. */
static const struct crystal_synth_key keys[] = {
    {"parallel.tp", "1", "tensor-parallel ranks, with sequence parallelism"},
    {"parallel.cp", "1", "context-parallel ranks"},
    {"parallel.dp", "1", "data-parallel ranks"},
    {"parallel.pp", "1", "pipeline stages"},
    {"parallel.ep", "1", "expert-parallel ranks, inside dp"},
    {"parallel.interleave", "1", "chunks of layers on each pipeline stage"},
    {"model.layers", NULL, "transformer layers"},
    {"model.hidden", NULL, "hidden size"},
    {"model.heads", NULL, "attention heads"},
    {"model.kv-heads", "0", "key and value heads, 0: as many as heads"},
    {"model.head-size", "0", "size of a head, 0: hidden / heads"},
    {"model.ffn", NULL, "inner size of a dense layer"},
    {"model.experts", "0", "experts of a layer, 0: dense"},
    {"model.experts-per-token", "1", "experts that see a token"},
    {"model.expert-ffn", "0", "inner size of an expert"},
    {"model.vocab", "0", "vocabulary, 0: neither embedding nor head"},
    {"batch.sequence", NULL, "tokens of a sequence"},
    {"batch.microbatch", "1", "sequences of a microbatch"},
    {"batch.microbatches", NULL, "microbatches of an iteration, for each replica"},
    {"hardware.tflops", "400", "TFLOP/s that matrix products reach"},
    {"hardware.memory-bandwidth", "2500GB/s", "that the other kernels reach"},
    {"hardware.kernel", "2us", "duration of the shortest kernel"},
    {"hardware.launch", "3us", "of the host, for each kernel or call"},
    {"network.ranks-per-node", "8", "ranks of a node"},
    {"network.bandwidth", "50GB/s",
     "between nodes, for each rank; 0: bytes cost nothing"},
    {"network.latency", "5us", "between nodes"},
    {"network.node-bandwidth", "300GB/s", "inside a node, for each rank"},
    {"network.node-latency", "2us", "inside a node"},
    {NULL, NULL, NULL},
};
#define KEY_COUNT (sizeof keys / sizeof keys[0] - 1)
_Static_assert(KEY_COUNT == sizeof places / sizeof places[0], "one place for a key");

const struct crystal_synth_key *crystal_synth_keys(void)
{
    return keys;
}

static int count_parse(const char *text, uint32_t *ret)
{
    char *end;
    unsigned long value;

    if (*text < '0' || *text > '9')
        return -EINVAL;
    errno = 0;
    value = strtoul(text, &end, 10);
    if (errno || *end || value > 1000000000)
        return -EINVAL;
    *ret = (uint32_t)value;
    return 0;
}

static int value_set(struct crystal_synth *s, size_t key, const char *text)
{
    void *to = (char *)s + places[key].offset;

    switch (places[key].type) {
    case COUNT:
        return count_parse(text, to);
    case BANDWIDTH:
        if (strcmp(text, "0") == 0) {
            *(uint64_t *)to = 0;
            return 0;
        }
        return crystal_bandwidth_parse(text, to);
    default:
        return crystal_duration_parse(text, to);
    }
}

/* --- does it fit? --- */

static int bad(struct crystal_error *err, const char *name, const char *what,
               uint64_t a, const char *relation, uint64_t b)
{
    return crystal_error_set(err, EINVAL, "%s: %s %" PRIu64 " %s %" PRIu64, name, what,
                             a, relation, b);
}

/* Layers and, with a vocabulary, embedding and head go evenly on all chunks. */
static int fits_pipeline(const struct crystal_synth *s, const char *name,
                         struct crystal_error *err)
{
    uint32_t chunks = s->pp * s->interleave, slots = s->layers + (s->vocab ? 2 : 0);

    if (s->interleave > 1 && s->pp == 1)
        return crystal_error_set(
            err, EINVAL, "%s: parallel.interleave needs pipeline stages (parallel.pp)",
            name);
    if (slots % chunks && s->layers % chunks)
        return bad(err, name,
                   "model.layers (with embedding and head, if any) must divide evenly:",
                   slots, "on chunks", chunks);
    if (s->interleave > 1 && s->microbatches % s->pp)
        return bad(err, name, "batch.microbatches", s->microbatches,
                   "must be a multiple of parallel.pp,", s->pp);
    return 0;
}

/* Those that may be 0, and those that others limit. */
static int at_most(const struct crystal_synth *s, const char *name,
                   struct crystal_error *err)
{
    const struct {
        const char *what;
        uint64_t value, most;
    } limits[] = {
        {"model.head-size (hidden / heads, unless given) =", s->head_size, 1 << 16},
        {"model.kv-heads", s->kv_heads, s->heads},
        {"model.vocab", s->vocab, 1 << 26},
        {"hardware.kernel, in ns,", s->kernel_ns, 1000000000},
        {"hardware.launch, in ns,", s->launch_ns, 1000000000},
        {"network.latency, in ns,", s->network.latency_ns, 1000000000000},
        {"network.node-latency, in ns,", s->network.node_latency_ns, 1000000000000},
    };

    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        if (limits[i].value > limits[i].most)
            return bad(err, name, limits[i].what, limits[i].value, "must be at most",
                       limits[i].most);
    return 0;
}

static int fits(struct crystal_synth *s, const char *name, struct crystal_error *err)
{
    const struct {
        const char *what;
        uint32_t value, most;
    } positive[] = {
        {"parallel.tp", s->tp, 1024},
        {"parallel.cp", s->cp, 1024},
        {"parallel.dp", s->dp, 1 << 20},
        {"parallel.pp", s->pp, 1024},
        {"parallel.ep", s->ep, 1 << 16},
        {"parallel.interleave", s->interleave, 1024},
        {"model.layers", s->layers, 1 << 16},
        {"model.hidden", s->hidden, 1 << 20},
        {"model.heads", s->heads, 1 << 16},
        {"model.ffn", s->ffn, 1 << 22},
        {"batch.sequence", s->sequence, 1 << 26},
        {"batch.microbatch", s->microbatch, 1 << 16},
        {"batch.microbatches", s->microbatches, 1 << 16},
        {"hardware.tflops", s->tflops, 1000000},
        {"network.ranks-per-node", s->network.ranks_per_node, 1 << 16},
    };
    uint64_t ranks, passes;
    int code;

    for (size_t i = 0; i < sizeof positive / sizeof positive[0]; i++)
        if (!positive[i].value || positive[i].value > positive[i].most)
            return bad(err, name, positive[i].what, positive[i].value,
                       "must be from 1 to", positive[i].most);
    passes = (uint64_t)s->layers * s->microbatches;
    if (passes > CRYSTAL_SYNTH_PASSES_MAX)
        return bad(err, name, "model.layers * batch.microbatches =", passes,
                   "passes of a layer, at most", CRYSTAL_SYNTH_PASSES_MAX);
    ranks = (uint64_t)s->tp * s->cp * s->dp * s->pp;
    if (ranks > 1 << 20)
        return bad(err, name, "tp * cp * dp * pp =", ranks, "ranks, at most", 1 << 20);
    if (!s->kv_heads)
        s->kv_heads = s->heads;
    if (!s->head_size)
        s->head_size = s->hidden / s->heads;
    if (s->dp % s->ep)
        return bad(err, name, "parallel.ep", s->ep, "must divide parallel.dp,", s->dp);
    if (s->ep > 1 && (!s->experts || s->experts % s->ep))
        return bad(err, name, "parallel.ep", s->ep, "must divide model.experts,",
                   s->experts);
    if (s->experts &&
        (!s->expert_ffn || !s->experts_per_token || s->experts_per_token > s->experts ||
         s->experts > 1 << 16 || s->expert_ffn > 1 << 22))
        return crystal_error_set(err, EINVAL,
                                 "%s: model.experts needs model.expert-ffn, and "
                                 "model.experts-per-token from 1 to model.experts",
                                 name);
    if (s->heads % s->tp)
        return bad(err, name, "parallel.tp", s->tp, "must divide model.heads,",
                   s->heads);
    code = at_most(s, name, err);
    return code ? code : fits_pipeline(s, name, err);
}

/* --- reading --- */

static int map_read(const struct crystal_yaml_map *map, const char *name,
                    struct crystal_synth *s, struct crystal_error *err)
{
    for (size_t i = 0; i < map->item_count; i++) {
        const struct crystal_yaml_item *item = &map->items[i];
        size_t key = 0;

        while (key < KEY_COUNT && strcmp(keys[key].name, item->key) != 0)
            key++;
        if (key == KEY_COUNT && strcmp(item->key, "name") == 0)
            continue;
        if (key == KEY_COUNT)
            return crystal_error_set(err, EINVAL,
                                     "%s:%u:%u: unknown key '%s'; scrystal graph synth "
                                     "--keys lists them",
                                     name, item->line, item->column, item->key);
        if (value_set(s, key, item->value))
            return crystal_error_set(err, EINVAL, "%s:%u:%u: %s: bad value '%s'", name,
                                     item->line, item->column, item->key, item->value);
    }
    for (size_t key = 0; key < KEY_COUNT; key++)
        if (!keys[key].default_text && !crystal_yaml_get(map, keys[key].name))
            return crystal_error_set(err, EINVAL, "%s: %s is missing: %s", name,
                                     keys[key].name, keys[key].doc);
    return 0;
}

static int from_map(const struct crystal_yaml_map *map, const char *name,
                    struct crystal_synth *ret, struct crystal_error *err)
{
    struct crystal_synth s;
    int code;

    memset(&s, 0, sizeof s);
    for (size_t key = 0; key < KEY_COUNT; key++)
        if (keys[key].default_text)
            (void)value_set(&s, key, keys[key].default_text); /* ours */
    code = map_read(map, name, &s, err);
    if (!code)
        code = fits(&s, name, err);
    if (!code)
        *ret = s;
    return code;
}

int crystal_synth_parse(const char *name, const char *text, size_t text_bytes,
                        struct crystal_synth *ret, struct crystal_error *err)
{
    struct crystal_yaml_map map;
    int code = crystal_yaml_parse(name, text, text_bytes, &map, err);

    if (code)
        return code;
    code = from_map(&map, name, ret, err);
    crystal_yaml_fini(&map);
    return code;
}

int crystal_synth_read(const char *path, struct crystal_synth *ret,
                       struct crystal_error *err)
{
    struct crystal_yaml_map map;
    int code = crystal_yaml_read(path, &map, err);

    if (code)
        return code;
    code = from_map(&map, path, ret, err);
    crystal_yaml_fini(&map);
    return code;
}
