/* Gathering a report and writing its forms. See report.h. */
#include "config.h"

#include "replay/report.h"

#include "replay/report_internal.h"
#include "runtime/outfile.h"
#include "runtime/trace.h"
#include "runtime/yaml_map.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

double rp_off(uint64_t measured_ns, uint64_t planned_ns)
{
    return planned_ns
               ? 100.0 * ((double)measured_ns - (double)planned_ns) / (double)planned_ns
               : 0;
}

bool rp_has_settled(const struct report *r)
{
    const struct crystal_profile_head *h = crystal_profile_head(r->profile);

    return h->pass_count < 2 ||
           (uint32_t)abs(h->pass_off_ppm) <= r->layout.plan_tolerance_ppm;
}

static int path_of(const struct report *r, char path[PATH_MAX], const char *name,
                   struct crystal_error *err)
{
    if (snprintf(path, PATH_MAX, "%s/%s", r->job_dir, name) >= PATH_MAX)
        return crystal_error_set(err, ENAMETOOLONG, "%s: path too long", r->job_dir);
    return 0;
}

/* --- parents --- */

static int open_parents(struct report *r, struct crystal_error *err)
{
    char path[PATH_MAX];
    uint32_t rep_count;
    int code = path_of(r, path, "layout.yaml", err);

    if (!code)
        code = crystal_layout_read(path, &r->layout, err);
    if (!code)
        code = path_of(r, path, "job.graph", err);
    if (code)
        return code;
    r->graph = crystal_graph_open(path, err);
    if (!r->graph)
        return -EINVAL;
    if (crystal_graph_fingerprint(r->graph) != r->layout.fingerprint ||
        crystal_graph_lrank_count(r->graph) != r->layout.lrank_count)
        return crystal_error_set(
            err, ESTALE,
            "%s: made for another program or layout; run 'scrystal "
            "capture' and 'scrystal graph' again",
            path);
    code = path_of(r, path, "job.profile", err);
    if (code)
        return code;
    r->profile = crystal_profile_open(path, err);
    if (!r->profile)
        return -EINVAL;
    rep_count = crystal_graph_rep_count(r->graph);
    r->programs = calloc(rep_count, sizeof(*r->programs));
    r->ranks = calloc(r->layout.sandbox_count, sizeof *r->ranks);
    if (!r->programs || !r->ranks)
        return crystal_error_set(err, ENOMEM, "out of memory");
    for (uint32_t i = 0; i < rep_count; i++) {
        r->programs[i] = crystal_program_create(r->graph, i, err);
        if (!r->programs[i])
            return -EINVAL;
    }
    code = crystal_profile_check(r->profile, r->graph, r->programs, err);
    for (uint32_t i = 0; !code && i < rep_count; i++)
        r->modelled_reps +=
            crystal_profile_rep(r->profile, i)->origin == CRYSTAL_ORIGIN_MODELLED;
    return code;
}

/* --- the run --- */

/* The run with the greatest number that has a run.yaml. */
static int find_run(struct report *r, struct crystal_error *err)
{
    char path[PATH_MAX];
    unsigned long best = 0;
    struct dirent *entry;
    DIR *dir;
    int code = path_of(r, path, "runs", err);

    if (code)
        return code;
    dir = opendir(path);
    while (dir && (entry = readdir(dir))) {
        char *end, yaml[PATH_MAX];
        unsigned long number = strtoul(entry->d_name, &end, 10);

        if (end == entry->d_name || *end || number <= best ||
            strlen(entry->d_name) > 20 ||
            snprintf(yaml, sizeof yaml, "%s/%s/run.yaml", path, entry->d_name) >=
                (int)sizeof yaml ||
            access(yaml, R_OK) < 0)
            continue;
        best = number;
        (void)snprintf(r->run, sizeof r->run, "runs/%.20s", entry->d_name);
    }
    if (dir)
        (void)closedir(dir); /* only read */
    if (!best)
        return crystal_error_set(
            err, ENOENT, "%s: no finished run; run 'scrystal emulate' first", path);
    return 0;
}

