/* The report for people: fits 80 columns, begins with the sentence that sums it up, and
 * says of every number where it comes from.
 */
#include "config.h"

#include "replay/report_internal.h"

#include "runtime/nccl_names.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define OPS_SHOWN 12

static double ms(uint64_t ns)
{
    return (double)ns / 1e6;
}

/* "8.0 KiB" into text, which holds 16 characters. */
static const char *size_text(uint64_t bytes, char *text)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;

    while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    if (unit == 0)
        (void)snprintf(text, 16, "%" PRIu64 " B", bytes);
    else
        (void)snprintf(text, 16, "%.1f %s", value, units[unit]);
    return text;
}

static const char *rate_text(uint64_t bytes_per_s, char *text)
{
    if (!bytes_per_s)
        (void)snprintf(text, 32, "unlimited");
    else
        (void)snprintf(text, 32, "%.3g Gbit/s", (double)bytes_per_s * 8 / 1e9);
    return text;
}

static void head(const struct report *r, FILE *out)
{
    fprintf(out, "%s: %u ranks on %u: ", r->layout.job_name, r->layout.lrank_count,
            r->layout.sandbox_count);
    if (r->failure[0])
        fprintf(out, "the run failed: %s\n", r->failure);
    else if (!r->iteration.count)
        fprintf(out, "the run was too short to time an iteration\n");
    else
        fprintf(out, "%.2f ms an iteration, %.1f %% %s plan (%.2f ms)\n",
                ms(r->iteration.mean_ns),
                fabs(rp_off(r->iteration.mean_ns, r->plan.mean_ns)),
                r->iteration.mean_ns >= r->plan.mean_ns ? "above" : "below",
                ms(r->plan.mean_ns));
    if (!rp_has_settled(r))
        fprintf(out,
                "The plan has not settled (see the end), so neither is this figure.\n");
}

static void iterations(const struct report *r, FILE *out)
{
    fprintf(out,
            "\nIterations in ms: %" PRIu64
            " of %s measured, the first left out; plan composed\n"
            "   rank       mean        p10        p90        max       plan     off\n",
            r->iteration_count, r->run);
    for (uint32_t i = 0; i < r->layout.sandbox_count; i++) {
        const struct rp_rank *k = &r->ranks[i];

        if (!k->iteration.count) {
            fprintf(out, "%7u %10s %10s %10s %10s %10.2f       -\n", k->lrank, "-", "-",
                    "-", "-", ms(k->plan.mean_ns));
            continue;
        }
        fprintf(out, "%7u %10.2f %10.2f %10.2f %10.2f %10.2f %+6.1f%%\n", k->lrank,
                ms(k->iteration.mean_ns), ms(k->iteration.p10_ns),
                ms(k->iteration.p90_ns), ms(k->iteration.max_ns), ms(k->plan.mean_ns),
                rp_off(k->iteration.mean_ns, k->plan.mean_ns));
    }
    fprintf(out,
            "The plan's spread is %.2f .. %.2f (p10 .. p90 of composed iterations).\n",
            ms(r->plan.p10_ns), ms(r->plan.p90_ns));
}

static void groups(const struct report *r, FILE *out)
{
    fprintf(out, "\nCommunication in ms of one rank's iteration: time measured, plan "
                 "composed,\ntransfer modelled by the wire, waiting the rest (of that, "
                 "measured: for virtual)\n"
                 "group            ranks  calls     time     plan  waiting (virtual) "
                 "transfer\n");
    for (size_t i = 0; i < r->group_count; i++) {
        const struct rp_group *g = &r->groups[i];
        char calls[RP_CALLS_TEXT];

        fprintf(out, "%-15.15s %6u %6s %8.2f %8.2f %8.2f %9.2f %8.2f\n", g->name,
                g->nranks, rp_calls_text(&g->calls, calls), ms(g->time_ns),
                ms(g->plan_ns), ms(g->waiting_ns), ms(g->virtual_ns),
                ms(g->transfer_ns));
    }
}

