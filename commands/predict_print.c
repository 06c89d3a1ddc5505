/* A prediction as tables. See predict_view.h. */
#include "config.h"

#include "commands/predict_view.h"

#include "runtime/nccl_names.h"
#include "runtime/parallel.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* --- totals --- */

/* Of a list's ranks; a number that many long times do not overflow. */
struct sums {
    double total, compute, exposed, bubble, idle, comm;
    uint32_t count;
};

static void sums_add(struct sums *sums, const struct crystal_rank_stat *s)
{
    sums->total += (double)s->total_ns;
    sums->compute += (double)s->compute_ns;
    sums->exposed += (double)s->exposed_ns;
    sums->bubble += (double)s->bubble_ns;
    sums->idle += (double)s->idle_ns;
    sums->comm += (double)s->comm_ns;
    sums->count++;
}

static struct crystal_rank_stat sums_mean(const struct sums *sums)
{
    double count = sums->count ? sums->count : 1;

    return (struct crystal_rank_stat){.total_ns = (uint64_t)(sums->total / count),
                                      .compute_ns = (uint64_t)(sums->compute / count),
                                      .exposed_ns = (uint64_t)(sums->exposed / count),
                                      .bubble_ns = (uint64_t)(sums->bubble / count),
                                      .idle_ns = (uint64_t)(sums->idle / count),
                                      .comm_ns = (uint64_t)(sums->comm / count)};
}

struct stats {
    const struct crystal_prediction *pr;
    struct crystal_rank_stat *ranks;
};

static int stats_run(void *context, uint32_t first, uint32_t end)
{
    struct stats *s = context;
    struct crystal_walk walk = {0};
    int code = 0;

    for (uint32_t r = first; !code && r < end; r++)
        code = crystal_prediction_stat(s->pr, r, &walk, &s->ranks[r]);
    crystal_walk_fini(&walk);
    return code;
}

int crystal_predict_totals_init(struct crystal_predict_totals *t,
                                const struct crystal_prediction *pr, uint32_t threads,
                                struct crystal_error *err)
{
    const struct crystal_graph *g = pr->predict->graph;
    uint32_t n = crystal_graph_lrank_count(g), reps = crystal_graph_rep_count(g);
    struct sums *sums = calloc(reps, sizeof *sums);
    struct stats stats = {pr, NULL};
    int code = 0;

    t->ranks = calloc(n, sizeof *t->ranks);
    t->lists = calloc(reps, sizeof *t->lists);
    if (!sums || !t->ranks || !t->lists)
        code = -ENOMEM;
    stats.ranks = t->ranks;
    if (!code)
        code = crystal_parallel(threads, n, 16, stats_run, &stats);
    for (uint32_t r = 0; !code && r < n; r++)
        sums_add(&sums[crystal_graph_rep_of(g, r)], &t->ranks[r]);
    for (uint32_t i = 0; !code && i < reps; i++)
        t->lists[i] = sums_mean(&sums[i]);
    free(sums);
    return code ? crystal_error_set(err, ENOMEM, "predict: out of memory") : 0;
}

void crystal_predict_totals_fini(struct crystal_predict_totals *t)
{
    free(t->ranks);
    free(t->lists);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void print_row(FILE *out, const char *name, uint64_t *values, uint32_t n,
                      uint64_t whole_ns)
{
    uint64_t p99 = (uint64_t)n * 99 / 100, half = n / 2;
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)values[i];
    qsort(values, n, sizeof *values, by_value);
    fprintf(out, "  %-20s %10.3f %5.1f%% %10.3f %10.3f %10.3f %10.3f\n", name,
            sum / n / 1e6, 100.0 * sum / n / (double)whole_ns, (double)values[0] / 1e6,
            (double)values[half] / 1e6, (double)values[p99] / 1e6,
            (double)values[n - 1] / 1e6);
}

/* Ranks whose computation takes longest: those that others wait for. */
static void print_slowest(FILE *out, const struct crystal_predict_totals *t, uint32_t n)
{
    uint32_t top[5] = {0}, count = 0;

    for (uint32_t r = 0; r < n; r++) {
        uint32_t i = count < 5 ? count++ : 5;

        for (; i > 0 && t->ranks[r].compute_ns > t->ranks[top[i - 1]].compute_ns; i--)
            if (i < 5)
                top[i] = top[i - 1];
        if (i < 5)
            top[i] = r;
    }
    fprintf(out, "  longest computation: ");
    for (uint32_t i = 0; i < count; i++)
        fprintf(out, "%srank %u %.3f", i ? ", " : "", top[i],
                (double)t->ranks[top[i]].compute_ns / 1e6);
    fputs(" ms\n", out);
}

