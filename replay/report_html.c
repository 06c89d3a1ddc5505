/* report.html: the report as one page that needs nothing else: the summary, a drawing
 * of one iteration of all sandbox ranks, and the tables. */
#include "config.h"

#include "replay/report_internal.h"

#include "runtime/axis.h"
#include "runtime/nccl_names.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH  1180.0 /* of the drawing, in pixels; names of ranks stand left of it */
#define LEFT   60.0
#define ROW    22.0
#define COLORS 8
#define DRAWN  20000U /* rectangles at most */

static const char style[] =
    "body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1280px;"
    "color:#1b1b1b;background:#fff}"
    "h1{font-size:1.4em}h2{font-size:1.1em;margin-top:1.8em}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right;"
    "border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}"
    "svg text{font:11px system-ui,sans-serif;fill:#333}"
    ".c0{fill:#3b6fb6}.c1{fill:#d1702a}.c2{fill:#3d8f5c}.c3{fill:#9a4f9e}"
    ".c4{fill:#b23a48}.c5{fill:#7a7a2a}.c6{fill:#2a8a8f}.c7{fill:#8a5a3c}"
    ".run{fill:#e4e9ef}.wait{fill:#fff;fill-opacity:.55}"
    ".key{display:inline-block;width:.9em;height:.9em;margin:0 .3em 0 1em;"
    "vertical-align:-.1em}"
    "@media(prefers-color-scheme:dark){body{background:#16181c;color:#ddd}"
    "td,th{border-color:#333}svg text{fill:#bbb}.run{fill:#2a2f37}"
    ".wait{fill:#16181c;fill-opacity:.55}}";

static void html(FILE *out, const char *text)
{
    for (const char *c = text; *c; c++)
        switch (*c) {
        case '<':
            fprintf(out, "&lt;");
            break;
        case '>':
            fprintf(out, "&gt;");
            break;
        case '&':
            fprintf(out, "&amp;");
            break;
        case '"':
            fprintf(out, "&quot;");
            break;
        default:
            putc(*c, out);
        }
}

static double ms(uint64_t ns)
{
    return (double)ns / 1e6;
}

/* --- the drawing --- */

/* The group's place in r->groups, which are sorted by time: its color. */
static unsigned color_of(const struct report *r, const char *name)
{
    for (size_t i = 0; i < r->group_count; i++)
        if (strcmp(r->groups[i].name, name) == 0)
            return (unsigned)(i % COLORS);
    return COLORS - 1;
}

/* The iteration of which the first sandbox rank's length is nearest to the mean. */
static uint32_t typical(const struct report *r)
{
    uint32_t best = 0;
    double least = INFINITY;

    for (size_t i = 0; i < r->events.mark_count; i++) {
        const struct rp_mark *m = &r->events.marks[i];
        double off =
            fabs((double)(m->end_ns - m->begin_ns) - (double)r->iteration.mean_ns);

        if (m->rank == 0 && off < least && (m->iteration > 0 || best == 0)) {
            least = off;
            best = m->iteration;
        }
    }
    return best;
}

struct scale {
    uint64_t begin_ns;
    double per_ns;
};

static double x_of(const struct scale *s, uint64_t ns)
{
    return LEFT + (ns > s->begin_ns ? (double)(ns - s->begin_ns) * s->per_ns : 0);
}

static void draw_ranks(const struct report *r, FILE *out, const struct scale *s,
                       uint32_t iteration)
{
    for (size_t i = 0; i < r->events.mark_count; i++) {
        const struct rp_mark *m = &r->events.marks[i];
        double y = ROW * m->rank + 18;

        if (m->iteration != iteration)
            continue;
        fprintf(
            out,
            "<text x=\"0\" y=\"%.0f\">rank %u</text>"
            "<rect class=\"run\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" "
            "height=\"18\"><title>iteration %u of rank %u: %.3f ms</title></rect>\n",
            y + 13, r->layout.sandbox[m->rank], x_of(s, m->begin_ns), y,
            x_of(s, m->end_ns) - x_of(s, m->begin_ns), iteration,
            r->layout.sandbox[m->rank], ms(m->end_ns - m->begin_ns));
    }
}