static void operations(const struct report *r, FILE *out)
{
    bool has_eager = false;

    fprintf(out,
            "\nOperations in ms, the longest first: mean, p10, p90 measured, plan "
            "composed\n"
            "group        operation      size  calls     mean      p10      p90     "
            "plan\n");
    for (size_t i = 0; i < r->op_count && i < OPS_SHOWN; i++) {
        const struct rp_op *op = &r->ops[i];
        char size[16], plan[16] = "-", calls[RP_CALLS_TEXT];

        has_eager |= op->is_eager;
        if (op->plan_count && !op->is_eager)
            (void)snprintf(plan, sizeof plan, "%.3f", ms(op->plan_ns / op->plan_count));
        fprintf(out, "%-12.12s %-9.9s %9s %6s %8.3f %8.3f %8.3f %8s\n", op->group,
                crystal_func_name(op->func), size_text(op->bytes, size),
                rp_calls_text(&op->calls, calls), ms(op->time.mean_ns),
                ms(op->time.p10_ns), ms(op->time.p90_ns), plan);
    }
    if (r->op_count > OPS_SHOWN)
        fprintf(out, "and %zu more in report.json\n", r->op_count - OPS_SHOWN);
    if (has_eager)
        fprintf(out, "A send holds its rank up only until its message is in staging "
                     "memory, so it\ncounts in no sum and has no plan.\n");
}

static void memory(const struct report *r, FILE *out)
{
    uint64_t most = 0, least = UINT64_MAX;
    char high[16], low[16];

    for (uint32_t i = 0; i < r->layout.sandbox_count; i++) {
        if (r->ranks[i].peak_bytes > most)
            most = r->ranks[i].peak_bytes;
        if (r->ranks[i].peak_bytes && r->ranks[i].peak_bytes < least)
            least = r->ranks[i].peak_bytes;
    }
    if (!most)
        fprintf(out, "\nPeak memory of a rank: unknown, plan left no record of it.\n");
    else
        fprintf(out, "\nPeak memory of a rank: %s .. %s (measured in plan).\n",
                size_text(least, low), size_text(most, high));
}

/* What software costs, as plan has found it. */
static void software(const struct report *r, FILE *out)
{
    const struct crystal_profile_head *h = crystal_profile_head(r->profile);
    uint32_t rep = crystal_graph_rep_of(r->graph, r->layout.sandbox[0]);
    const struct crystal_profile_op *ops = crystal_profile_ops(r->profile, rep);
    uint64_t sum_ns = 0;

    if (!crystal_profile_has_costs(h)) {
        fprintf(out,
                "software %.1f us a message, %.1f us an operation (%s, %u "
                "collectives).\n",
                (double)r->overhead_ns / 1e3, (double)h->op_overhead_ns / 1e3,
                crystal_origin_name((enum crystal_origin)h->overhead_origin),
                h->overhead_sample_count);
        return;
    }
    for (uint32_t i = 0; i < crystal_profile_rep(r->profile, rep)->instr_count; i++)
        sum_ns += ops[i].cost_ns;
    fprintf(out,
            "software measured for each operation, %.2f ms in an iteration of rank "
            "%u.\n",
            (double)sum_ns / 1e6, r->layout.sandbox[0]);
}

static void wire(const struct report *r, FILE *out)
{
    char rate[32], sent[32], taken[32], given[32];

    fprintf(out, "Wire: %s, %s; %s, latency %.1f us,\n", r->wire_kind, r->transport,
            rate_text(r->wire_bytes_per_s, rate), (double)r->wire_latency_ns / 1e3);
    software(r, out);
    if (r->layout.assistant_count)
        fprintf(out,
                "Virtual ranks' messages took what the network took; assistants have "
                "sent %s\n(%s of it made by sandbox nodes) and taken %s. Hops between "
                "virtual "
                "ranks are\nmodelled.\n",
                size_text(r->sent_bytes, sent), size_text(r->given_bytes, given),
                size_text(r->taken_bytes, taken));
}

