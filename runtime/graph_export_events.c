/* Writing predictions as trace events, JSON. See graph_export.h. */
#include "config.h"

#include "runtime/graph_export.h"

#include "runtime/nccl_names.h"

#include <errno.h>

static void put_json(FILE *out, const char *text)
{
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            fprintf(out, "\\%c", *text);
        else if ((unsigned char)*text >= ' ')
            putc(*text, out);
}

static void event(FILE *out, const struct crystal_prediction *pr, uint32_t lrank,
                  const struct crystal_walk_op *op)
{
    static const char *kinds[] = {"host", "kernel", "collective", "send", "receive"};
    const struct crystal_graph *g = pr->predict->graph;
    uint32_t rep = crystal_graph_rep_of(g, lrank);
    const struct crystal_instr *in = &pr->predict->programs[rep]->instrs[op->instr];
    const char *name = "computation";
    uint64_t count;

    if (op->kind == CRYSTAL_WALK_KERNEL) {
        name = crystal_graph_label(g, &crystal_graph_ops(g, rep, &count)[in->record]);
        name = name ? name : "kernel";
    } else if (op->kind != CRYSTAL_WALK_HOST) {
        name = crystal_func_name(in->func);
    }
    fputs(",\n{\"ph\": \"X\", \"name\": \"", out);
    put_json(out, name);
    fprintf(
        out,
        "\", \"cat\": \"%s\", \"pid\": %u, \"tid\": %u, \"ts\": %.3f, \"dur\": %.3f",
        kinds[op->kind], lrank, op->kind == CRYSTAL_WALK_HOST ? 0U : op->lane + 1U,
        (double)op->start_ns / 1e3, (double)(op->end_ns - op->start_ns) / 1e3);
    if (op->kind >= CRYSTAL_WALK_COLL)
        fprintf(out, ", \"args\": {\"communicator\": %u, \"number\": %u}",
                crystal_graph_comm_of(g, lrank, in->local), op->nth);
    putc('}', out);
}

int crystal_export_events(FILE *out, const struct crystal_prediction *pr,
                          const uint32_t *lranks, uint32_t count,
                          struct crystal_error *err)
{
    struct crystal_walk walk = {0};
    int code = 0;

    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
          "{\"ph\": \"M\", \"name\": \"process_labels\", \"pid\": 0, \"args\": "
          "{\"labels\": \"predicted by crystal\"}}",
          out);
    for (uint32_t i = 0; !code && i < count; i++) {
        code = crystal_prediction_walk(pr, lranks[i], 1, &walk);
        fprintf(out,
                ",\n{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %u, \"args\": "
                "{\"name\": \"rank %u\"}}",
                lranks[i], lranks[i]);
        for (size_t k = 0; !code && k < walk.count; k++)
            event(out, pr, lranks[i], &walk.ops[k]);
    }
    fputs("\n]}\n", out);
    crystal_walk_fini(&walk);
    return code ? crystal_error_set(err, ENOMEM, "export: out of memory") : 0;
}
