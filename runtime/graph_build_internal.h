/* job.graph in the making: what its files share. Include graph_build.h instead. */
#ifndef CRYSTAL_GRAPH_BUILD_INTERNAL_H
#define CRYSTAL_GRAPH_BUILD_INTERNAL_H

#include "runtime/graph_build.h"
#include "runtime/graph_comms.h"
#include "runtime/graph_file.h"
#include "runtime/filehead.h"
#include "runtime/layout.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* One live rank while it is read. */
struct crystal_graph_source {
    struct crystal_trace trace;
    struct crystal_file_view payload; /* all zero where there is none */
    uint32_t *locals; /* entry of the communicator table, by local index */
    uint32_t local_count;
    uint64_t *marks;
    uint32_t mark_count;
};

struct crystal_graph_build {
    const char *job_dir;
    struct crystal_layout layout;
    struct crystal_graph_comms comms;
    struct crystal_graph_source *sources; /* by index in layout.live */
    /* sections in the making */
    struct crystal_graph_head head;
    struct crystal_graph_rep *reps;
    struct crystal_graph_rank *ranks;
    struct crystal_graph_set *sets;
    struct crystal_graph_local *locals;
    struct crystal_graph_coll *colls;
    struct crystal_graph_send *sends;
    uint32_t *map;
};

static inline bool graph_is_comm_kind(const struct crystal_op *op)
{
    return op->kind == CRYSTAL_OP_COLL || op->kind == CRYSTAL_OP_SEND ||
           op->kind == CRYSTAL_OP_RECV;
}

/* Payloads begin at such multiples. */
static inline uint64_t graph_aligned(uint64_t bytes)
{
    return (bytes + 15) & ~UINT64_C(15);
}

/* Where the payload of a live rank is. */
int graph_payload_path(const char *job_dir, uint32_t lrank, char out[PATH_MAX],
                       struct crystal_error *err);
/* graph_source.c: a live rank's trace and payload, checked; then all of them. */
int graph_source_read(struct crystal_graph_build *b, struct crystal_graph_source *s,
                      uint32_t lrank, struct crystal_error *err);
/* The members of each communicator call the same collectives. */
int graph_sources_agree(const struct crystal_graph_build *b, struct crystal_error *err);
/* graph_marks.c: iterations, of which all ranks get those that all have. */
int graph_marks_find(struct crystal_graph_build *b, struct crystal_error *err);

/* graph_sections.c: the tables of the file, in this order. */
int graph_map_make(struct crystal_graph_build *b, struct crystal_error *err);
int graph_sets_make(struct crystal_graph_build *b, struct crystal_error *err);
int graph_reps_make(struct crystal_graph_build *b, struct crystal_error *err);

/* graph_image.c: the file. */
int graph_image_write(struct crystal_graph_build *b, const char *path,
                      struct crystal_error *err);
/* graph_build.c: the identity of the traces of these live ranks. */
int graph_identify(const char *job_dir, const uint32_t *lranks, uint32_t count,
                   uint64_t *hash, struct crystal_error *err);

#endif
