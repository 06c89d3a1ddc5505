/* See allocation.h. */
#include "config.h"

#include "spank/allocation.h"

#include "spank/nodes.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* An option's number; 0 = not given or none. */
static uint32_t number(const struct crystal_srun_line *line, const char *name)
{
    const char *text = crystal_srun_line_get(line, name);
    unsigned long value = text ? strtoul(text, NULL, 10) : 0;

    return value <= UINT32_MAX ? (uint32_t)value : 0;
}

/* Assistants that are nodes like the sandbox's. */
static uint32_t more_nodes(const struct crystal_request *r)
{
    return r->is_apart ? 0 : r->assistant_count;
}

/* Of the whole job, a component of assistants aside. */
static uint32_t node_count(const struct crystal_request *r)
{
    return r->node_count + more_nodes(r);
}

/* Slurm would let such jobs wait for ever, or salloc say nothing. */
static int check_component(const struct crystal_allocation *a,
                           struct crystal_error *err)
{
    const struct crystal_request *r = a->request;
    const struct crystal_partition *p = a->assistants;
    const char *name = r->assistant_partition;
    uint32_t needed = r->assistant_count;

    if (!r->is_apart)
        return 0;
    if (crystal_srun_line_get(a->line, "array"))
        return crystal_error_set(err, EINVAL,
                                 "--array: Slurm has no arrays of heterogeneous jobs, "
                                 "which assistants.place: het makes of this one; use "
                                 "--crystal-wire=modelled or place: same");
    if (name && !strchr(name, ',') && a->partition->node_count && !p->name)
        return crystal_error_set(err, EINVAL,
                                 "assistants.partition: there is no partition '%s'; "
                                 "sinfo lists those that there are",
                                 name);
    if (p->name && a->partition->name && strcmp(p->name, a->partition->name) == 0)
        needed += r->node_count; /* of the same nodes */
    if (p->node_count && needed > p->node_count)
        return crystal_error_set(err, EINVAL,
                                 "partition '%s' has %u node(s), the job needs %u of "
                                 "them with its assistants; ask for fewer with "
                                 "--crystal-assistants, or set assistants.partition",
                                 p->name, p->node_count, needed);
    return 0;
}

/* A QOS that is named may let a job have more than the partition does. */
static bool has_qos(const struct crystal_allocation *a)
{
    static const char *const names[] = {"SLURM_QOS", "SBATCH_QOS", "SALLOC_QOS"};
    const struct crystal_argv *own = &a->request->allocation;
    bool found = crystal_srun_line_get(a->line, "qos") != NULL;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        found = found || getenv(names[i]);
    for (int i = 0; i < own->count; i++)
        found = found || strncmp(own->v[i], "--qos=", 6) == 0;
    return found;
}

/* Fewer nodes, in the user's words. */
static const char *way_out(const struct crystal_request *r)
{
    return more_nodes(r) ? "ask for fewer with --crystal-assistants or "
                           "--crystal-sandbox, or give another --partition"
                         : "name fewer ranks with --crystal-sandbox, or give another "
                           "--partition";
}

/* The job has more nodes than one of this partition ever gets. */
static int check_most(const struct crystal_allocation *a, struct crystal_error *err)
{
    const struct crystal_request *r = a->request;
    const struct crystal_partition *p = a->partition;
    const uint32_t needed = node_count(r);
    uint32_t total;

    if (p->max_nodes && needed > p->max_nodes && !has_qos(a))
        return crystal_error_set(
            err, EINVAL,
            "partition '%s' has only jobs of %u node(s) and less (MaxNodes), the job "
            "needs %u%s; %s",
            p->name, p->max_nodes, needed, more_nodes(r) ? " with its assistants" : "",
            way_out(r));
    if (!p->node_count || needed <= p->node_count)
        return 0;
    total = crystal_partition_ask_total(p->name,
                                        crystal_srun_line_get(a->line, "clusters"));
    if (!total || needed <= total)
        return 0;
    return crystal_error_set(
        err, EINVAL, "partition '%s' has %u node(s), the job needs %u%s; %s", p->name,
        total, needed, more_nodes(r) ? " with its assistants" : "", way_out(r));
}

int crystal_allocation_check(const struct crystal_allocation *a,
                             struct crystal_error *err)
{
    const struct crystal_request *r = a->request;
    const struct crystal_partition *p = a->partition;
    uint32_t cpus = number(a->line, "cpus-per-task");

