/* What the importers share: the files, their groups, and the records that each rank
 * gets, whatever they were read from. Include import.h instead.
 *
 * A rank is read by one thread, which changes nothing but the rank. Then its groups,
 * labels and records become the graph's: in the order of the files, so that what comes
 * out does not depend on threads, and as soon as it is its turn, so that the records of
 * few ranks are kept.
 */
#ifndef CRYSTAL_IMPORT_TRACE_H
#define CRYSTAL_IMPORT_TRACE_H

#include "runtime/graph_write.h"
#include "runtime/import.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

#define IMPORT_NONE        UINT32_MAX
#define IMPORT_STREAMS_MAX 200
#define IMPORT_OTHER_RANK  (-EXDEV) /* a failure: the file is of another rank's */

enum import_what {
    IMPORT_KERNEL,
    IMPORT_COLL,
    IMPORT_SEND,
    IMPORT_RECV,
    IMPORT_STREAM_WAIT /* for all that other_stream has been given */
};

/* Work of the device, or a wait of one stream for another. */
struct import_event {
    enum import_what what;
    uint8_t func, dtype;
    uint8_t way;    /* CRYSTAL_OP_WAY */
    uint32_t group; /* index in the rank's groups */
    uint64_t issue_ns, start_ns, ns;
    uint64_t correlation; /* with its launch; 0: none */
    uint64_t stream, other_stream;
    uint64_t in, out;        /* elements */
    uint32_t from, to, root; /* ranks; NONE: not told */
    const char *name;        /* borrowed from the file */
    size_t name_bytes;
};

/* --- import_groups.c --- */

struct import_group {
    const uint32_t *members;
    uint32_t count;
    uint32_t local;      /* the rank's number for it; NONE before its first use */
    uint64_t name, list; /* hashes of its name and of the text of its members */
    bool is_owner;       /* of members */
};

struct import_groups {
    struct import_group *rows;
    uint32_t count, capacity;
};

void import_groups_fini(struct import_groups *g);
/* The group that was added with these hashes, or NONE. */
uint32_t import_group_find(const struct import_groups *g, uint64_t name, uint64_t list);
/* Its index: a new one, or that of the same group of this name; NONE where there is no
 * memory. Takes members where group is their owner. */
uint32_t import_group_add(struct import_groups *g, const struct import_group *group);

/* --- import_ops.c: the records of a rank --- */

struct import_label { /* a name as the file has it */
    const char *name;
    size_t bytes;
};

struct import_ops {
    struct crystal_op *rows; /* aux of a KERNEL: index in labels */
    size_t count, capacity;
    struct import_label *labels;
    uint32_t label_count, label_capacity;
    uint32_t *label_places;               /* open addressing: 1 + index, 0: free */
    uint64_t streams[IMPORT_STREAMS_MAX]; /* ids, by number */
    uint32_t stream_count;
    uint32_t *locals; /* groups in the order of their first use */
    uint32_t local_count, local_capacity;
};

struct import_rank {
    const char *text; /* the file, mapped */
    size_t bytes;
    uint32_t lrank;
    struct import_groups groups;
    struct import_ops ops;
    uint32_t *locals; /* owned: once put, the graph's communicators */
    int code;         /* of reading it */
};

struct import {
    struct import_rank *ranks;
    uint32_t rank_count;
    struct import_groups named; /* those of the file of groups: any thread reads them */
    struct import_groups groups; /* the graph's: the named ones, then all */
    uint32_t *everyone;          /* 0 .. rank_count - 1 */
    struct crystal_graph_writer *writer;
};

void import_ops_fini(struct import_ops *o);
/* The record, or the records, of an event at this time. 0, -ENOMEM, -EPROTO where its
 * peer is no member of the group, or OTHER_RANK where the rank is none. */
int import_ops_put(struct import_rank *r, const struct import_event *e, uint64_t t_ns);
/* A RECORD or an SWAIT of an event; 0 or -ENOMEM. */
int import_ops_event(struct import_rank *r, uint8_t kind, uint64_t stream,
                     uint32_t event, uint64_t t_ns);
/* The host waits for each stream, behind the last record; 0 or -ENOMEM. */
int import_ops_end(struct import_rank *r);

/* --- import_events.c: events that are in no order --- */

/* When the host launched work of the device. */
struct import_launch {
    uint64_t correlation, issue_ns;
};

struct import_events {
    struct import_event *rows;
    size_t count, capacity;
    struct import_launch *launches;
    size_t launch_count, launch_capacity;
};

void import_events_fini(struct import_events *v);
int import_event_add(struct import_events *v, const struct import_event *e);
int import_launch_add(struct import_events *v, struct import_launch launch);
/* Device work gets the time of its launch; all in order of issue. 0 or -ENOMEM. */
int import_events_order(struct import_events *v);

/* --- readers: the rank's records, from its file. 0, -ENOMEM, -EINVAL no such file,
 * -EPROTO a group that is not told, OTHER_RANK --- */

int import_kineto_read(const struct import *m, struct import_rank *r);
/* -ELOOP where nodes wait for each other; -ENOTSUP where a collective has no type. */
int import_chakra_read(const struct import *m, struct import_rank *r);

/* --- import_named.c: groups of a file of their own --- */

/* Adds the groups of a file of JSON. */
int import_named_read(struct import *m, const char *text, size_t bytes);
/* The rank's index of the group of this name, NONE where there is none; without a name,
 * that of all ranks. */
uint32_t import_named_find(const struct import *m, struct import_rank *r,
                           const char *name, size_t bytes);

/* --- import_write.c --- */

/* Unmaps the file, frees groups and records. */
void import_rank_drop(struct import_rank *r);
/* Puts the rank's list behind those before it, and drops what is only needed for that.
 * 0 or -ENOMEM. One thread at a time. */
int import_rank_put(struct import *m, struct import_rank *r);
/* Writes the graph of all ranks. */
int import_write(struct import *m, const struct crystal_graph_network *network,
                 const char *path, struct crystal_error *err);

#endif
