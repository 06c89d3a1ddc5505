/* Options to layout. See layout_make.h; the words are those of doc/architecture.md. */
#include "config.h"

#include "runtime/layout_make.h"

#include "runtime/layout_program.h"
#include "runtime/message.h"
#include "runtime/utf8.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_PER_NODE_DEFAULT 8
#define PASSES_MAX             100U
#define ITERATIONS_DEFAULT     3
#define ITERATIONS_MAX         1000000

static int positive(const char *option, const char *text, uint64_t max, uint32_t *ret,
                    struct crystal_error *err)
{
    uint64_t value = 0;
    const char *c = text;

    while (isdigit((unsigned char)*c) && value <= max)
        value = value * 10 + (uint64_t)(*c++ - '0');
    if (c == text || isdigit((unsigned char)*c) || *c || value == 0 || value > max)
        return crystal_error_set(err, EINVAL,
                                 "--crystal-%s: '%.64s' is no whole number from 1 to "
                                 "%" PRIu64,
                                 option, text, max);
    *ret = (uint32_t)value;
    return 0;
}

static int ranks_per_node(const struct crystal_layout_options *o,
                          struct crystal_layout *l, struct crystal_error *err)
{
    uint32_t n = l->lrank_count, g = RANKS_PER_NODE_DEFAULT, gpus = 0;

    if (o->gpus_per_node &&
        positive("gpus-per-node", o->gpus_per_node, UINT32_MAX, &gpus, err))
        return -EINVAL;
    if (gpus)
        g = gpus;
    if (o->ranks_per_node) {
        if (positive("ranks-per-node", o->ranks_per_node, n, &g, err))
            return -EINVAL;
        /* a target node is one node here: its ranks reach each other as there */
        if (gpus && g > gpus)
            return crystal_error_set(err, EINVAL,
                                     "--crystal-ranks-per-node: %u ranks of a target "
                                     "node need %u GPUs of one node, the partition's "
                                     "have %u; use a partition with larger nodes, or "
                                     "--crystal-ranks-per-node=%u",
                                     g, g, gpus, gpus);
    } else if (g > n) {
        g = n;
    }
    if (n % g)
        return crystal_error_set(
            err, EINVAL,
            "--crystal-logical-ranks: %u is no multiple of %u ranks "
            "per node; give --crystal-ranks-per-node",
            n, g);
    l->ranks_per_node = g;
    return 0;
}

static int grid(const struct crystal_layout_options *o, struct crystal_layout *l,
                struct crystal_error *err)
{
    uint64_t product = 1, without_ep = 1;
    uint32_t ep, dp;

    if (!o->parallel)
        return 0;
    if (crystal_grid_parse(o->parallel, &l->grid, err)) {
        crystal_error_prefix(err, "--crystal-parallel");
        return -EINVAL;
    }
    for (uint32_t i = 0; i < l->grid.count && product <= UINT32_MAX; i++) {
        product *= l->grid.dim[i].size;
        if (strcmp(l->grid.dim[i].name, "ep") != 0)
            without_ep *= l->grid.dim[i].size;
    }
    l->grid.ep_inside = 1;
    if (product == l->lrank_count)
        return 0;
    ep = crystal_grid_size(&l->grid, "ep");
    dp = crystal_grid_size(&l->grid, "dp");
    if (without_ep == l->lrank_count && ep > 1 && dp % ep == 0) {
        l->grid.ep_inside = ep;
        return 0;
    }
    return crystal_error_set(err, EINVAL,
                             "--crystal-parallel: the product of '%.100s' is %" PRIu64
                             ", not the %u logical ranks",
                             o->parallel, product, l->lrank_count);
}

/* Rounds the list up to whole target nodes. */
static int round_up(struct crystal_layout *l, uint32_t *ranks, uint32_t count)
{
    uint32_t g = l->ranks_per_node, node_count = 0, last = UINT32_MAX;

    for (uint32_t i = 0; i < count; i++)
        if (ranks[i] / g != last) {
            last = ranks[i] / g;
            node_count++;
        }
    l->sandbox = malloc((size_t)node_count * g * sizeof *l->sandbox);
    if (!l->sandbox)
        return -ENOMEM;
    last = UINT32_MAX;
    for (uint32_t i = 0; i < count; i++)
        if (ranks[i] / g != last) {
            last = ranks[i] / g;
            for (uint32_t k = 0; k < g; k++)
                l->sandbox[l->sandbox_count++] = last * g + k;
        }
    return 0;
}

