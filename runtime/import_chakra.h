/* A Chakra trace while it is read: its nodes, their order, and how they become records.
 * See import_chakra.c for what is made of it. Include import.h instead.
 */
#ifndef CRYSTAL_IMPORT_CHAKRA_H
#define CRYSTAL_IMPORT_CHAKRA_H

#include "runtime/import_trace.h"

#include "runtime/protobuf_reader.h"

/* Of a node, as et_def.proto numbers them. */
enum chakra_type { CHAKRA_SEND = 5, CHAKRA_RECV = 6, CHAKRA_COLL = 7 };

struct chakra_node {
    uint64_t id, us;
    uint64_t comm_type, comm_size, src, dst, tag;
    struct crystal_protobuf name, group;
    uint64_t begin_us, end_us; /* at the earliest, if communication took no time */
    size_t dep_first;          /* in deps: first ids, then indices of nodes */
    uint32_t dep_count;
    uint32_t stream; /* NONE: not placed */
    uint32_t type;   /* saturates */
    bool is_host;    /* what the host did to start it: no communication itself */
    bool has_comm_type;
    bool is_awaited;  /* by one node at least */
    bool is_recorded; /* as an event, since another stream may wait for it */
};

struct chakra_dep {
    uint64_t id; /* first of a node, then its index */
    bool is_ctrl;
};

struct chakra_turn { /* of a node to be placed */
    uint64_t begin_us;
    uint32_t nth, node; /* nth in the order of the file, as far as it goes */
};

struct chakra {
    struct chakra_node *nodes;
    size_t count, capacity;
    struct chakra_dep *deps;
    size_t dep_count, dep_capacity;
    bool has_data_deps;
    struct chakra_turn *turns;         /* once ordered: count of them */
    uint32_t last[IMPORT_STREAMS_MAX]; /* node of each stream */
    uint32_t stream_count;
};

/* A node that communicates. */
bool chakra_communicates(const struct chakra_node *n);

/* --- import_chakra_nodes.c --- */

/* The nodes of a file; 0, -ENOMEM or -EINVAL. */
int chakra_nodes_read(struct chakra *c, const char *text, size_t bytes);

/* --- import_chakra_order.c --- */

/* Makes indices of the ids of dependencies, and the turns. 0, -ENOMEM, -EINVAL for two
 * nodes of one id, -ELOOP where nodes wait for each other. */
int chakra_order(struct chakra *c);

#endif