/* Collectives fill a rank's row; sends are its upper, receives its lower half. */
static void draw_call(const struct report *r, FILE *out, const struct scale *s,
                      const struct rp_event *e)
{
    double y = ROW * e->rank + 18 + (e->kind == CRYSTAL_OP_RECV ? 9 : 0);
    double height = e->kind == CRYSTAL_OP_COLL ? 18 : 9;
    double x = x_of(s, e->arrive_ns), width = x_of(s, e->end_ns) - x;

    fprintf(out,
            "<rect class=\"c%u\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%.0f\">"
            "<title>rank %u %s, ",
            color_of(r, r->names[e->comm]), x, y, fmax(width, .4), height,
            r->layout.sandbox[e->rank], crystal_func_name(e->func));
    html(out, r->names[e->comm]);
    if (e->peer != UINT32_MAX)
        fprintf(out, ", %s rank %u", e->kind == CRYSTAL_OP_SEND ? "to" : "from",
                e->peer);
    fprintf(out, ": %" PRIu64 " bytes, %.3f ms measured", e->bytes,
            ms(e->end_ns - e->arrive_ns));
    if (e->plan_ns)
        fprintf(out, ", %.3f ms planned", ms(e->plan_ns));
    if (e->virtual_ns)
        fprintf(out, ", %.3f ms of them for virtual ranks", ms(e->virtual_ns));
    fprintf(out, "</title></rect>\n");
}

static void draw(const struct report *r, FILE *out)
{
    uint32_t iteration = typical(r), drawn = 0;
    uint64_t begin_ns = UINT64_MAX, end_ns = 0;
    struct crystal_axis ticks;
    struct scale s;

    for (size_t i = 0; i < r->events.mark_count; i++) {
        const struct rp_mark *m = &r->events.marks[i];

        if (m->iteration != iteration)
            continue;
        begin_ns = m->begin_ns < begin_ns ? m->begin_ns : begin_ns;
        end_ns = m->end_ns > end_ns ? m->end_ns : end_ns;
    }
    if (end_ns <= begin_ns)
        return;
    s.begin_ns = begin_ns;
    s.per_ns = (WIDTH - LEFT) / (double)(end_ns - begin_ns);
    fprintf(out, "<h2>Iteration %u</h2><p>", iteration);
    fprintf(out, "<span class=\"key\" style=\"background:#c9d1da\"></span>computation");
    for (size_t i = 0; i < r->group_count; i++) {
        fprintf(out,
                "<svg class=\"key\" viewBox=\"0 0 1 1\"><rect class=\"c%zu\" "
                "width=\"1\" height=\"1\"/></svg>",
                i % COLORS);
        html(out, r->groups[i].name);
    }
    fprintf(out, "; sends are in the upper, receives in the lower half of a row</p>\n");
    fprintf(out, "<svg width=\"%.0f\" height=\"%.0f\">\n", WIDTH + 20,
            ROW * r->layout.sandbox_count + 30);
    ticks = crystal_axis_of(ms(end_ns - begin_ns), 10);
    for (unsigned i = 0; i <= ticks.count; i++)
        fprintf(out, "<text x=\"%.1f\" y=\"10\">%.*f ms</text>",
                fmin(LEFT + i * ticks.step * 1e6 * s.per_ns, WIDTH - 30),
                ticks.decimal_places, i * ticks.step);
    putc('\n', out);
    draw_ranks(r, out, &s, iteration);
    for (size_t i = 0; i < r->events.count && drawn < DRAWN; i++) {
        const struct rp_event *e = &r->events.list[i];

        if (e->iteration == iteration) {
            draw_call(r, out, &s, e);
            drawn++;
        }
    }
    fprintf(out, "</svg>\n");
}

/* --- tables --- */

static void ranks(const struct report *r, FILE *out)
{
    fprintf(out,
            "<h2>Iterations, in ms</h2><table><tr><th>rank</th><th>mean</th>"
            "<th>p10</th><th>p90</th><th>max</th><th>plan</th><th>off</th></tr>\n");
    for (uint32_t i = 0; i < r->layout.sandbox_count; i++) {
        const struct rp_rank *k = &r->ranks[i];

        fprintf(out,
                "<tr><td>%u</td><td>%.3f</td><td>%.3f</td><td>%.3f</td><td>%.3f</td>"
                "<td>%.3f</td><td>%+.1f %%</td></tr>\n",
                k->lrank, ms(k->iteration.mean_ns), ms(k->iteration.p10_ns),
                ms(k->iteration.p90_ns), ms(k->iteration.max_ns), ms(k->plan.mean_ns),
                rp_off(k->iteration.mean_ns, k->plan.mean_ns));
    }
    fprintf(out, "</table>\n");
}

