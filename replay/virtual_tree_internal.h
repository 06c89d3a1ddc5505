/* What the files of trees with virtual neighbours share; include virtual_tree.h
 * instead.
 */
#ifndef CRYSTAL_VIRTUAL_TREE_INTERNAL_H
#define CRYSTAL_VIRTUAL_TREE_INTERNAL_H

#include "replay/virtual_tree.h"

#include <pthread.h>

#define TREE_NODE_NONE UINT32_MAX

enum tree_side { TREE_PARENT = 0, TREE_CHILD0, TREE_CHILD1, TREE_OWN };

/* What this rank sent to its parent and has not got back. */
struct tree_up {
    struct tree_up *next;
    uint64_t index, started_ns;
    uint64_t wire_bytes;
    unsigned char data[]; /* as on the wire; none where it is not asked for */
};

/* What a near real rank sent to its virtual neighbour (crystal_trees_fed). */
struct tree_fed {
    struct tree_fed *next;
    uint64_t seq, index, started_ns, wire_bytes;
    uint32_t channel, crank;
    unsigned char *data; /* as on the wire; NULL: not asked for; owned */
};

struct tree_line {
    struct tree_line *next;
    uint64_t seq;
    uint32_t channel;
    struct tree_up *first;
    uint64_t taken; /* messages that came back down */
};

/* Real ranks of other places in the tree with none but virtual ones between. */
struct tree_near {
    uint32_t *cranks; /* owned */
    uint32_t count;
};

/* Where every node stands as seen from here, in one of the trees. */
struct tree_view {
    uint32_t up, down[2]; /* nodes next to this one, NONE where there is none */
    uint8_t *side;        /* [nodes], owned */
    uint8_t *depth;       /* [nodes], owned */
    /* Nodes with one rank: who hears of this rank's messages to that side, and whose
     * messages are in what comes from there: the nearest below a child; on the parent's
     * side the nearest ancestor, which has the result, or else all others that have no
     * real ancestor. */
    struct tree_near near[TREE_OWN];
    int has_ancestor;
    uint8_t *is_covered; /* [nodes]: its contribution is in theirs; owned */
};

struct crystal_trees {
    struct crystal_net_comm *comm;
    uint32_t nodes, node, graph_channels;
    uint32_t *node_of; /* by crank, owned */
    const uint8_t *is_real;
    struct tree_view views[2];
    pthread_mutex_t lock; /* what follows */
    struct tree_line *first;
    struct tree_fed *fed; /* in the order in which they came */
    int is_waited;
    pthread_t waiter;
};

/* virtual_tree_view.c: numbers the nodes and looks at both trees. -ENOMEM. */
int crystal_tree_views_init(struct crystal_trees *trees, const uint32_t *members,
                            uint32_t per_node, uint32_t lrank_count);
void crystal_tree_views_fini(struct crystal_trees *trees);

/* What the schedule says of a message. */
struct tree_facts {
    struct crystal_tree_op op;
    const struct tree_view *view;
    enum tree_side side;
    uint64_t count; /* messages per neighbour */
    uint64_t offset_elts;
    uint32_t elts;
    uint64_t bytes, wire_bytes;
};

/* virtual_tree.c. EPROTO where the schedule does not have the message. */
int crystal_tree_facts(const struct crystal_trees *trees,
                       const struct crystal_tree_transfer *m, struct tree_facts *ret,
                       struct crystal_error *err);
/* Its own message comes back, in the sum that this rank has to make itself. */
int crystal_tree_needs_own(const struct tree_facts *facts);
/* An operation's line, made where there is none; NULL without memory. With the lock. */
struct tree_line *crystal_tree_line(struct crystal_trees *trees, uint64_t seq,
                                    uint32_t channel, struct crystal_error *err);
void crystal_tree_line_drop(struct crystal_trees *trees, struct tree_line *line);
void crystal_tree_fed_free(struct tree_fed *fed);

#endif
