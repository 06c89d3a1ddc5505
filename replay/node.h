/* What a sandbox node hosts while sandbox ranks run (plan, emulate): the board, the
 * bootstrap proxy that answers for virtual ranks, and the timeline's node part. Run by
 * `scrystal agent` and, without Slurm, by `scrystal plan|emulate` themselves.
 */
#ifndef CRYSTAL_NODE_H
#define CRYSTAL_NODE_H

#include "replay/roll.h"
#include "runtime/coord_client.h"
#include "runtime/error.h"
#include "runtime/layout.h"

#include <stddef.h>

struct crystal_links;
struct crystal_node;

struct crystal_node_config {
    const char *job_dir;
    const struct crystal_layout *layout; /* borrowed until destroy */
    int timed;                           /* 0 plan: virtual ranks answer at once */
    const char *graph_path;              /* NULL: none (immediate only) */
    const char *profile_path;            /* NULL unless timed */
    struct crystal_client *coord;        /* role AGENT; ids come through it; open until
                                            destroy. NULL: only crystal_node_comm */
    /* Several nodes: links that listen, taken over also on failure; NULL: this one
     * alone. nodes has node_count entries, borrowed during create, of which the last
     * assistant_count are assistants: then the wire is real. */
    struct crystal_links *links;
    uint32_t node, node_count, assistant_count;
    const struct crystal_msg_node *nodes;
};

/* Creates a private directory below /dev/shm with the board, starts the threads, and
 * waits until the services of the other nodes are ready, too. NULL on failure. */
struct crystal_node *crystal_node_create(const struct crystal_node_config *config,
                                         struct crystal_error *err);
/* 1 once every node has called it: no rank needs another node any more; else 0. */
int crystal_node_is_done(struct crystal_node *node);
/* 1 once every node has called it or ended: all records of the run are written. */
int crystal_node_has_records(struct crystal_node *node);
/* One communicator by hand, as the coordinator's COMM_FORGE (forge = 1: fills id) and
 * COMM_ID (forge = 0: a real crank 0 made id) do it. members[crank] = lrank. */
int crystal_node_comm(struct crystal_node *node, int forge,
                      uint8_t id[NCCL_UNIQUE_ID_BYTES], const char *name,
                      uint32_t nranks, const uint32_t *members,
                      struct crystal_error *err);
/* A group of the job by hand, see crystal_proxy_group. */
int crystal_node_group(struct crystal_node *node, uint32_t nranks,
                       const uint32_t *members, struct crystal_error *err);
/* The service's directory, path of the board in it for CRYSTAL_BOARD; borrowed. */
const char *crystal_node_directory(const struct crystal_node *node);
const char *crystal_node_board_path(const struct crystal_node *node);
/* The first failure of proxy, timeline or plugins since create; 0 if none. -ECONNRESET:
 * a rank is gone, so that its end is the cause, where it is known. */
int crystal_node_status(struct crystal_node *node, struct crystal_error *err);
/* Whoever has started the sandbox rank says that it has ended. */
void crystal_node_ended(struct crystal_node *node, uint32_t lrank);
/* Looks after the sandbox ranks, see crystal_rank_watch_look. */
int crystal_node_look(struct crystal_node *node, char *notice, size_t notice_bytes,
                      struct crystal_error *err);
/* 1: this sandbox rank has joined a communicator. */
int crystal_node_has_joined(struct crystal_node *node, uint32_t lrank);
/* Ends all communication of the sandbox ranks, with this sentence. */
void crystal_node_abort(struct crystal_node *node, const char *sentence);
/* What began the ends that the ranks of this node have seen, see crystal_roll_cause. */
struct crystal_roll_cause crystal_node_cause(struct crystal_node *node);
/* 1: this rank saw another's end, or the job stopped, before its own. */
int crystal_node_has_seen(struct crystal_node *node, uint32_t lrank);
/* Writes what is known of this run to path (by a temporary name, mode 0600) as YAML.
 * Keys: version (1), mode (immediate or timed), logical_ranks, sandbox_ranks, nodes
 * (that run them; each writes what it has met), timeline (setup, follows, finished or
 * stuck);
 *
 * wire: kind (modelled or real), transport ("host memory" and behind it "no network",
 * "TCP between nodes", "TCP to 1 assistant node" or "TCP between nodes and to ..."),
 * bytes_per_s, latency_ns, message_overhead_ns;
 *
 * counters: standin_ops, standin_bytes, late_count, late_max_ns, dropped_connections,
 * checkins, real_only_communicators;
 *
 * communicators: count, and for each by its number: name, id (16 hexadecimal digits),
 * ranks, real, virtual, origin (forged, joined, or split: made of another one), open,
 * setup_s (.nan where it is not complete), connections (handles exchanged with virtual
 * peers);
 *
 * failure: the sentence, empty if none. */
int crystal_node_run_yaml(struct crystal_node *node, const char *path,
                          struct crystal_error *err);
/* Stops the threads and removes the directory. NULL is fine. */
void crystal_node_destroy(struct crystal_node *node);

#endif