static void groups(const struct report *r, FILE *out)
{
    fprintf(out,
            "<h2>Communication of one rank's iteration, in ms</h2><table><tr>"
            "<th>group</th><th>ranks</th><th>calls</th><th>time (measured)</th>"
            "<th>plan (composed)</th><th>waiting</th><th>for virtual (measured)</th>"
            "<th>transfer (modelled)</th></tr>\n");
    for (size_t i = 0; i < r->group_count; i++) {
        const struct rp_group *g = &r->groups[i];
        char calls[RP_CALLS_TEXT];

        fprintf(out, "<tr><td>");
        html(out, g->name);
        fprintf(out,
                "</td><td>%u</td><td>%s</td><td>%.3f</td><td>%.3f</td><td>%.3f</td>"
                "<td>%.3f</td><td>%.3f</td></tr>\n",
                g->nranks, rp_calls_text(&g->calls, calls), ms(g->time_ns),
                ms(g->plan_ns), ms(g->waiting_ns), ms(g->virtual_ns),
                ms(g->transfer_ns));
    }
    fprintf(out, "</table>\n");
}

static void operations(const struct report *r, FILE *out)
{
    fprintf(out, "<h2>Operations, in ms</h2><table><tr><th>group</th><th>operation</th>"
                 "<th>bytes</th><th>calls</th><th>mean</th><th>p10</th><th>p90</th>"
                 "<th>plan</th></tr>\n");
    for (size_t i = 0; i < r->op_count; i++) {
        const struct rp_op *op = &r->ops[i];
        char calls[RP_CALLS_TEXT];

        fprintf(out, "<tr><td>");
        html(out, op->group);
        fprintf(out,
                "</td><td>%s</td><td>%" PRIu64 "</td><td>%s</td><td>%.3f</td>"
                "<td>%.3f</td><td>%.3f</td>",
                crystal_func_name(op->func), op->bytes,
                rp_calls_text(&op->calls, calls), ms(op->time.mean_ns),
                ms(op->time.p10_ns), ms(op->time.p90_ns));
        if (op->plan_count && !op->is_eager)
            fprintf(out, "<td>%.3f</td></tr>\n", ms(op->plan_ns / op->plan_count));
        else
            fprintf(out, "<td>-</td></tr>\n");
    }
    fprintf(out, "</table>\n");
}

void rp_print_html(const struct report *r, FILE *out)
{
    fprintf(out, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
                 "<title>");
    html(out, r->layout.job_name);
    fprintf(out, "</title><style>%s</style></head><body>\n<h1>", style);
    html(out, r->layout.job_name);
    fprintf(out, ": %u ranks on %u</h1>\n<p>", r->layout.lrank_count,
            r->layout.sandbox_count);
    if (r->failure[0]) {
        fprintf(out, "The run failed: ");
        html(out, r->failure);
    } else if (r->iteration.count) {
        fprintf(out,
                "%.2f ms an iteration (measured, %.2f to %.2f from p10 to p90), "
                "%.1f %% %s plan (%.2f ms, composed). %s.",
                ms(r->iteration.mean_ns), ms(r->iteration.p10_ns),
                ms(r->iteration.p90_ns),
                fabs(rp_off(r->iteration.mean_ns, r->plan.mean_ns)),
                r->iteration.mean_ns >= r->plan.mean_ns ? "above" : "below",
                ms(r->plan.mean_ns), r->run);
    } else {
        fprintf(out, "The run was too short to time an iteration.");
    }
    if (!rp_has_settled(r))
        fprintf(out,
                " <b>The plan has not settled</b>: its last two passes differ by "
                "%+.1f %%.",
                crystal_profile_head(r->profile)->pass_off_ppm / 1e4);
    fprintf(out, " What a number is worth stands in report.txt; trace.json, for "
                 "ui.perfetto.dev, has every call.</p>\n");
    draw(r, out);
    ranks(r, out);
    groups(r, out);
    operations(r, out);
    fprintf(out, "</body></html>\n");
}
