/* The critical path as a drawing, of characters or SVG. See predict_view.h. */
#include "config.h"

#include "commands/predict_view.h"

#include "runtime/axis.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define KINDS 5

uint32_t crystal_predict_row_count(const struct crystal_prediction *pr)
{
    uint32_t reps = pr->predict->rep_count;

    return reps < CRYSTAL_PREDICT_ROWS_MAX ? reps : CRYSTAL_PREDICT_ROWS_MAX;
}

static uint32_t row_of_list(const struct crystal_prediction *pr, uint32_t rep)
{
    return (uint32_t)((uint64_t)rep * crystal_predict_row_count(pr) /
                      pr->predict->rep_count);
}

uint32_t crystal_predict_row_of(const struct crystal_prediction *pr, uint32_t lrank)
{
    return row_of_list(pr, crystal_graph_rep_of(pr->predict->graph, lrank));
}

int8_t *crystal_predict_grid(const struct crystal_prediction *pr,
                             const struct crystal_path *path, uint32_t column_count)
{
    uint32_t cells = crystal_predict_row_count(pr) * column_count;
    uint64_t *times = calloc((size_t)cells * KINDS, sizeof *times);
    int8_t *grid = malloc(cells + 1);
    uint64_t width_ns = pr->iteration_ns / column_count + 1;

    for (size_t i = 0; times && grid && i < path->count; i++) {
        const struct crystal_path_part *part = &path->parts[i];
        uint32_t row = crystal_predict_row_of(pr, part->lrank);

        for (uint64_t at = part->from_ns; at < part->to_ns;) {
            uint64_t column = at / width_ns, next = (column + 1) * width_ns;

            next = next < part->to_ns ? next : part->to_ns;
            times[(row * column_count + column) * KINDS + part->kind] += next - at;
            at = next;
        }
    }
    for (uint32_t i = 0; times && grid && i < cells; i++) {
        uint64_t most = 0;

        grid[i] = -1;
        for (int8_t k = 0; k < KINDS; k++)
            if (times[(size_t)i * KINDS + (size_t)k] > most) {
                most = times[(size_t)i * KINDS + (size_t)k];
                grid[i] = k;
            }
    }
    if (!times) {
        free(grid);
        grid = NULL;
    }
    free(times);
    return grid;
}

/* Who is in a row: "rank 3", "ranks 512-1023", or, where others are between them,
 * "rank 3, +31". */
struct row_name {
    uint32_t first, last, count;
    char text[32];
};

/* One for each row; caller frees. NULL: out of memory. */
static struct row_name *row_names(const struct crystal_prediction *pr)
{
    const uint32_t rows = crystal_predict_row_count(pr);
    const uint32_t lranks = crystal_graph_lrank_count(pr->predict->graph);
    struct row_name *names = calloc(rows ? rows : 1, sizeof *names);

    for (uint32_t l = 0; names && l < lranks; l++) {
        struct row_name *n = &names[crystal_predict_row_of(pr, l)];

        if (!n->count++)
            n->first = l;
        n->last = l;
    }
    for (uint32_t row = 0; names && row < rows; row++) {
        struct row_name *n = &names[row];

        if (n->count == 1)
            (void)snprintf(n->text, sizeof n->text, "rank %u", n->first);
        else if (n->last - n->first + 1 == n->count)
            (void)snprintf(n->text, sizeof n->text, "ranks %u-%u", n->first, n->last);
        else
            (void)snprintf(n->text, sizeof n->text, "rank %u, +%u", n->first,
                           n->count - 1);
    }
    return names;
}

void crystal_predict_draw_text(FILE *out, const struct crystal_prediction *pr,
                               const struct crystal_path *path)
{
    static const char signs[KINDS] = {'.', '#', '=', '>', '<'};
    const uint32_t columns = 72;
    int8_t *grid = crystal_predict_grid(pr, path, columns);
    struct row_name *names = row_names(pr);

    if (!grid || !names) {
        free(grid);
        free(names);
        return;
    }
    fprintf(out,
            "\n  the path over the ranks, from 0 to %.3f ms: # kernels, = "
            "collectives, > sends, < receives, . host\n",
            (double)pr->iteration_ns / 1e6);
    for (uint32_t row = 0; row < crystal_predict_row_count(pr); row++) {
        fprintf(out, "  %-18s|", names[row].text);
        for (uint32_t i = 0; i < columns; i++) {
            int8_t kind = grid[row * columns + i];

            putc(kind < 0 ? ' ' : signs[kind], out);
        }
        fputs("|\n", out);
    }
    free(grid);
    free(names);
}

/* --- SVG --- */

#define LEFT   130
#define WIDTH  1000
#define HEIGHT 16 /* of a row */

static const struct {
    const char *name, *colour;
} looks[KINDS] = {{"host", "#9aa0a6"},
                  {"kernels", "#3b7dd8"},
                  {"collectives", "#e0833a"},
                  {"sends", "#8e5bb5"},
                  {"receives, bubbles", "#c94f4f"}};

static void legend(FILE *out, uint32_t y)
{
    uint32_t x = LEFT;

    for (int i = 0; i < KINDS; i++) {
        fprintf(out,
                "<rect x='%u' y='%u' width='10' height='10' fill='%s'/>"
                "<text x='%u' y='%u'>%s</text>\n",
                x, y, looks[i].colour, x + 14, y + 9, looks[i].name);
        x += 40 + 8 * (uint32_t)strlen(looks[i].name);
    }
}