void crystal_predict_print_totals(FILE *out, const struct crystal_prediction *pr,
                                  const struct crystal_predict_totals *t)
{
    uint32_t n = crystal_graph_lrank_count(pr->predict->graph);
    uint64_t *values = malloc(n * sizeof *values);

    if (!values)
        return;
    fprintf(out,
            "\nwhere the time of %u ranks goes   mean ms         least        p50 "
            "       p99       most\n",
            n);
    for (uint32_t r = 0; r < n; r++)
        values[r] = t->ranks[r].total_ns;
    print_row(out, "iteration", values, n, pr->iteration_ns);
    for (uint32_t r = 0; r < n; r++)
        values[r] = t->ranks[r].compute_ns;
    print_row(out, "computation", values, n, pr->iteration_ns);
    for (uint32_t r = 0; r < n; r++)
        values[r] = t->ranks[r].exposed_ns;
    print_row(out, "exposed collectives", values, n, pr->iteration_ns);
    for (uint32_t r = 0; r < n; r++)
        values[r] = t->ranks[r].bubble_ns;
    print_row(out, "bubbles, messages", values, n, pr->iteration_ns);
    for (uint32_t r = 0; r < n; r++)
        values[r] = t->ranks[r].idle_ns;
    print_row(out, "nothing", values, n, pr->iteration_ns);
    for (uint32_t r = 0; r < n; r++)
        values[r] = t->ranks[r].comm_ns;
    print_row(out, "communication, all", values, n, pr->iteration_ns);
    print_slowest(out, t, n);
    free(values);
}

/* --- the path --- */

static const char *kind_name(uint8_t kind)
{
    static const char *names[] = {"host", "kernels", "collectives", "sends",
                                  "receives"};

    return kind < sizeof names / sizeof names[0] ? names[kind] : "?";
}

static const char *part_name(const struct crystal_prediction *pr,
                             const struct crystal_path_part *part)
{
    const struct crystal_graph *g = pr->predict->graph;
    uint32_t rep = crystal_graph_rep_of(g, part->lrank);
    const struct crystal_program *p = pr->predict->programs[rep];
    const char *label;
    uint64_t count;
    const struct crystal_op *ops = crystal_graph_ops(g, rep, &count);

    if (part->kind == CRYSTAL_WALK_HOST || part->instr >= p->instr_count)
        return "host";
    if (part->kind != CRYSTAL_WALK_KERNEL)
        return crystal_func_name(p->instrs[part->instr].func);
    label = crystal_graph_label(g, &ops[p->instrs[part->instr].record]);
    return label ? label : "kernel";
}

struct line {
    const char *name;
    uint8_t kind;
    uint64_t ns, count;
};

static int by_time(const void *a, const void *b)
{
    const struct line *x = a, *y = b;

    return (x->ns < y->ns) - (x->ns > y->ns);
}

static void print_lines(FILE *out, struct line *lines, size_t count, uint64_t whole_ns)
{
    qsort(lines, count, sizeof *lines, by_time);
    for (size_t i = 0; i < count && i < 12; i++)
        fprintf(out, "  %-20s %-11s %10.3f ms %5.1f%% %8" PRIu64 " times\n",
                lines[i].name, kind_name(lines[i].kind), (double)lines[i].ns / 1e6,
                100.0 * (double)lines[i].ns / (double)whole_ns, lines[i].count);
}

/* Ranks on the path. */
static uint32_t rank_count(const struct crystal_prediction *pr,
                           const struct crystal_path *path)
{
    uint32_t n = crystal_graph_lrank_count(pr->predict->graph), count = 0;
    uint8_t *seen = calloc(n, 1);

    for (size_t i = 0; seen && i < path->count; i++) {
        count += !seen[path->parts[i].lrank];
        seen[path->parts[i].lrank] = 1;
    }
    free(seen);
    return count;
}

void crystal_predict_print_path(FILE *out, const struct crystal_prediction *pr,
                                const struct crystal_path *path)
{
    struct line kinds[5] = {{0}}, lines[128] = {{0}};
    size_t count = 0;

    for (size_t i = 0; i < path->count; i++) {
        const struct crystal_path_part *part = &path->parts[i];
        const char *name = part_name(pr, part);
        uint64_t ns = part->to_ns - part->from_ns;
        size_t k = 0;

        kinds[part->kind].ns += ns;
        kinds[part->kind].count++;
        while (k < count &&
               (lines[k].kind != part->kind || strcmp(lines[k].name, name) != 0))
            k++;
        if (k == count && count < sizeof lines / sizeof lines[0])
            lines[count++] = (struct line){name, part->kind, 0, 0};
        if (k < count) {
            lines[k].ns += ns;
            lines[k].count++;
        }
    }
    fprintf(out, "\ncritical path: %zu parts on %u ranks\n", path->count,
            rank_count(pr, path));
    for (uint8_t i = 0; i < 5; i++)
        if (kinds[i].count)
            fprintf(out, "  %-20s %-11s %10.3f ms %5.1f%% %8" PRIu64 " times\n", "",
                    kind_name(i), (double)kinds[i].ns / 1e6,
                    100.0 * (double)kinds[i].ns / (double)pr->iteration_ns,
                    kinds[i].count);
    fputs("  of these:\n", out);
    print_lines(out, lines, count, pr->iteration_ns);
}
