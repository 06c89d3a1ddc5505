/* An open job.graph: its file's sections. Include graph.h instead. */
#ifndef CRYSTAL_GRAPH_INTERNAL_H
#define CRYSTAL_GRAPH_INTERNAL_H

#include "runtime/graph.h"

#include "runtime/filehead.h"
#include "runtime/graph_file.h"

struct crystal_graph {
    struct crystal_file_view view;
    uint32_t form; /* the version, 1 to 4, that its body has */
    const struct crystal_graph_head *head;
    const struct crystal_graph_rep *reps;
    const struct crystal_graph_rank *ranks;
    const struct crystal_graph_set *comms;
    const struct crystal_graph_local *locals;
    const struct crystal_graph_coll *colls;
    const struct crystal_graph_send *sends;
    const struct crystal_op *ops;
    const uint64_t *marks;
    const uint32_t *map;
    const uint32_t *members;
    const char *names;
    const unsigned char *payload;
    struct crystal_op *own_ops; /* version 3: unpacked; else NULL */
};

#endif
