/* What the importers share: the events of each rank, whatever they were read from, and
 * how these become a graph. Include import.h instead.
 */
#ifndef CRYSTAL_IMPORT_TRACE_H
#define CRYSTAL_IMPORT_TRACE_H

#include "runtime/graph_write.h"
#include "runtime/import.h"

#include <stdbool.h>
#include <stddef.h>

#define IMPORT_NONE        UINT32_MAX
#define IMPORT_STREAMS_MAX 200

enum import_what {
    IMPORT_KERNEL,
    IMPORT_COLL,
    IMPORT_SEND,
    IMPORT_RECV,
    IMPORT_STREAM_WAIT,  /* for all that other_stream has been given */
    IMPORT_EVENT_RECORD, /* on the stream */
    IMPORT_EVENT_WAIT    /* of the stream, for an event that was recorded before */
};

struct import_event {
    enum import_what what;
    uint8_t func, dtype;
    uint8_t way;    /* CRYSTAL_OP_WAY */
    uint32_t group; /* index in groups */
    uint64_t issue_ns, start_ns, ns;
    uint64_t correlation; /* with its launch; 0: none */
    uint64_t stream, other_stream;
    uint32_t event;          /* of EVENT_RECORD and EVENT_WAIT */
    uint64_t in, out;        /* elements */
    uint32_t from, to, root; /* ranks; NONE: not told */
    const char *name;        /* borrowed from the file */
    size_t name_bytes;
};

/* When the host launched work of the device. */
struct import_launch {
    uint64_t correlation, issue_ns;
};

struct import_group {
    uint32_t *members, count; /* owned */
    uint64_t name, list;      /* hashes of its name and of the text of its members */
};

struct import_rank {
    const char *text; /* the file */
    size_t bytes;
    struct import_event *events;
    size_t count, capacity;
    struct import_launch *launches;
    size_t launch_count, launch_capacity;
    uint32_t lrank;
    uint32_t *locals, local_count; /* groups it uses, in order of first use */
};

struct import {
    struct import_rank *ranks;
    uint32_t rank_count;
    struct import_group *groups;
    uint32_t group_count, group_capacity;
};

/* --- import_events.c --- */

uint64_t import_hash(const char *text, size_t bytes);
/* The group that was added with these hashes, or NONE. */
uint32_t import_group_find(const struct import *m, uint64_t name, uint64_t list);
/* The index of the group, NONE where there is no memory; takes members. */
uint32_t import_group_add(struct import *m, uint64_t name, uint64_t list,
                          uint32_t *members, uint32_t count);
int import_event_add(struct import_rank *r, const struct import_event *e);
int import_launch_add(struct import_rank *r, struct import_launch launch);
/* Device work gets the time of its launch; all in order of issue. 0 or -ENOMEM. */
int import_order(struct import_rank *r);
/* The rank's groups; -EPROTO where it is in an operation of a group that it is no
 * member of. */
int import_locals_make(const struct import *m, struct import_rank *r);

/* Index of the group among the rank's; their number where it is none of them. */
uint32_t import_local_of(const struct import_rank *r, uint32_t group);

/* --- readers: 0, -ENOMEM, -EINVAL no such file, -EPROTO a group that is not told ---
 */

int import_kineto_read(struct import *m, struct import_rank *r);
/* -ELOOP where nodes wait for each other. */
int import_chakra_read(struct import *m, struct import_rank *r);

/* --- import_groups.c --- */

/* Adds the groups of a file of JSON. */
int import_groups_read(struct import *m, const char *text, size_t bytes);
/* The group of this name, NONE where there is none; without a name, that of all ranks.
 */
uint32_t import_group_named(struct import *m, const char *name, size_t bytes);

/* --- import_write.c --- */

/* The rank's list; -EPROTO as above. */
int import_rank_write(const struct import *m, const struct import_rank *r,
                      struct crystal_graph_writer *w);

#endif