static int sandbox(const struct crystal_layout_options *o, struct crystal_layout *l,
                   char *notice, size_t notice_bytes, struct crystal_error *err)
{
    uint32_t *ranks = NULL, count = 0, zero = 0;
    int code;

    if (o->sandbox) {
        code = crystal_ranks_parse(o->sandbox, l->lrank_count, 0, &ranks, &count, err);
        if (code) {
            crystal_error_prefix(err, "--crystal-sandbox");
            return code;
        }
    }
    code = round_up(l, ranks ? ranks : &zero, ranks ? count : 1);
    if (code)
        code = crystal_error_set(err, ENOMEM, "--crystal-sandbox: out of memory");
    else if (ranks && l->sandbox_count != count) {
        char *text = crystal_ranks_format(l->sandbox, l->sandbox_count);

        (void)snprintf(notice, notice_bytes,
                       "sandbox %.100s rounded up to whole target nodes: ranks %.200s",
                       o->sandbox, text ? text : "?");
        free(text);
    }
    free(ranks);
    return code;
}

/* Ranks that are captured one after the other. */
static int live_list(const char *list, struct crystal_layout *l,
                     struct crystal_error *err)
{
    l->live_mode = CRYSTAL_LIVE_LIST;
    if (crystal_ranks_parse(list, l->lrank_count, 0, &l->live, &l->live_count, err)) {
        crystal_error_prefix(err, "--crystal-live");
        return -EINVAL;
    }
    for (uint32_t r = 0; r < l->lrank_count; r++) {
        uint32_t rep = crystal_layout_representative(l, r);
        int is_live = 0;

        for (uint32_t i = 0; i < l->live_count; i++)
            is_live |= l->live[i] == rep;
        if (!is_live)
            return crystal_error_set(err, EINVAL,
                                     "--crystal-live: '%.64s' leaves out rank %u, and "
                                     "nobody in it stands for it%s",
                                     list, r,
                                     l->grid.count ? "; name a whole replica"
                                                   : "; give --crystal-parallel");
    }
    return 0;
}

static int live(const struct crystal_layout_options *o, struct crystal_layout *l,
                struct crystal_error *err)
{
    const char *mode = o->live ? o->live : "replica";

    if (strcmp(mode, "all") == 0)
        l->live_mode = CRYSTAL_LIVE_ALL;
    else if (strcmp(mode, "replica") == 0)
        l->live_mode = CRYSTAL_LIVE_REPLICA;
    else if (isdigit((unsigned char)mode[0]))
        return live_list(mode, l, err);
    else
        return crystal_error_set(err, EINVAL,
                                 "--crystal-live: '%.64s' is neither replica nor all "
                                 "nor a list of ranks",
                                 mode);
    if (l->live_mode == CRYSTAL_LIVE_REPLICA && !l->grid.count) {
        if (l->lrank_count > l->sandbox_count)
            return crystal_error_set(err, EINVAL,
                                     "--crystal-live=replica needs the parallel grid; "
                                     "give --crystal-parallel or --crystal-live=all");
        l->live_mode = CRYSTAL_LIVE_ALL;
    }
    l->live = malloc((size_t)l->lrank_count * sizeof *l->live);
    if (!l->live)
        return crystal_error_set(err, ENOMEM, "layout: out of memory");
    for (uint32_t r = 0; r < l->lrank_count; r++)
        if (l->live_mode == CRYSTAL_LIVE_ALL ||
            crystal_layout_representative(l, r) == r)
            l->live[l->live_count++] = r;
    return 0;
}

static int words(const struct crystal_layout_options *o, struct crystal_layout *l,
                 struct crystal_error *err)
{
    l->payload_all = o->payload && strcmp(o->payload, "all") == 0;
    if (o->payload && !l->payload_all && strcmp(o->payload, "control") != 0)
        return crystal_error_set(
            err, EINVAL, "--crystal-payload: '%.64s' is neither control nor all",
            o->payload);
    if (o->slurm_env && crystal_slurm_view_parse(o->slurm_env, &l->slurm_view))
        return crystal_error_set(err, EINVAL,
                                 "--crystal-slurm-env: '%.64s' is none of logical, "
                                 "physical, node",
                                 o->slurm_env);
    l->iterations = ITERATIONS_DEFAULT;
    if (o->iterations)
        return positive("iterations", o->iterations, ITERATIONS_MAX, &l->iterations,
                        err);
    return 0;
}

/* How virtual ranks' messages arrive; the sandbox is known. */
static int wire(const struct crystal_layout_options *o, struct crystal_layout *l,
                struct crystal_error *err)
{
    const int is_real = o->wire && strcmp(o->wire, "real") == 0;

