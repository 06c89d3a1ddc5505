/* job.graph: the execution graph of all logical ranks through their representatives.
 *
 * File: crystal_filehead (magic "CRYGRAPH"), then the sections that graph.c draws. Read
 * through mmap; every index and length is checked once in crystal_graph_open, after
 * which the accessors need no checks. The header of the one public library: installed
 * as <crystal/graph.h>, linked with -lcrystal-graph, for C and C++. All functions are
 * thread-safe for readers.
 */
#ifndef CRYSTAL_GRAPH_H
#define CRYSTAL_GRAPH_H

#include "runtime/error.h"
#include "runtime/op.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CRYSTAL_GRAPH_MAGIC "CRYGRAPH"
/* Version 2 is version 1 with KERNEL records and the target's network in its head. */
#define CRYSTAL_GRAPH_VERSION        1
#define CRYSTAL_GRAPH_VERSION_DEVICE 2
/* Version 3 is version 2 with its records packed (graph_pack.h), version 4 is version 3
 * whose records may tell algorithm and protocol (op.h). Captures are like 1, or 2 where
 * they saw a device, whose records several processes read in place; other writers make
 * what is like 4. */
#define CRYSTAL_GRAPH_VERSION_PACKED 3
#define CRYSTAL_GRAPH_VERSION_WAYS   4
/* Versions 5 to 8 are 1 to 4 with a checksum of the file's header. All are read;
 * written are 5, 6 and 8. */
#define CRYSTAL_GRAPH_VERSION_HASHED 4 /* to be added */

struct crystal_graph;

struct crystal_graph *crystal_graph_open(const char *path, struct crystal_error *err);
void crystal_graph_close(struct crystal_graph *g);

uint32_t crystal_graph_lrank_count(const struct crystal_graph *g);
uint64_t crystal_graph_fingerprint(const struct crystal_graph *g);

/* Representatives, by index 0 .. count-1; the rank map gives every lrank's index. */
uint32_t crystal_graph_rep_count(const struct crystal_graph *g);
uint32_t crystal_graph_rep_lrank(const struct crystal_graph *g, uint32_t rep);
uint32_t crystal_graph_rep_of(const struct crystal_graph *g, uint32_t lrank);

/* Operations of a representative, as trace records with comm replaced by nothing: the
 * communicator of record i is crystal_graph_comm_of(g, lrank, ops[i].comm). Borrowed.
 */
const struct crystal_op *crystal_graph_ops(const struct crystal_graph *g, uint32_t rep,
                                           uint64_t *ret_count);

/* Iterations of a representative: the records from mark k to mark k+1 are one, so there
 * are mark_count - 1, the same number for every representative that has any; the first
 * is the warm-up. mark_count is 0 where no repetition was found. Each iteration has the
 * same communication calls. Marks come from the repeating structure of the trace. */
const uint64_t *crystal_graph_marks(const struct crystal_graph *g, uint32_t rep,
                                    uint32_t *ret_count);

/* Whether this is a capture that saw a device: its KERNEL records were measured. */
int crystal_graph_is_measured(const struct crystal_graph *g);

/* The name of a KERNEL record, or NULL; borrowed. */
const char *crystal_graph_label(const struct crystal_graph *g,
                                const struct crystal_op *op);

/* The target's network, where the graph tells it (version 2). */
struct crystal_graph_network {
    uint32_t ranks_per_node;
    uint64_t bytes_per_s, latency_ns;           /* between nodes, for each rank */
    uint64_t node_bytes_per_s, node_latency_ns; /* inside a node */
};
/* Returns 1 and sets ret where it does, else 0. */
int crystal_graph_network(const struct crystal_graph *g,
                          struct crystal_graph_network *ret);

/* Communicators: all that any logical rank belongs to. */
struct crystal_graph_comm {
    const char *name; /* store key of the id as captured; NULL for a communicator that
                         only exists through expansion to another replica */
    uint32_t nranks;
    const uint32_t *members; /* lrank by crank */
};
uint32_t crystal_graph_comm_count(const struct crystal_graph *g);
void crystal_graph_comm(const struct crystal_graph *g, uint32_t comm,
                        struct crystal_graph_comm *ret);
/* Number of local communicators (COMM records) of lrank's representative. */
uint32_t crystal_graph_local_count(const struct crystal_graph *g, uint32_t lrank);
/* The communicator that lrank uses where its representative's trace says local index.
 */
uint32_t crystal_graph_comm_of(const struct crystal_graph *g, uint32_t lrank,
                               uint32_t local);
/* Crank of lrank in a communicator, UINT32_MAX where it is no member. */
uint32_t crystal_graph_crank_of(const struct crystal_graph *g, uint32_t comm,
                                uint32_t lrank);
/* The crank with which lrank exchanges messages where its representative's trace says
 * peer: on a communicator that spans replicas the peer keeps its distance in dp
 * (replica 3 sends to replica 3 where replica 0 sent to replica 0), elsewhere it is
 * peer. */
uint32_t crystal_graph_peer_of(const struct crystal_graph *g, uint32_t lrank,
                               uint32_t local, uint32_t peer);
/* Finds by name (a name is taken only where the members agree), or by exact members
 * where name is NULL or unknown: UINT32_MAX if none. Of several with the same members
 * (a group made twice) `nth` picks, from 0. */
uint32_t crystal_graph_comm_find(const struct crystal_graph *g, const char *name,
                                 uint32_t nranks, const uint32_t *members,
                                 uint32_t nth);

/* What crank contributed to the seq-th collective (seq counts that communicator's
 * collectives from 0; for p2p see func and peer) as its representative recorded it.
 * Returns 1 and sets ret (borrowed) where kept, 0 where not kept, -ERANGE where the
 * recording ends before seq. */
int crystal_graph_payload(const struct crystal_graph *g, uint32_t comm, uint64_t seq,
                          uint32_t crank, const void **ret, uint64_t *ret_bytes);
/* The same for the seq-th send of crank `from` to crank `to` on this communicator. */
int crystal_graph_p2p_payload(const struct crystal_graph *g, uint32_t comm,
                              uint32_t from, uint32_t to, uint64_t seq,
                              const void **ret, uint64_t *ret_bytes);

/* The seq of the same collective in the last recorded iteration where the recording
 * ends before seq: what repeats for ever after. seq itself where it was recorded or
 * where the communicator has no part in the iterations. */
uint64_t crystal_graph_seq_repeat(const struct crystal_graph *g, uint32_t comm,
                                  uint64_t seq, uint32_t crank);

/* Bytes in the file that the accessors above hand out, for `scrystal graph --stat`. */
struct crystal_graph_stat {
    uint64_t file_bytes, op_count, payload_bytes, payload_count;
    uint32_t iteration_count;
};
void crystal_graph_stat(const struct crystal_graph *g, struct crystal_graph_stat *ret);
/* The file behind its header, in which what is handed out above as payload lies;
 * borrowed. */
const void *crystal_graph_body(const struct crystal_graph *g, uint64_t *ret_bytes);
/* Body hash of job.graph: what its children keep as parent. */
uint64_t crystal_graph_hash(const struct crystal_graph *g);
/* Identity of the traces it was made from. */
uint64_t crystal_graph_parent(const struct crystal_graph *g);
#ifdef __cplusplus
}
#endif

#endif