    if (check_component(a, err) < 0 || check_most(a, err) < 0)
        return -EINVAL;
    if (p->min_nodes > node_count(r))
        return crystal_error_set(err, EINVAL,
                                 "partition '%s' has only jobs of %u nodes and more "
                                 "(MinNodes), the sandbox needs %u; give another "
                                 "--partition, or more nodes with --crystal-sandbox",
                                 p->name, p->min_nodes, node_count(r));
    if (cpus && p->cpus_per_node &&
        (uint64_t)cpus * r->tasks_per_node > p->cpus_per_node)
        return crystal_error_set(
            err, EINVAL,
            "--cpus-per-task: %u ranks of %u CPUs need %" PRIu64 " CPUs of one node, "
            "those of partition '%s' have %u; give %u or less, or leave it out",
            r->tasks_per_node, cpus, (uint64_t)cpus * r->tasks_per_node, p->name,
            p->cpus_per_node,
            p->cpus_per_node >= r->tasks_per_node ? p->cpus_per_node / r->tasks_per_node
                                                  : 1);
    return 0;
}

void crystal_allocation_add_shape(const struct crystal_request *r,
                                  struct crystal_argv *out)
{
    crystal_argv_add(out, "--nodes=%u", node_count(r));
    /* Slurm gives nodes by tasks, so an assistant's node is as large as the others */
    crystal_argv_add(out, "--ntasks=%u",
                     r->task_count + more_nodes(r) * r->tasks_per_node);
    crystal_argv_add(out, "--ntasks-per-node=%u", r->tasks_per_node);
    if (r->gres_per_node[0])
        crystal_argv_add(out, "--gres=%s", r->gres_per_node);
}

/* "--partition=gpu" stands on the user's line already, with another value. */
static bool user_says(const struct crystal_srun_line *line, const char *option)
{
    char name[64];
    size_t bytes = strcspn(option + 2, "=");

    if (bytes >= sizeof name)
        return false;
    memcpy(name, option + 2, bytes);
    name[bytes] = '\0';
    if (strcmp(name, "mem") == 0 && (crystal_srun_line_get(line, "mem-per-cpu") ||
                                     crystal_srun_line_get(line, "mem-per-gpu")))
        return true;
    return crystal_srun_line_get(line, name) != NULL;
}

int crystal_allocation_add_nodelist(const struct crystal_allocation *a,
                                    struct crystal_argv *out,
                                    struct crystal_argv *notices,
                                    struct crystal_error *err)
{
    uint32_t count = node_count(a->request);
    struct crystal_argv named = {0};
    char *first = NULL;
    int rc = crystal_nodes_named(a->line, &named, err);

    if (rc == 0 && (uint32_t)named.count > count) {
        first = crystal_nodes_join(&named, count);
        if (!first || named.failed)
            rc = crystal_error_set(err, ENOMEM, "out of memory");
    }
    if (rc == 0 && first) {
        crystal_argv_add(out, "--nodelist=%s", first);
        crystal_argv_add(notices,
                         "%d nodes are named, the sandbox takes the first %u: %s",
                         named.count, count, first);
    }
    free(first);
    crystal_argv_fini(&named);
    return rc;
}

/* Blocks of nodes (topology/block) of the whole job's size. */
static void add_segment(const struct crystal_allocation *a, struct crystal_argv *out,
                        struct crystal_argv *notices)
{
    uint32_t segment = number(a->line, "segment"), count = node_count(a->request);

    if (!segment || count % segment == 0)
        return;
    crystal_argv_add(out, "--segment=%u", count);
    crystal_argv_add(notices,
                     "--segment=%u does not divide the sandbox's %u node(s), "
                     "using %u",
                     segment, count, count);
}

void crystal_allocation_add_component(const struct crystal_allocation *a, bool is_quiet,
                                      struct crystal_argv *out)
{
    const struct crystal_request *r = a->request;
    const char *partition =
        r->assistant_partition ? r->assistant_partition : a->partition->name;

    if (!r->is_apart)
        return;
    crystal_argv_add(out, ":");
    if (is_quiet) /* here, as each component makes salloc quieter than the one before */
        crystal_argv_add(out, "--quiet");
    if (partition)
        crystal_argv_add(out, "--partition=%s", partition);
    crystal_argv_add(out, "--nodes=%u", r->assistant_count);
    crystal_argv_add(out, "--ntasks=%u", r->assistant_count);
    crystal_argv_add(out, "--ntasks-per-node=1");
    crystal_argv_add(out, "--gres=none");
}

int crystal_allocation_add(const struct crystal_allocation *a, struct crystal_argv *out,
                           struct crystal_argv *notices, struct crystal_error *err)
{
    const struct crystal_request *r = a->request;

    crystal_allocation_add_shape(r, out);
    for (int i = 0; i < r->allocation.count; i++)
        if (!user_says(a->line, r->allocation.v[i]))
            crystal_argv_add(out, "%s", r->allocation.v[i]);
    if (a->partition->cpus_per_node && a->partition->cpus_per_node < r->tasks_per_node)
        crystal_argv_add(out, "--overcommit");
    add_segment(a, out, notices);
    return crystal_allocation_add_nodelist(a, out, notices, err);
}
