/* The what-ifs of scrystal predict: how they are written, and in words. See
 * predict_what.h.
 */
#include "config.h"

#include "commands/predict_what.h"

#include "runtime/conf.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int number(const char *text, double least, double most, double *ret, char **end)
{
    errno = 0;
    *ret = strtod(text, end);
    return errno || *end == text || !(*ret >= least) || !(*ret <= most) ? -EINVAL : 0;
}

static int factor(const char *text, double most, uint32_t *ret_ppm)
{
    double value;
    char *end;

    if (number(text, 0, most, &value, &end) || *end)
        return -EINVAL;
    *ret_ppm = (uint32_t)lround(value * 1e6);
    return 0;
}

static int index_of(const char *text, uint32_t *ret, char **end)
{
    unsigned long value;

    errno = 0;
    value = strtoul(text, end, 10);
    if (errno || *end == text || *text < '0' || *text > '9' || value >= UINT32_MAX)
        return -EINVAL;
    *ret = (uint32_t)value;
    return 0;
}

static int slow_rank(struct crystal_what_if *w, const char *text)
{
    uint32_t lrank, ppm;
    char *end;

    if (w->slow_count == CRYSTAL_WHAT_IF_MAX || index_of(text, &lrank, &end) ||
        *end != '=' || factor(end + 1, 1000, &ppm))
        return -EINVAL;
    w->slow[w->slow_count].lrank = lrank;
    w->slow[w->slow_count++].ppm = ppm;
    return 0;
}

static int slow_link(struct crystal_what_if *w, const char *text)
{
    struct crystal_network_link link;
    char *end;

    if (w->link_count == CRYSTAL_WHAT_IF_MAX || index_of(text, &link.node_a, &end) ||
        *end != ':' || index_of(end + 1, &link.node_b, &end) || *end != '=' ||
        factor(end + 1, 1, &link.left_ppm) || !link.left_ppm)
        return -EINVAL;
    w->links[w->link_count++] = link;
    return 0;
}

static int dead_rank(struct crystal_what_if *w, const char *text)
{
    char *end;

    if (w->dead_count == CRYSTAL_WHAT_IF_MAX ||
        index_of(text, &w->dead[w->dead_count], &end) || *end)
        return -EINVAL;
    w->dead_count++;
    return 0;
}

static int jitter(struct crystal_what_if *w, const char *text)
{
    return factor(text, 1, &w->jitter_ppm);
}

static int seed(struct crystal_what_if *w, const char *text)
{
    char *end;

    if (*text < '0' || *text > '9') /* strtoull takes a sign */
        return -EINVAL;
    errno = 0;
    w->seed = strtoull(text, &end, 0);
    return errno || *end ? -EINVAL : 0;
}

static int scale_compute(struct crystal_what_if *w, const char *text)
{
    return factor(text, 1000, &w->compute_ppm);
}

static int bandwidth(struct crystal_what_if *w, const char *text)
{
    return crystal_bandwidth_parse(text, &w->bytes_per_s);
}

static int latency(struct crystal_what_if *w, const char *text)
{
    return crystal_duration_parse(text, &w->latency_ns);
}

static int node_bandwidth(struct crystal_what_if *w, const char *text)
{
    return crystal_bandwidth_parse(text, &w->node_bytes_per_s);
}

static int node_latency(struct crystal_what_if *w, const char *text)
{
    return crystal_duration_parse(text, &w->node_latency_ns);
}

static int algo(struct crystal_what_if *w, const char *text)
{
    char known[32];

    w->algos = crystal_transfer_algos(text);
    w->has_algos = 1;
    (void)snprintf(
        known, sizeof known, "%s%s%s", w->algos & CRYSTAL_TRANSFER_TREE ? "tree" : "",
        w->algos == (CRYSTAL_TRANSFER_TREE | CRYSTAL_TRANSFER_PAT) ? "," : "",
        w->algos & CRYSTAL_TRANSFER_PAT ? "pat" : "");
    return strcasecmp(text, known) == 0 || strcasecmp(text, "ring") == 0 ? 0 : -EINVAL;
}

static int queues(struct crystal_what_if *w, const char *text)
{
    w->one_queue = strcmp(text, "one") == 0;
    return w->one_queue || strcmp(text, "many") == 0 ? 0 : -EINVAL;
}

static int nics(struct crystal_what_if *w, const char *text)
{
    w->shared_nics = strcmp(text, "shared") == 0;
    return w->shared_nics || strcmp(text, "own") == 0 ? 0 : -EINVAL;
}