/* Virtual ranks keep the plan's time, so a run is near a wrong plan, too. */
static void settled(const struct report *r, FILE *out)
{
    const struct crystal_profile_head *h = crystal_profile_head(r->profile);

    if (rp_has_settled(r))
        return;
    fprintf(out,
            "- Plan has not settled: the last two of its %u passes differ by %+.1f %%, "
            "more\n  than plan.tolerance. Virtual ranks keep its time, so this run may "
            "be near it\n  and yet off the real job. Plan again where each rank of the "
            "sandbox has\n  a CPU of its own and nothing else runs.\n",
            h->pass_count, h->pass_off_ppm / 1e4);
}

/* What ranks lose to each other that the target's, with a CPU each, do not lose. */
static void shared(const struct report *r, FILE *out)
{
    uint32_t ppm = crystal_profile_head(r->profile)->stretch_ppm;

    if (ppm)
        fprintf(out,
                "- Ranks share CPUs here and keep each other from them. The plan has "
                "that time:\n  they go on late behind each wait, which makes "
                "computation %.1f %% longer.\n",
                ppm / 1e4);
}

static void left(const struct report *r, FILE *out)
{
    for (uint32_t i = 0; i < r->layout.sandbox_count; i++) {
        const struct rp_rank *k = &r->ranks[i];

        if (!k->has_run)
            fprintf(out, "- Rank %u left no record of this run.\n", k->lrank);
        else if (!k->iteration.count)
            fprintf(out,
                    "- Rank %u: call %" PRIu64 " of %" PRIu64
                    " is none of its iterations', too early to time one.\n",
                    k->lrank, k->left_at, k->op_count);
        else if (k->left_at + k->each < k->op_count)
            fprintf(out,
                    "- Rank %u: from call %" PRIu64 " of %" PRIu64
                    " on it did something else than its iterations;\n  virtual ranks "
                    "answered at once there, and it is not counted.\n",
                    k->lrank, k->left_at, k->op_count);
    }
}

static void deviations(const struct report *r, FILE *out)
{
    char bytes[16];

    fprintf(out, "\nWhere this run differs from the real job:\n");
    settled(r, out);
    shared(r, out);
    if (r->standin_ops)
        fprintf(out,
                "- %" PRIu64 " operation%s (%s) met stand-ins of virtual ranks' data: "
                "reductions\n  the neutral element, gathers the sandbox's own block, "
                "messages a recorded or\n  zero payload. Times do not depend on it, "
                "losses do.\n",
                r->standin_ops, r->standin_ops == 1 ? "" : "s",
                size_text(r->standin_bytes, bytes));
    if (r->late_count)
        fprintf(
            out,
            "- %" PRIu64 " message%s came later than the timeline said, by %.3f ms at "
            "most:\n  this machine was too busy with its own ranks or with others.\n",
            r->late_count, r->late_count == 1 ? "" : "s", ms(r->late_max_ns));
    if (r->payload_late_count)
        fprintf(out,
                "- Recorded payload of %" PRIu64
                " operation%s was read from disk when it was needed,\n  not ahead.\n",
                r->payload_late_count, r->payload_late_count == 1 ? "" : "s");
    if (strcmp(r->timeline, "stuck") == 0)
        fprintf(out, "- Sandbox ranks waited for virtual ranks that never came; from "
                     "then on these\n  answered at once. Times behind that are not the "
                     "real job's.\n");
    if (strcmp(r->timeline, "setup") == 0)
        fprintf(out, "- The run ended before its iterations began; virtual ranks "
                     "answered at once.\n");
    if (r->modelled_reps)
        fprintf(out,
                "- %u of %u recorded ranks have no part in the sandbox; their "
                "computation times are\n  from the capture, where ranks shared the "
                "machine (modelled).\n",
                r->modelled_reps, crystal_graph_rep_count(r->graph));
    if (crystal_graph_is_measured(r->graph))
        fprintf(out,
                "- Algorithms, protocols and channels are what NCCL chose for the "
                "NICs and the GPU that\n  it was shown (nic, gpu in crystal.yaml).\n");
    else
        fprintf(out,
                "- Collectives run on NCCL's ring with the Simple protocol and one "
                "channel.\n");
    left(r, out);
}

void rp_print_text(const struct report *r, FILE *out)
{
    head(r, out);
    iterations(r, out);
    groups(r, out);
    operations(r, out);
    memory(r, out);
    wire(r, out);
    deviations(r, out);
}
