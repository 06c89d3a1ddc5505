/* Communicators of all logical ranks while job.graph is built: those of the captured
 * ranks as comms.tab names them, and their copies in the replicas that did not run.
 */
#ifndef CRYSTAL_GRAPH_COMMS_H
#define CRYSTAL_GRAPH_COMMS_H

#include "runtime/error.h"
#include "runtime/layout.h"
#include "runtime/replica.h"

#include <stddef.h>
#include <stdint.h>

struct crystal_graph_entry {
    char *name;        /* owned; NULL for a copy */
    uint32_t *members; /* owned */
    uint32_t nranks;
    struct crystal_replica_span dp; /* of the members */
};

struct crystal_graph_comms {
    struct crystal_graph_entry *entries;
    uint32_t count, capacity;
    uint32_t named_count; /* the first ones: lines of comms.tab */
    uint32_t *copies;     /* [named_count * replica.size]: entry or UINT32_MAX */
    uint32_t lrank_count;
    struct crystal_replica replica;
};

/* Reads comms.tab: lines of name, nranks and members between tabs. Caller: fini. */
int crystal_graph_comms_read(struct crystal_graph_comms *c, const char *path,
                             const struct crystal_layout *layout,
                             struct crystal_error *err);
/* The nth line with this name, the last one where there are fewer. UINT32_MAX where
 * there is none. */
uint32_t crystal_graph_comms_named(const struct crystal_graph_comms *c,
                                   const char *name, uint32_t nth);
/* The communicator that lrank uses where its representative uses entry `named`: that
 * one where lrank is a member of it, else its copy moved from the representative's
 * replica to lrank's, which is made on first use. */
int crystal_graph_comms_of(struct crystal_graph_comms *c, uint32_t named,
                           uint32_t rep_lrank, uint32_t lrank, uint32_t *ret,
                           struct crystal_error *err);
void crystal_graph_comms_fini(struct crystal_graph_comms *c);

#endif