static uint64_t number(const struct crystal_yaml_map *map, const char *key)
{
    const struct crystal_yaml_item *item = crystal_yaml_get(map, key);

    return item ? strtoull(item->value, NULL, 10) : 0;
}

static void text(const struct crystal_yaml_map *map, const char *key, char *out,
                 size_t out_bytes)
{
    const struct crystal_yaml_item *item = crystal_yaml_get(map, key);

    (void)snprintf(out, out_bytes, "%s", item ? item->value : "");
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < ' ' || (unsigned char)*c == 127)
            *c = '?'; /* nothing from a file moves a terminal's cursor */
}

/* Written by rename, so what is not whole was cut by others. */
static int read_node(const char *path, struct crystal_yaml_map *map,
                     struct crystal_error *err)
{
    int code = crystal_yaml_read(path, map, err);

    if (code || crystal_yaml_get(map, "failure")) /* its last key */
        return code;
    crystal_yaml_fini(map);
    return crystal_error_set(err, EINVAL,
                             "%s: cut off; run 'scrystal emulate' again, or remove "
                             "this run",
                             path);
}

/* What one node's service has counted; the first failure is told. */
static void add_counters(struct report *r, const struct crystal_yaml_map *map)
{
    uint64_t late_max_ns = number(map, "counters.late_max_ns");

    r->standin_ops += number(map, "counters.standin_ops");
    r->standin_bytes += number(map, "counters.standin_bytes");
    r->late_count += number(map, "counters.late_count");
    if (late_max_ns > r->late_max_ns)
        r->late_max_ns = late_max_ns;
    r->payload_late_count += number(map, "counters.payload_late_count");
    if (!r->failure[0])
        text(map, "failure", r->failure, sizeof r->failure);
}

/* The nodes beside the first. */
static int read_other_nodes(struct report *r, uint64_t node_count,
                            struct crystal_error *err)
{
    for (uint64_t node = 1; node < node_count && node < r->layout.sandbox_count;
         node++) {
        struct crystal_yaml_map map;
        char path[PATH_MAX], name[64];
        int code;

        (void)snprintf(name, sizeof name, "%s/run.%u.yaml", r->run, (unsigned)node);
        code = path_of(r, path, name, err);
        if (!code)
            code = read_node(path, &map, err);
        if (code)
            return code;
        add_counters(r, &map);
        crystal_yaml_fini(&map);
    }
    return 0;
}

/* What the assistants behind them have moved; one that has left nothing does not count.
 */
static void read_assistants(struct report *r, uint64_t node_count)
{
    for (uint32_t i = 0; i < r->layout.assistant_count; i++) {
        struct crystal_yaml_map map;
        char path[PATH_MAX], name[64];

        (void)snprintf(name, sizeof name, "%s/assistant.%u.yaml", r->run,
                       (unsigned)node_count + i);
        if (path_of(r, path, name, NULL) || crystal_yaml_read(path, &map, NULL))
            continue;
        r->sent_bytes += number(&map, "sent_bytes");
        r->taken_bytes += number(&map, "taken_bytes");
        r->given_bytes += number(&map, "given_bytes");
        crystal_yaml_fini(&map);
    }
}

static int read_run(struct report *r, struct crystal_error *err)
{
    struct crystal_yaml_map map;
    char path[PATH_MAX], name[64];
    uint64_t node_count;
    int code;

    (void)snprintf(name, sizeof name, "%s/run.yaml", r->run);
    code = path_of(r, path, name, err);
    if (!code)
        code = read_node(path, &map, err);
    if (code)
        return code;
    add_counters(r, &map);
    node_count = number(&map, "nodes");
    r->wire_bytes_per_s = number(&map, "wire.bytes_per_s");
    r->wire_latency_ns = number(&map, "wire.latency_ns");
    r->overhead_ns = number(&map, "wire.message_overhead_ns");
    text(&map, "timeline", r->timeline, sizeof r->timeline);
    text(&map, "wire.kind", r->wire_kind, sizeof r->wire_kind);
    text(&map, "wire.transport", r->transport, sizeof r->transport);
    crystal_yaml_fini(&map);
    read_assistants(r, node_count);
    return read_other_nodes(r, node_count, err);
}

