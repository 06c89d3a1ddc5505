/* layout.yaml: writing it as YAML that a person reads, and reading it back. Every value
 * is checked as if somebody had edited the file.
 */
#include "config.h"

#include "runtime/layout.h"
#include "runtime/message.h"
#include "runtime/outfile.h"
#include "runtime/utf8.h"
#include "runtime/yaml_map.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Characters that YAML does not have in a text, or that a reader takes for line breaks
 * or a byte order mark (YAML 1.1, 4.1 and 4.2). */
static bool is_escaped(uint32_t c)
{
    return c < ' ' || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 ||
           c == 0xfeff || c == 0xfffe || c == 0xffff;
}

/* text is UTF-8; what is not becomes '?'. */
static void print_quoted(FILE *out, const char *text)
{
    size_t bytes;

    putc('"', out);
    for (uint32_t c; *text; text += bytes + !bytes) {
        bytes = crystal_utf8_next(text, &c);
        if (!bytes)
            putc('?', out);
        else if (c == '"' || c == '\\')
            fprintf(out, "\\%c", (int)c);
        else if (is_escaped(c))
            fprintf(out, c < 0x100 ? "\\x%02" PRIx32 : "\\u%04" PRIx32, c);
        else
            (void)fwrite(text, 1, bytes, out); /* checked when it is closed */
    }
    putc('"', out);
}

static void print_grid(FILE *out, const struct crystal_grid *grid)
{
    for (uint32_t i = 0; i < grid->count; i++)
        fprintf(out, "%s%s=%u", i ? "," : "", grid->dim[i].name, grid->dim[i].size);
}

static int print(FILE *out, const struct crystal_layout *l)
{
    char *sandbox = crystal_ranks_format(l->sandbox, l->sandbox_count);
    char *live = crystal_ranks_format(l->live, l->live_count);
    int code = sandbox && live ? 0 : -ENOMEM;

    if (!code) {
        fprintf(out, "# The layout of one emulated job; written by scrystal layout.\n");
        fprintf(out, "version: %u\njob_name: ", l->assistant_count ? 2U : 1U);
        print_quoted(out, l->job_name);
        fprintf(out, "\nlogical_ranks: %u\nranks_per_node: %u\nsandbox: \"%s\"\n",
                l->lrank_count, l->ranks_per_node, sandbox);
        if (l->grid.count) {
            fprintf(out, "parallel: \"");
            print_grid(out, &l->grid);
            fprintf(out, "\"\nep_inside_dp: %u\n", l->grid.ep_inside);
        }
        fprintf(out, "live_mode: %s\nlive: \"%s\"\niterations: %u\npayload: %s\n",
                crystal_live_name(l->live_mode), live, l->iterations,
                l->payload_all ? "all" : "control");
        if (l->iteration_range) {
            fprintf(out, "capture:\n  iteration_range: ");
            print_quoted(out, l->iteration_range);
            putc('\n', out);
        }
        fprintf(out, "wire:\n  bytes_per_s: %" PRIu64 "\n  latency_ns: %" PRIu64 "\n",
                l->wire_bytes_per_s, l->wire_latency_ns);
        if (l->assistant_count)
            fprintf(out, "  assistants: %u\n", l->assistant_count);
        fprintf(out, "plan:\n  passes: %u\n  tolerance_ppm: %u\n", l->plan_passes,
                l->plan_tolerance_ppm);
        crystal_target_print(&l->target, out, print_quoted);
        fprintf(out, "slurm_env: %s\n", crystal_slurm_view_names[l->slurm_view]);
        if (l->ports.first)
            fprintf(out, "ports:\n  first: %u\n  last: %u\n", l->ports.first,
                    l->ports.last);
        if (l->pinned_bytes_max)
            fprintf(out, "limits:\n  pinned_bytes: %" PRIu64 "\n", l->pinned_bytes_max);
        if (l->spill_dir) {
            fprintf(out, "spill_dir: ");
            print_quoted(out, l->spill_dir);
            putc('\n', out);
        }
        fprintf(out, "fingerprint: \"%016" PRIx64 "\"\n", l->fingerprint);
        crystal_stage_rules_print(l->stage, out, print_quoted);
        crystal_inject_rules_print(&l->inject, out, print_quoted);
        if (l->program && l->program[0]) {
            fprintf(out, "program:\n");
            for (char **arg = l->program; *arg; arg++) {
                fprintf(out, "  - ");
                print_quoted(out, *arg);
                putc('\n', out);
            }
        }
    }
    free(sandbox);
    free(live);
    return code;
}

int crystal_layout_write(const char *path, const struct crystal_layout *layout,
                         struct crystal_error *err)
{
    struct crystal_outfile f;
    int code = crystal_outfile_open(&f, path, CRYSTAL_OUTFILE_PRIVATE, err);

    if (code)
        return code;
    if (print(f.stream, layout))
        code = crystal_error_set(err, ENOMEM, "%s: out of memory", path);
    return crystal_outfile_close(&f, code, err);
}

struct reading {
    const char *path;
    const struct crystal_yaml_map *map;
    struct crystal_error *err;
};

