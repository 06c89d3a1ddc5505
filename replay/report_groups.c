/* What a report adds up calls by: groups of ranks, named by the dimensions of the grid,
 * and kinds of operation in them.
 */
#include "config.h"

#include "replay/report_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool differs(const struct crystal_graph_comm *c, uint32_t stride, uint32_t size)
{
    for (uint32_t k = 1; k < c->nranks; k++)
        if (c->members[k] / stride % size != c->members[0] / stride % size)
            return true;
    return false;
}

/* "tp", "tp+pp", "part of pp", "all ranks": the dimensions of the grid that a
 * communicator spans; "4 ranks" without a grid. */
static void group_name(const struct report *r, uint32_t comm, char *name,
                       size_t name_bytes)
{
    const struct crystal_grid *grid = &r->layout.grid;
    struct crystal_graph_comm c;
    uint64_t product = 1;
    uint32_t stride = 1;
    size_t used = 0;

    crystal_graph_comm(r->graph, comm, &c);
    name[0] = 0;
    for (uint32_t i = 0; i < grid->count && c.nranks < r->layout.lrank_count; i++) {
        uint32_t size = grid->dim[i].size;

        if (strcmp(grid->dim[i].name, "ep") == 0 && grid->ep_inside > 1)
            continue;
        if (size > 1 && differs(&c, stride, size)) {
            int more = snprintf(name + used, name_bytes - used, "%s%s", used ? "+" : "",
                                grid->dim[i].name);

            used += more > 0 && (size_t)more < name_bytes - used ? (size_t)more : 0;
            product *= size;
        }
        stride *= size;
    }
    if (c.nranks == r->layout.lrank_count)
        (void)snprintf(name, name_bytes, "all ranks");
    else if (!used)
        (void)snprintf(name, name_bytes, "%u ranks", c.nranks);
    else if (product != c.nranks && used + 9 < name_bytes) {
        memmove(name + 8, name, used + 1);
        memcpy(name, "part of ", 8);
    }
}

const char *rp_group_name(struct report *r, uint32_t comm)
{
    if (!r->names[comm][0])
        group_name(r, comm, r->names[comm], sizeof r->names[comm]);
    return r->names[comm];
}

struct rp_group *rp_group_of(struct report *r, const char *name, uint32_t nranks)
{
    struct rp_group *groups;

    for (size_t i = 0; i < r->group_count; i++)
        if (strcmp(r->groups[i].name, name) == 0 && r->groups[i].nranks == nranks)
            return &r->groups[i];
    groups = realloc(r->groups, (r->group_count + 1) * sizeof *groups);
    if (!groups)
        return NULL;
    r->groups = groups;
    memset(&groups[r->group_count], 0, sizeof *groups);
    (void)snprintf(groups[r->group_count].name, sizeof groups->name, "%s", name);
    groups[r->group_count].nranks = nranks;
    return &groups[r->group_count++];
}

struct rp_op *rp_op_of(struct report *r, const char *group, uint8_t func,
                       uint64_t bytes)
{
    struct rp_op *ops;

    for (size_t i = 0; i < r->op_count; i++)
        if (r->ops[i].func == func && r->ops[i].bytes == bytes &&
            strcmp(r->ops[i].group, group) == 0)
            return &r->ops[i];
    ops = realloc(r->ops, (r->op_count + 1) * sizeof *ops);
    if (!ops)
        return NULL;
    r->ops = ops;
    memset(&ops[r->op_count], 0, sizeof *ops);
    (void)snprintf(ops[r->op_count].group, sizeof ops->group, "%s", group);
    ops[r->op_count].func = func;
    ops[r->op_count].bytes = bytes;
    return &ops[r->op_count++];
}

static void calls_of_rank(struct rp_calls *calls, uint64_t iterations)
{
    uint64_t each = (calls->count - calls->count_before) / iterations;

    calls->count_before = calls->count;
    if (!each)
        return;
    calls->least = calls->rank_count && calls->least < each ? calls->least : each;
    calls->most = calls->most > each ? calls->most : each;
    calls->rank_count++;
}

void rp_groups_rank_done(struct report *r, uint64_t iterations)
{
    for (size_t i = 0; i < r->op_count; i++)
        calls_of_rank(&r->ops[i].calls, iterations);
    for (size_t i = 0; i < r->group_count; i++)
        calls_of_rank(&r->groups[i].calls, iterations);
}

static void calls_end(struct rp_calls *calls, uint32_t timed_ranks, uint64_t runs)
{
    if (calls->rank_count < timed_ranks)
        calls->least = 0;
    calls->mean = (double)calls->count / (double)runs;
}

const char *rp_calls_text(const struct rp_calls *calls, char *text)
{
    if (calls->least == calls->most)
        (void)snprintf(text, RP_CALLS_TEXT, "%" PRIu64, calls->most);
    else
        (void)snprintf(text, RP_CALLS_TEXT, "%" PRIu64 "-%" PRIu64, calls->least,
                       calls->most);
    return text;
}

static int by_time(const void *a, const void *b)
{
    const struct rp_op *x = a, *y = b;
    uint64_t s = x->time.mean_ns * x->time.count, t = y->time.mean_ns * y->time.count;

    if (s != t)
        return s > t ? -1 : 1;
    return strcmp(x->group, y->group);
}

static int groups_by_time(const void *a, const void *b)
{
    const struct rp_group *x = a, *y = b;

    if (x->time_ns != y->time_ns)
        return x->time_ns > y->time_ns ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Sums over ranks and iterations become means of one rank's iteration. */
void rp_groups_average(struct report *r)
{
    uint64_t runs = r->iterations.count ? r->iterations.count : 1;
    uint32_t timed_ranks = 0;

    for (uint32_t i = 0; i < r->layout.sandbox_count; i++)
        timed_ranks += r->ranks[i].iteration.count != 0;

    for (size_t i = 0; i < r->op_count; i++) {
        rp_samples_spread(&r->ops[i].samples, &r->ops[i].time);
        calls_end(&r->ops[i].calls, timed_ranks, runs);
    }
    for (size_t i = 0; i < r->group_count; i++) {
        struct rp_group *g = &r->groups[i];

        calls_end(&g->calls, timed_ranks, runs);
        g->time_ns /= runs;
        g->waiting_ns /= runs;
        g->virtual_ns /= runs;
        g->transfer_ns /= runs;
        g->plan_ns /= runs;
    }
    if (r->op_count)
        qsort(r->ops, r->op_count, sizeof *r->ops, by_time);
    if (r->group_count)
        qsort(r->groups, r->group_count, sizeof *r->groups, groups_by_time);
    rp_samples_spread(&r->iterations, &r->iteration);
}