/* Peak memory from plan's traces: their END records. */
static void read_memory(struct report *r)
{
    for (uint32_t i = 0; i < r->layout.sandbox_count; i++) {
        struct crystal_trace trace;
        char path[PATH_MAX], name[32];

        (void)snprintf(name, sizeof name, "plan/%u.trace", r->layout.sandbox[i]);
        if (path_of(r, path, name, NULL) || crystal_trace_read(path, &trace, NULL))
            continue; /* shown as unknown */
        for (uint64_t k = trace.op_count; k-- > 0;)
            if (trace.ops[k].kind == CRYSTAL_OP_END) {
                r->ranks[i].peak_bytes = trace.ops[k].value;
                break;
            }
        crystal_trace_fini(&trace);
    }
}

/* --- writing --- */

static int write_file(const struct report *r, const char *name,
                      void (*print)(const struct report *r, FILE *out),
                      struct crystal_error *err)
{
    struct crystal_outfile f;
    char path[PATH_MAX];
    int code = path_of(r, path, name, err);

    if (!code)
        code = crystal_outfile_open(&f, path, CRYSTAL_OUTFILE_PRIVATE, err);
    if (code)
        return code;
    print(r, f.stream);
    return crystal_outfile_close(&f, 0, err);
}

static void report_fini(struct report *r)
{
    for (uint32_t i = 0; r->programs && i < crystal_graph_rep_count(r->graph); i++)
        crystal_program_destroy(r->programs[i]);
    free(r->programs);
    for (size_t i = 0; i < r->op_count; i++)
        free(r->ops[i].samples.ns);
    free(r->ops);
    free(r->groups);
    free(r->names);
    free(r->scratch);
    free(r->ranks);
    free(r->iterations.ns);
    rp_events_fini(&r->events);
    crystal_profile_close(r->profile);
    crystal_graph_close(r->graph);
    crystal_layout_fini(&r->layout);
}

int crystal_report_write(const char *job_dir, struct crystal_error *err)
{
    struct report r;
    int code;

    memset(&r, 0, sizeof r);
    r.job_dir = job_dir;
    code = open_parents(&r, err);
    if (!code)
        code = find_run(&r, err);
    if (!code)
        code = read_run(&r, err);
    if (!code)
        code = rp_gather(&r, err);
    if (!code) {
        read_memory(&r);
        code = write_file(&r, "report.txt", rp_print_text, err);
    }
    if (!code)
        code = write_file(&r, "report.json", rp_print_json, err);
    if (!code)
        code = write_file(&r, "report.html", rp_print_html, err);
    if (!code)
        code = write_file(&r, "trace.json", rp_print_trace, err);
    report_fini(&r);
    return code;
}

static int rank_fits(const struct rp_rank *rank, struct crystal_error *err)
{
    if (rank->left_at == rank->op_count || rank->left_at >= rank->before + rank->each)
        return 0;
    return crystal_error_set(err, ESTALE,
                             "rank %u: call %llu of %llu is another one than was "
                             "captured",
                             rank->lrank, (unsigned long long)rank->left_at + 1,
                             (unsigned long long)rank->op_count);
}

int crystal_report_fit(const char *job_dir, const char *run, struct crystal_error *err)
{
    struct report r;
    int code;

    memset(&r, 0, sizeof r);
    r.job_dir = job_dir;
    (void)snprintf(r.run, sizeof r.run, "%s", run); /* longer ones are not found */
    code = open_parents(&r, err);
    if (!code)
        code = read_run(&r, err);
    if (!code)
        code = rp_gather(&r, err);
    for (uint32_t i = 0; !code && i < r.layout.sandbox_count; i++)
        code = rank_fits(&r.ranks[i], err);
    report_fini(&r);
    return code;
}