static const struct {
    const char *name;
    int (*set)(struct crystal_what_if *w, const char *text);
    int is_change;
    int adds; /* to what was given before, which it else replaces */
} whats[] = {
    {"jitter", jitter, 0, 0},
    {"seed", seed, 0, 0},
    {"slow-rank", slow_rank, 1, 1},
    {"slow-link", slow_link, 1, 1},
    {"dead-rank", dead_rank, 1, 1},
    {"scale-compute", scale_compute, 1, 0},
    {"bandwidth", bandwidth, 1, 0},
    {"latency", latency, 1, 0},
    {"node-bandwidth", node_bandwidth, 1, 0},
    {"node-latency", node_latency, 1, 0},
    {"algo", algo, 1, 0},
    {"queues", queues, 1, 0},
    {"nics", nics, 1, 0},
};

int predict_what_adds(const char *name)
{
    for (size_t i = 0; i < sizeof whats / sizeof whats[0]; i++)
        if (strcmp(whats[i].name, name) == 0)
            return whats[i].adds;
    return 0;
}

int predict_what_set(struct crystal_what_if *w, const char *name, const char *text,
                     int *ret_is_change, struct crystal_error *err)
{
    for (size_t i = 0; i < sizeof whats / sizeof whats[0]; i++) {
        if (strcmp(whats[i].name, name) != 0)
            continue;
        if (whats[i].set(w, text))
            return crystal_error_set(
                err, EINVAL, "--%s: bad value '%s'; see scrystal predict --help", name,
                text);
        *ret_is_change |= whats[i].is_change;
        return 0;
    }
    return crystal_error_set(err, EINVAL, "--sweep: there is no option '%s'", name);
}

/* Communicators with neighbours on both ends of the link. */
static uint32_t users_of(const struct crystal_graph *g,
                         const struct crystal_network_link *link,
                         uint32_t ranks_per_node)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < crystal_graph_comm_count(g); i++) {
        struct crystal_graph_comm c;
        uint32_t k = 0;

        crystal_graph_comm(g, i, &c);
        while (k < c.nranks &&
               !crystal_network_is_on(link, c.members[k] / ranks_per_node,
                                      c.members[k + 1 < c.nranks ? k + 1 : 0] /
                                          ranks_per_node))
            k++;
        count += c.nranks > 1 && k < c.nranks;
    }
    return count;
}

static void print_wire(FILE *out, const char *where, uint64_t bytes_per_s,
                       uint64_t latency_ns)
{
    if (bytes_per_s == 0)
        fprintf(out, "  what if: bytes cost nothing %s\n", where);
    else if (bytes_per_s != UINT64_MAX)
        fprintf(out, "  what if: %.6g GB/s %s\n", (double)bytes_per_s / 1e9, where);
    if (latency_ns != UINT64_MAX)
        fprintf(out, "  what if: a latency of %.6g us %s\n", (double)latency_ns / 1e3,
                where);
}

void predict_what_print(FILE *out, const struct crystal_predict *p,
                        const struct crystal_what_if *w)
{
    uint32_t per_node =
        p->network.ranks_per_node ? p->network.ranks_per_node : w->ranks_per_node;

    for (uint32_t i = 0; i < w->slow_count; i++)
        fprintf(out, "  what if: rank %u computes %.6g times as long\n",
                w->slow[i].lrank, w->slow[i].ppm / 1e6);
    for (uint32_t i = 0; i < w->dead_count; i++)
        fprintf(out, "  what if: rank %u is dead\n", w->dead[i]);
    for (uint32_t i = 0; i < w->link_count; i++)
        fprintf(out,
                "  what if: link %u:%u has %.6g of its bandwidth; %u communicators "
                "use it\n",
                w->links[i].node_a, w->links[i].node_b, w->links[i].left_ppm / 1e6,
                users_of(p->graph, &w->links[i], per_node));
    if (w->compute_ppm != 1000000)
        fprintf(out, "  what if: all computation takes %.6g times as long\n",
                w->compute_ppm / 1e6);
    if (w->shared_nics)
        fputs("  what if: messages and collectives of a rank share its NIC\n", out);
    if (w->one_queue)
        fputs("  what if: all streams of a rank share one hardware queue\n", out);
    if (w->algos & CRYSTAL_TRANSFER_TREE)
        fputs("  what if: all-reduce by tree\n", out);
    if (w->algos & CRYSTAL_TRANSFER_PAT)
        fputs(
            "  what if: all-gather and reduce-scatter by PAT, where every node has one "
            "member\n",
            out);
    print_wire(out, "between nodes", w->bytes_per_s, w->latency_ns);
    print_wire(out, "inside nodes", w->node_bytes_per_s, w->node_latency_ns);
}
