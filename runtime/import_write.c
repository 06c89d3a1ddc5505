/* The graph of all ranks. See import_trace.h. */
#include "config.h"

#include "runtime/import_trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

void import_rank_drop(struct import_rank *r)
{
    if (r->text)
        (void)munmap((void *)(uintptr_t)r->text, r->bytes);
    r->text = NULL;
    import_groups_fini(&r->groups);
    import_ops_fini(&r->ops);
    memset(&r->groups, 0, sizeof r->groups);
    memset(&r->ops, 0, sizeof r->ops);
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

static int records_put(struct crystal_graph_writer *w, struct import_rank *r)
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

/* The rank's groups become the graph's. */
static int groups_put(struct import *m, struct import_rank *r)
{
    r->locals = malloc((r->ops.local_count + 1) * sizeof *r->locals);
    if (!r->locals)
        return -ENOMEM;
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
            r->locals[group->local] = index;
    }
    return 0;
}

int import_rank_put(struct import *m, struct import_rank *r)
{
    int code = groups_put(m, r);

    if (!code)
        code = records_put(m->writer, r);
    import_rank_drop(r);
    return code;
}

int import_write(struct import *m, const struct crystal_graph_network *network,
                 const char *path, struct crystal_error *err)
{
    if (network)
        crystal_graph_writer_network(m->writer, network);
    for (uint32_t i = 0; i < m->groups.count; i++)
        (void)crystal_graph_writer_comm(m->writer, NULL, m->groups.rows[i].count,
                                        m->groups.rows[i].members);
    for (uint32_t i = 0; i < m->rank_count; i++)
        crystal_graph_writer_rank(m->writer, m->ranks[i].lrank, i, m->ranks[i].locals);
    return crystal_graph_writer_write(m->writer, path, 0, err);
}
