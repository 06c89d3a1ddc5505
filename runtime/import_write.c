/* The graph of all ranks. See import_trace.h. */
#include "config.h"

#include "runtime/import_trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The label of a name: templates and arguments tell too much. */
static uint32_t label_put(struct crystal_graph_writer *w, struct import_label label)
{
    char name[128];
    size_t bytes = label.bytes < sizeof name ? label.bytes : sizeof name - 1;

    if (bytes)
        memcpy(name, label.name, bytes);
    name[bytes] = 0;
    name[strcspn(name, "<(")] = 0;
    return crystal_graph_writer_label(w, name[0] ? name : "kernel");
}

/* The number in the graph of each of the rank's labels; caller frees. NULL: out of
 * memory. */
static uint32_t *labels_make(struct crystal_graph_writer *w, const struct import_ops *o)
{
    uint32_t *labels = malloc((o->label_count + 1) * sizeof *labels);

    for (uint32_t i = 0; labels && i < o->label_count; i++)
        labels[i] = label_put(w, o->labels[i]);
    return labels;
}

static int rank_write(struct crystal_graph_writer *w, struct import_rank *r)
{
    struct import_ops *o = &r->ops;
    uint32_t *labels = labels_make(w, o);

    if (!labels)
        return -ENOMEM;
    for (size_t i = 0; i < o->count; i++)
        if (o->rows[i].kind == CRYSTAL_OP_KERNEL)
            o->rows[i].aux = labels[o->rows[i].aux];
    free(labels);
    (void)crystal_graph_writer_rep(w, r->lrank, o->local_count);
    crystal_graph_writer_mark(w);
    crystal_graph_writer_ops(w, o->rows, o->count);
    crystal_graph_writer_mark(w);
    return 0;
}

/* The rank's groups become the graph's: its locals are of that one. */
static int groups_merge(struct import *m, struct import_rank *r)
{
    for (uint32_t i = 0; i < r->groups.count; i++) {
        struct import_group *group = &r->groups.rows[i];
        uint32_t index = import_group_find(&m->groups, group->name, group->list);

        if (index == IMPORT_NONE) {
            index = import_group_add(&m->groups, group);
            group->is_owner = false; /* taken */
        }
        if (index == IMPORT_NONE)
            return -ENOMEM;
        if (group->local != IMPORT_NONE)
            r->ops.locals[group->local] = index;
    }
    return 0;
}

int import_write(struct import *m, const struct crystal_graph_network *network,
                 const char *path, struct crystal_error *err)
{
    struct crystal_graph_writer *w = crystal_graph_writer_create(m->rank_count);
    int code = w ? 0 : -ENOMEM;

    if (!code && network)
        crystal_graph_writer_network(w, network);
    for (uint32_t i = 0; !code && i < m->rank_count; i++)
        code = groups_merge(m, &m->ranks[i]);
    for (uint32_t i = 0; !code && i < m->groups.count; i++)
        (void)crystal_graph_writer_comm(w, NULL, m->groups.rows[i].count,
                                        m->groups.rows[i].members);
    for (uint32_t i = 0; !code && i < m->rank_count; i++)
        code = rank_write(w, &m->ranks[i]);
    for (uint32_t i = 0; !code && i < m->rank_count; i++)
        crystal_graph_writer_rank(w, m->ranks[i].lrank, i, m->ranks[i].ops.locals);
    code = code ? crystal_error_set(err, -code, "out of memory")
                : crystal_graph_writer_write(w, path, 0, err);
    crystal_graph_writer_destroy(w);
    return code;
}