static const char *text(struct reading *r, const char *key)
{
    const struct crystal_yaml_item *item = crystal_yaml_get(r->map, key);

    if (!item)
        (void)crystal_error_set(r->err, EINVAL,
                                "%s: '%s' is missing; run scrystal layout again",
                                r->path, key);
    return item ? item->value : NULL;
}

static int count(struct reading *r, const char *key, uint64_t max, int base,
                 uint64_t *ret)
{
    const char *value = text(r, key);
    char *end;

    if (!value)
        return -EINVAL;
    errno = 0;
    *ret = strtoull(value, &end, base);
    if (value[0] == '-' || value[0] == ' ' || end == value || *end || errno ||
        *ret > max)
        return crystal_error_set(r->err, EINVAL,
                                 "%s: %s: '%s' is no number from 0 to %" PRIu64,
                                 r->path, key, value, max);
    return 0;
}

/* The wire is real where there are assistants: version 2, so that who does not know
 * them does not take it for modelled. */
static int assistants(struct reading *r, uint64_t version, struct crystal_layout *l)
{
    uint64_t number;

    if (version < 2)
        return 0;
    if (count(r, "wire.assistants", CRYSTAL_NODES_MAX, 10, &number))
        return -EINVAL;
    l->assistant_count = (uint32_t)number;
    return 0;
}

/* Layouts of older versions have no plan section: one pass. */
static int plan(struct reading *r, struct crystal_layout *l)
{
    uint64_t passes = 1, tolerance_ppm = 0;

    if (crystal_yaml_get(r->map, "plan.passes") &&
        (count(r, "plan.passes", UINT32_MAX, 10, &passes) ||
         count(r, "plan.tolerance_ppm", UINT32_MAX, 10, &tolerance_ppm)))
        return -EINVAL;
    if (passes == 0)
        return crystal_error_set(r->err, EINVAL, "%s: plan.passes is 0", r->path);
    l->plan_passes = (uint32_t)passes;
    l->plan_tolerance_ppm = (uint32_t)tolerance_ppm;
    return 0;
}

static int ranks(struct reading *r, const char *key, uint32_t limit, uint32_t **ret,
                 uint32_t *ret_count)
{
    const char *value = text(r, key);
    int code =
        value ? crystal_ranks_parse(value, limit, 0, ret, ret_count, r->err) : -EINVAL;

    if (code && value)
        crystal_error_prefix(r->err, "%s: %s", r->path, key);
    return code;
}

static int grid(struct reading *r, struct crystal_layout *l, uint64_t n)
{
    uint64_t ep, product = 1;

    if (!crystal_yaml_get(r->map, "parallel"))
        return 0;
    if (crystal_grid_parse(text(r, "parallel"), &l->grid, r->err)) {
        crystal_error_prefix(r->err, "%s", r->path);
        return -EINVAL;
    }
    if (count(r, "ep_inside_dp", UINT32_MAX, 10, &ep))
        return -EINVAL;
    l->grid.ep_inside = (uint32_t)ep;
    for (uint32_t i = 0; i < l->grid.count && product <= n; i++)
        if (ep <= 1 || strcmp(l->grid.dim[i].name, "ep") != 0)
            product *= l->grid.dim[i].size;
    if (product != n)
        return crystal_error_set(r->err, EINVAL,
                                 "%s: parallel: the product is not logical_ranks; "
                                 "run scrystal layout again",
                                 r->path);
    return 0;
}

static int program(struct reading *r, struct crystal_layout *l)
{
    size_t arg_count = 0;

    for (size_t i = 0; i < r->map->item_count; i++)
        arg_count += strcmp(r->map->items[i].key, "program[]") == 0;
    l->program = calloc(arg_count + 1, sizeof *l->program);
    if (!l->program)
        return crystal_error_set(r->err, ENOMEM, "%s: out of memory", r->path);
    arg_count = 0;
    for (size_t i = 0; i < r->map->item_count; i++)
        if (strcmp(r->map->items[i].key, "program[]") == 0) {
            l->program[arg_count] = strdup(r->map->items[i].value);
            if (!l->program[arg_count++])
                return crystal_error_set(r->err, ENOMEM, "%s: out of memory", r->path);
        }
    return 0;
}

static int word(struct reading *r, const char *key, const char *zero, const char *one,
                int *ret)
{
    const char *value = text(r, key);

    if (!value)
        return -EINVAL;
    *ret = strcmp(value, one) == 0;
    if (!*ret && strcmp(value, zero) != 0)
        return crystal_error_set(r->err, EINVAL, "%s: %s: '%s' is neither %s nor %s",
                                 r->path, key, value, zero, one);
    return 0;
}

static int ports(struct reading *r, struct crystal_layout *l)
{
    uint64_t first, last;

    if (!crystal_yaml_get(r->map, "ports.first"))
        return 0;
    if (count(r, "ports.first", 65535, 10, &first) ||
        count(r, "ports.last", 65535, 10, &last))
        return -EINVAL;
    if (first == 0 || last < first)
        return crystal_error_set(r->err, EINVAL,
                                 "%s: ports: %" PRIu64 " to %" PRIu64 " is no range",
                                 r->path, first, last);
    l->ports.first = (uint16_t)first;
    l->ports.last = (uint16_t)last;
    return 0;
}