    if (o->wire && !is_real && strcmp(o->wire, "modelled") != 0)
        return crystal_error_set(err, EINVAL,
                                 "--crystal-wire: '%.64s' is neither modelled nor real",
                                 o->wire);
    if (o->assistants && !is_real)
        return crystal_error_set(err, EINVAL,
                                 "--crystal-assistants: the modelled wire needs none; "
                                 "add --crystal-wire=real");
    if (!is_real)
        return 0;
    if (l->sandbox_count == l->lrank_count)
        return crystal_error_set(
            err, EINVAL,
            "--crystal-wire=real: all ranks are in the sandbox, so "
            "no virtual rank has messages; leave it out");
    l->assistant_count = l->sandbox_count / l->ranks_per_node; /* one per node */
    return o->assistants ? positive("assistants", o->assistants, CRYSTAL_NODES_MAX / 2,
                                    &l->assistant_count, err)
                         : 0;
}

/* Dimensions may have any name, but dp and ep alone say who does the same as whom: dp
 * with a letter wrong is a job of which all ranks are captured. */
static void say_dimensions(const struct crystal_layout *l, char *notice,
                           size_t notice_bytes)
{
    static const char usual[] = " tp pp cp sp dp ep ";

    for (uint32_t i = 0; i < l->grid.count; i++) {
        char name[sizeof l->grid.dim[0].name + 2];
        size_t used = strlen(notice);

        (void)snprintf(name, sizeof name, " %s ", l->grid.dim[i].name);
        if (strstr(usual, name))
            continue;
        (void)snprintf(notice + used, notice_bytes - used,
                       "%sparallel: '%s' is none of tp, pp, cp, sp, dp, ep and only "
                       "names groups in the report; %u of %u ranks are captured",
                       used ? "; " : "", l->grid.dim[i].name, l->live_count,
                       l->lrank_count);
        return;
    }
}

/* Ranks of one NVLink domain reach each other past all NICs. */
static int nvlink(const struct crystal_layout *l, int64_t nodes,
                  struct crystal_error *err)
{
    if (nodes <= 1)
        return 0;
    return crystal_error_set(err, ENOTSUP,
                             "nvlink.nodes: virtual ranks are not yet reached by "
                             "NVLink, so no domain of %" PRIi64 " target nodes can be "
                             "cut by the sandbox; take it as one node with "
                             "--crystal-ranks-per-node=%" PRIu64
                             " where a real node has as many GPUs, or set it to 1, "
                             "which has NICs between the nodes",
                             nodes, (uint64_t)nodes * l->ranks_per_node);
}

int crystal_layout_make(const struct crystal_layout_options *options,
                        const struct crystal_conf *conf, struct crystal_layout *ret,
                        char *notice, size_t notice_bytes, struct crystal_error *err)
{
    struct crystal_layout l = {0};
    int code = -EINVAL;

    notice[0] = 0;
    if (!conf->enabled)
        return crystal_error_set(
            err, EPERM, "crystal is switched off on this cluster (enabled: no)");
    if (!options->logical_ranks)
        return crystal_error_set(err, EINVAL,
                                 "--crystal-logical-ranks is missing; it says how many "
                                 "ranks the job has");
    if (positive("logical-ranks", options->logical_ranks,
                 (uint64_t)conf->logical_ranks_max, &l.lrank_count, err) ||
        words(options, &l, err) || ranks_per_node(options, &l, err) ||
        nvlink(&l, conf->nvlink_nodes, err) || grid(options, &l, err) ||
        sandbox(options, &l, notice, notice_bytes, err) || wire(options, &l, err) ||
        live(options, &l, err) || crystal_layout_program_check(options->program, err))
        goto err_fini;
    say_dimensions(&l, notice, notice_bytes);
    if (conf->iteration_range[0])
        l.iteration_range = strdup(conf->iteration_range);
    if ((conf->iteration_range[0] && !l.iteration_range) ||
        crystal_layout_program_copy(&l, options->program) ||
        crystal_stage_rules_copy(conf->stage, l.stage) ||
        crystal_inject_rules_copy(&conf->inject, &l.inject) ||
        crystal_target_copy(&conf->target, &l.target)) {
        code = crystal_error_set(err, ENOMEM, "layout: out of memory");
        goto err_fini;
    }
    crystal_utf8_copy(l.job_name, sizeof l.job_name,
                      options->job_name ? options->job_name : "job");
    l.pinned_bytes_max = conf->pinned_bytes_max;
    l.ports.first = (uint16_t)conf->port_first; /* the table checks both */
    l.ports.last = (uint16_t)conf->port_last;
    l.wire_bytes_per_s = conf->wire_bytes_per_s;
    l.wire_latency_ns = conf->wire_latency_ns;
    l.plan_passes =
        conf->plan_passes < PASSES_MAX ? (uint32_t)conf->plan_passes : PASSES_MAX;
    l.plan_tolerance_ppm = conf->plan_tolerance_ppm < UINT32_MAX
                               ? (uint32_t)conf->plan_tolerance_ppm
                               : UINT32_MAX;
    l.fingerprint = crystal_layout_fingerprint(&l, options->parallel);
    *ret = l;
    return 0;

err_fini:
    crystal_layout_fini(&l);
    return code;
}
