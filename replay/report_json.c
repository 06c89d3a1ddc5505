/* The report for programs: every duration in ns with its origin beside it. */
#include "config.h"

#include "replay/report_internal.h"

#include "runtime/nccl_names.h"

#include <inttypes.h>

void rp_json_text(FILE *out, const char *text)
{
    putc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c < ' ')
            fprintf(out, "\\u%04x", *c);
        else
            putc(*c, out);
    putc('"', out);
}

static void spread(FILE *out, const char *name, const struct rp_spread *s)
{
    fprintf(out,
            "\"%s\": {\"origin\": \"measured\", \"count\": %" PRIu64
            ", \"mean_ns\": %" PRIu64 ", \"p10_ns\": %" PRIu64 ", \"p90_ns\": %" PRIu64
            ", \"max_ns\": %" PRIu64 "}",
            name, s->count, s->mean_ns, s->p10_ns, s->p90_ns, s->max_ns);
}

static void planned(FILE *out, const struct crystal_profile_iteration *p)
{
    fprintf(out,
            "\"plan\": {\"origin\": \"composed\", \"mean_ns\": %" PRIu64
            ", \"p10_ns\": %" PRIu64 ", \"p90_ns\": %" PRIu64 "}",
            p->mean_ns, p->p10_ns, p->p90_ns);
}

static void value(FILE *out, const char *name, const char *origin, uint64_t ns)
{
    fprintf(out, "\"%s\": {\"origin\": \"%s\", \"mean_ns\": %" PRIu64 "}", name, origin,
            ns);
}

static void print_ranks(const struct report *r, FILE *out)
{
    fprintf(out, "  \"ranks\": [");
    for (uint32_t i = 0; i < r->layout.sandbox_count; i++) {
        const struct rp_rank *k = &r->ranks[i];

        fprintf(out, "%s\n    {\"rank\": %u, ", i ? "," : "", k->lrank);
        spread(out, "iteration", &k->iteration);
        fprintf(out, ", ");
        planned(out, &k->plan);
        fprintf(out, ", ");
        value(out, "summed", "modelled", k->summed_ns);
        fprintf(out,
                ", \"peak_memory\": {\"origin\": \"measured\", \"stage\": \"plan\", "
                "\"bytes\": %" PRIu64 "}, \"operations\": %" PRIu64 "}",
                k->peak_bytes, k->op_count);
    }
    fprintf(out, "\n  ],\n");
}

static void print_groups(const struct report *r, FILE *out)
{
    fprintf(out, "  \"groups\": [");
    for (size_t i = 0; i < r->group_count; i++) {
        const struct rp_group *g = &r->groups[i];

        fprintf(out, "%s\n    {\"group\": ", i ? "," : "");
        rp_json_text(out, g->name);
        fprintf(out, ", \"ranks\": %u, \"calls_per_iteration\": %.3f, ", g->nranks,
                g->calls.mean);
        value(out, "time", "measured", g->time_ns);
        fprintf(out, ", ");
        value(out, "plan", "composed", g->plan_ns);
        fprintf(out, ", ");
        value(out, "waiting", "modelled", g->waiting_ns);
        fprintf(out, ", ");
        value(out, "waiting_for_virtual", "measured", g->virtual_ns);
        fprintf(out, ", ");
        value(out, "transfer", "modelled", g->transfer_ns);
        fprintf(out, "}");
    }
    fprintf(out, "\n  ],\n");
}

static void print_operations(const struct report *r, FILE *out)
{
    fprintf(out, "  \"operations\": [");
    for (size_t i = 0; i < r->op_count; i++) {
        const struct rp_op *op = &r->ops[i];
        uint64_t count = op->plan_count ? op->plan_count : 1;

        fprintf(out, "%s\n    {\"group\": ", i ? "," : "");
        rp_json_text(out, op->group);
        fprintf(out,
                ", \"function\": \"%s\", \"bytes\": %" PRIu64
                ", \"calls_per_iteration\": %.3f, ",
                crystal_func_name(op->func), op->bytes, op->calls.mean);
        spread(out, "time", &op->time);
        fprintf(out, ", ");
        value(out, "plan", "composed", op->plan_ns / count);
        fprintf(out, ", ");
        value(out, "transfer", "modelled", op->transfer_ns / count);
        fprintf(out, ", ");
        value(out, "waiting_for_virtual", "measured", op->virtual_wait_ns / count);
        fprintf(out, "}");
    }
    fprintf(out, "\n  ],\n");
}

void rp_print_json(const struct report *r, FILE *out)
{
    const struct crystal_profile_head *h = crystal_profile_head(r->profile);

    fprintf(out, "{\n  \"version\": 1,\n  \"job\": ");
    rp_json_text(out, r->layout.job_name);
    fprintf(out, ",\n  \"run\": ");
    rp_json_text(out, r->run);
    fprintf(out,
            ",\n  \"logical_ranks\": %u,\n  \"sandbox_ranks\": %u,\n"
            "  \"iterations_measured\": %" PRIu64 ",\n  ",
            r->layout.lrank_count, r->layout.sandbox_count, r->iteration_count);
    spread(out, "iteration", &r->iteration);
    fprintf(out, ",\n  ");
    planned(out, &r->plan);
    fprintf(out, ",\n  \"off_percent\": %.3f,\n",
            r->iteration.count ? rp_off(r->iteration.mean_ns, r->plan.mean_ns) : 0);
    print_ranks(r, out);
    print_groups(r, out);
    print_operations(r, out);
    fprintf(out, "  \"wire\": {\"kind\": ");
    rp_json_text(out, r->wire_kind);
    fprintf(out, ", \"transport\": ");
    rp_json_text(out, r->transport);
    if (r->layout.assistant_count)
        fprintf(out,
                ", \"assistants\": %u, \"sent_bytes\": %" PRIu64
                ", \"taken_bytes\": %" PRIu64 ", \"given_bytes\": %" PRIu64,
                r->layout.assistant_count, r->sent_bytes, r->taken_bytes,
                r->given_bytes);
    fprintf(out,
            ", \"bytes_per_s\": %" PRIu64 ", \"latency_ns\": %" PRIu64
            ", \"software_ns\": {\"origin\": \"%s\", \"mean_ns\": %" PRIu64
            ", \"count\": %u}, \"software_per_operation_ns\": %" PRIu64 "},\n",
            r->wire_bytes_per_s, r->wire_latency_ns,
            crystal_origin_name((enum crystal_origin)h->overhead_origin),
            r->overhead_ns, h->overhead_sample_count, h->op_overhead_ns);
    fprintf(out,
            "  \"plan_passes\": %u,\n  \"plan_last_change_percent\": %.4f,\n"
            "  \"plan_stretch_percent\": %.4f,\n",
            h->pass_count ? h->pass_count : 1, h->pass_off_ppm / 1e4,
            h->stretch_ppm / 1e4);
    fprintf(out,
            "  \"standin_operations\": %" PRIu64 ",\n  \"standin_bytes\": %" PRIu64
            ",\n  \"late_messages\": %" PRIu64 ",\n  \"late_max_ns\": %" PRIu64
            ",\n  \"late_payloads\": %" PRIu64
            ",\n  \"modelled_representatives\": %u,\n  \"timeline\": ",
            r->standin_ops, r->standin_bytes, r->late_count, r->late_max_ns,
            r->payload_late_count, r->modelled_reps);
    rp_json_text(out, r->timeline);
    fprintf(out, ",\n  \"failure\": ");
    rp_json_text(out, r->failure);
    fprintf(out, "\n}\n");
}