static void axis(FILE *out, const struct crystal_prediction *pr, uint32_t top,
                 uint32_t bottom)
{
    const double span_ms = (double)pr->iteration_ns / 1e6;
    const struct crystal_axis ticks = crystal_axis_of(span_ms > 0 ? span_ms : 1, 10);

    for (uint32_t i = 0; i <= ticks.count; i++) {
        double at_ms = i * ticks.step, x = LEFT + at_ms / span_ms * WIDTH;

        fprintf(out,
                "<line x1='%.1f' y1='%u' x2='%.1f' y2='%u' stroke='#ddd'/>"
                "<text x='%.1f' y='%u' text-anchor='middle'>%.*f</text>\n",
                x, top, x, bottom, x, bottom + 13, ticks.decimal_places, at_ms);
    }
    fprintf(out, "<text x='%d' y='%u'>ms</text>\n", LEFT + WIDTH + 24, bottom + 13);
}

static void row_name_put(FILE *out, const struct row_name *name, uint32_t y)
{
    fprintf(out, "<text x='%d' y='%u' text-anchor='end'>%s</text>\n", LEFT - 6, y + 12,
            name->text);
}

static void path_rows(FILE *out, const struct crystal_prediction *pr,
                      const struct crystal_path *path, const struct row_name *names,
                      uint32_t top)
{
    const uint32_t columns = 2 * WIDTH;
    int8_t *grid = crystal_predict_grid(pr, path, columns);

    for (uint32_t row = 0; grid && row < crystal_predict_row_count(pr); row++) {
        uint32_t y = top + row * HEIGHT;

        row_name_put(out, &names[row], y);
        for (uint32_t i = 0; i < columns;) {
            int8_t kind = grid[row * columns + i];
            uint32_t end = i + 1;

            while (end < columns && grid[row * columns + end] == kind)
                end++;
            if (kind >= 0)
                fprintf(out,
                        "<rect x='%.1f' y='%u' width='%.1f' height='%d' fill='%s'/>\n",
                        LEFT + i / 2.0, y + 1, (end - i) / 2.0, HEIGHT - 2,
                        looks[kind].colour);
            i = end;
        }
    }
    free(grid);
}

static void bars(FILE *out, const struct crystal_prediction *pr,
                 const struct crystal_predict_totals *t, const struct row_name *names,
                 uint32_t top)
{
    static const int kinds[] = {1, 2, 4};

    for (uint32_t row = 0; row < crystal_predict_row_count(pr); row++) {
        uint32_t y = top + row * HEIGHT;
        double ns[3] = {0, 0, 0}, x = LEFT;

        for (uint32_t l = names[row].first; l <= names[row].last; l++)
            if (crystal_predict_row_of(pr, l) == row) {
                ns[0] += (double)t->ranks[l].compute_ns;
                ns[1] += (double)t->ranks[l].exposed_ns;
                ns[2] += (double)t->ranks[l].bubble_ns;
            }
        row_name_put(out, &names[row], y);
        for (int i = 0; i < 3; i++) {
            double width = ns[i] / names[row].count * WIDTH / (double)pr->iteration_ns;

            fprintf(out, "<rect x='%.1f' y='%u' width='%.1f' height='%d' fill='%s'/>\n",
                    x, y + 1, width, HEIGHT - 2, looks[kinds[i]].colour);
            x += width;
        }
    }
}

void crystal_predict_draw_svg(FILE *out, const struct crystal_prediction *pr,
                              const struct crystal_path *path,
                              const struct crystal_predict_totals *t, const char *what)
{
    uint32_t rows = crystal_predict_row_count(pr) * HEIGHT, down = what[0] ? 16 : 0;
    uint32_t first = 96 + down, second = rows + 178 + down;
    struct row_name *names = row_names(pr);

    if (!names)
        return;
    fprintf(
        out,
        "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%u' "
        "font-family='sans-serif' font-size='11'>\n"
        "<rect width='100%%' height='100%%' fill='white'/>\n"
        "<text x='%d' y='20' font-size='14'>Critical path of an iteration of %u "
        "ranks: %.3f ms, durations %s</text>\n"
        "<text x='%d' y='38'>Read from left to right: at each time, the one operation "
        "that everything behind it on the path waited for. The iteration is shorter "
        "only if something here is.</text>\n"
        "<text x='%d' y='54'>A row is all ranks that do the same operations "
        "(a pipeline stage, for one); the path goes through one rank of it at a "
        "time.</text>\n",
        LEFT + WIDTH + 60, second + rows + 50, LEFT,
        crystal_graph_lrank_count(pr->predict->graph), (double)pr->iteration_ns / 1e6,
        crystal_origin_name(pr->predict->origin), LEFT, LEFT);
    if (down)
        fprintf(out, "<text x='%d' y='70'>what if: %s</text>\n", LEFT, what);
    legend(out, 66 + down);
    axis(out, pr, first, first + rows);
    path_rows(out, pr, path, names, first);
    fprintf(out,
            "<text x='%d' y='%u' font-size='14'>How the ranks of each row spend the "
            "iteration, in the mean</text>\n"
            "<text x='%d' y='%u'>Sums, not a course of time: computation, collectives "
            "that no computation hides, waiting for messages; white: nothing</text>\n",
            LEFT, second - 26, LEFT, second - 8);
    axis(out, pr, second, second + rows);
    bars(out, pr, t, names, second);
    fputs("</svg>\n", out);
    free(names);
}
