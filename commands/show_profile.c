/* job.profile as text. See show.h. */
#include "config.h"

#include "commands/show.h"

#include "runtime/profile_file.h"

#include <inttypes.h>

static double us(uint64_t ns)
{
    return (double)ns / 1e3;
}

static void print_rep(FILE *out, const struct crystal_profile *p, uint32_t i)
{
    const struct crystal_profile_rep *rep = crystal_profile_rep(p, i);
    const struct crystal_profile_op *ops = crystal_profile_ops(p, i);
    uint64_t sum = 0;

    for (uint32_t k = 0; k < rep->instr_count; k++)
        sum += ops[k].gap_ns;
    fprintf(out,
            "\nrank %u: %u iterations %s, %.3f us of computation in each\n"
            "  instr      computation us (10 %% .. 90 %%)"
            "         transfer us (10 %% .. 90 %%)  composed us\n",
            rep->lrank, rep->sample_count,
            crystal_origin_name((enum crystal_origin)rep->origin), us(sum));
    for (uint32_t k = 0; k < rep->instr_count; k++) {
        fprintf(out, "%7u %12.3f (%.3f .. %.3f)", k, us(ops[k].gap_ns),
                us(ops[k].gap_p10_ns), us(ops[k].gap_p90_ns));
        if (ops[k].transfer_ns)
            fprintf(out, " %12.3f (%.3f .. %.3f)", us(ops[k].transfer_ns),
                    us(ops[k].transfer_p10_ns), us(ops[k].transfer_p90_ns));
        if (ops[k].composed_ns)
            fprintf(out, " %12.3f", us(ops[k].composed_ns));
        if (ops[k].cost_ns)
            fprintf(out, ", software %.3f", us(ops[k].cost_ns));
        putc('\n', out);
    }
}

void crystal_show_profile(FILE *out, const struct crystal_profile *p)
{
    const struct crystal_profile_head *h = crystal_profile_head(p);

    fprintf(out,
            "%u ranks, %u representatives, %u sandbox ranks measured over %u "
            "iterations\n"
            "wire %" PRIu64 " bytes/s, latency %.3f us, ",
            h->lrank_count, h->rep_count, h->measured_count, h->iteration_count,
            h->wire_bytes_per_s, us(h->wire_latency_ns));
    if (crystal_profile_has_costs(h))
        fprintf(out, "software by operation (measured)\n");
    else
        fprintf(out,
                "software %.3f us a message and %.3f us an operation (%s, %u "
                "collectives)\n",
                us(h->overhead_ns), us(h->op_overhead_ns),
                crystal_origin_name((enum crystal_origin)h->overhead_origin),
                h->overhead_sample_count);
    if (h->stretch_ppm)
        fprintf(out,
                "computation longer by %.1f %%, as ranks that shared CPUs went on late "
                "behind waits\n",
                h->stretch_ppm / 1e4);
    for (uint32_t r = 0; r < h->lrank_count; r++) {
        const struct crystal_profile_iteration *it = crystal_profile_iteration(p, r);

        fprintf(out, "rank %u: iteration %.3f ms composed (%.3f .. %.3f)\n", r,
                (double)it->mean_ns / 1e6, (double)it->p10_ns / 1e6,
                (double)it->p90_ns / 1e6);
    }
    for (uint32_t i = 0; i < h->rep_count; i++)
        print_rep(out, p, i);
}