/* Memory and disk of the nodes. */
static int storage(struct reading *r, struct crystal_layout *l)
{
    const char *dir;

    if (crystal_yaml_get(r->map, "limits.pinned_bytes") &&
        count(r, "limits.pinned_bytes", UINT64_MAX, 10, &l->pinned_bytes_max))
        return -EINVAL;
    if (!crystal_yaml_get(r->map, "spill_dir"))
        return 0;
    dir = text(r, "spill_dir");
    if (dir[0] != '/')
        return crystal_error_set(
            r->err, EINVAL, "%s: spill_dir: '%s' is no absolute path", r->path, dir);
    l->spill_dir = strdup(dir);
    return l->spill_dir ? 0 : crystal_error_set(r->err, ENOMEM, "out of memory");
}

static int iteration_range(struct reading *r, struct crystal_layout *l)
{
    const struct crystal_yaml_item *item =
        crystal_yaml_get(r->map, "capture.iteration_range");

    if (!item || !item->value[0])
        return 0;
    l->iteration_range = strdup(item->value);
    return l->iteration_range ? 0 : crystal_error_set(r->err, ENOMEM, "out of memory");
}

/* None of these is in layouts of older versions. */
static int surroundings(struct reading *r, struct crystal_layout *l)
{
    if (ports(r, l) || storage(r, l) || iteration_range(r, l))
        return -EINVAL;
    if (crystal_yaml_get(r->map, "slurm_env") &&
        crystal_slurm_view_parse(text(r, "slurm_env"), &l->slurm_view))
        return crystal_error_set(r->err, EINVAL, "%s: slurm_env: '%s' is no word of it",
                                 r->path, text(r, "slurm_env"));
    for (size_t i = 0; i < r->map->item_count; i++) {
        const struct crystal_yaml_item *item = &r->map->items[i];
        int code = strcmp(item->key, "inject[]") == 0
                       ? crystal_inject_rules_add(&l->inject, item->value, r->err)
                       : crystal_stage_rules_set(l->stage, item->key, item->value);

        if (code && code != -ENOENT)
            return crystal_error_set(r->err, -code, "%s:%u:%u: %s: %s", r->path,
                                     item->line, item->column, item->key,
                                     strerror(-code));
    }
    return 0;
}

static int live_mode(struct reading *r, enum crystal_live *ret)
{
    const char *value = text(r, "live_mode");

    if (!value)
        return -EINVAL;
    for (*ret = CRYSTAL_LIVE_REPLICA; *ret <= CRYSTAL_LIVE_LIST; (*ret)++)
        if (strcmp(value, crystal_live_name(*ret)) == 0)
            return 0;
    return crystal_error_set(r->err, EINVAL,
                             "%s: live_mode: '%s' is none of replica, all, list",
                             r->path, value);
}

static int read_all(struct reading *r, struct crystal_layout *l)
{
    uint64_t n, g, k, fingerprint, version;
    const char *name;

    if (count(r, "version", 2, 10, &version) || assistants(r, version, l) ||
        count(r, "logical_ranks", UINT32_MAX, 10, &n) ||
        count(r, "ranks_per_node", n, 10, &g) ||
        count(r, "iterations", UINT32_MAX, 10, &k) ||
        count(r, "wire.bytes_per_s", UINT64_MAX, 10, &l->wire_bytes_per_s) ||
        count(r, "wire.latency_ns", UINT64_MAX, 10, &l->wire_latency_ns) ||
        count(r, "fingerprint", UINT64_MAX, 16, &fingerprint) || grid(r, l, n) ||
        ranks(r, "sandbox", (uint32_t)n, &l->sandbox, &l->sandbox_count) ||
        ranks(r, "live", (uint32_t)n, &l->live, &l->live_count) ||
        live_mode(r, &l->live_mode) ||
        word(r, "payload", "control", "all", &l->payload_all) || plan(r, l) ||
        crystal_target_read(r->map, r->path, &l->target, r->err) ||
        surroundings(r, l) || program(r, l))
        return -EINVAL;
    name = text(r, "job_name");
    if (!name)
        return -EINVAL;
    if (g == 0)
        return crystal_error_set(r->err, EINVAL, "%s: ranks_per_node is 0", r->path);
    crystal_utf8_copy(l->job_name, sizeof l->job_name, name);
    l->lrank_count = (uint32_t)n;
    l->ranks_per_node = (uint32_t)g;
    l->iterations = (uint32_t)k;
    l->fingerprint = fingerprint;
    return 0;
}

int crystal_layout_read(const char *path, struct crystal_layout *ret,
                        struct crystal_error *err)
{
    struct crystal_layout layout = {0};
    struct crystal_yaml_map map;
    struct reading r = {path, &map, err};
    int code = crystal_yaml_read(path, &map, err);

    if (code)
        return code;
    code = read_all(&r, &layout);
    crystal_yaml_fini(&map);
    if (code) {
        crystal_layout_fini(&layout);
        return code;
    }
    *ret = layout;
    return 0;
}
