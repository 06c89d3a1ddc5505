/* Where the sandbox ranks of other nodes and the assistants are, for the net plugin: a
 * file "nodes" beside the board, mode 0600, written before the node's ranks start;
 * there is none where one node has the whole sandbox and the wire is modelled.
 *
 *   offset bytes what
 *        0     8 magic "CRYNODE2"
 *        8     4 nodes M
 *       12     4 sandbox ranks R
 *       16    32 the job's token
 *       48     4 assistants, the last ones of M; the others are sandbox nodes
 *       52     4 zero
 *       56  32 M struct crystal_msg_node of each (runtime/message.h)
 *   56+32M   8 R logical rank, its sandbox node; each 4 bytes
 * Byte order of the host. Every number is checked against the file's size. In version 1
 * ("CRYNODE1") nothing stood between the token and the nodes; it is refused.
 */
#ifndef CRYSTAL_NODE_PLACES_H
#define CRYSTAL_NODE_PLACES_H

#include "runtime/error.h"
#include "runtime/message.h"

#include <stdint.h>

struct crystal_place {
    uint32_t lrank, node;
};

int crystal_places_write(const char *directory, const struct crystal_msg_node *nodes,
                         uint32_t node_count, uint32_t assistant_count,
                         const uint8_t token[CRYSTAL_TOKEN_BYTES],
                         const struct crystal_place *ranks, uint32_t rank_count,
                         struct crystal_error *err);

/* The node of a rank, and the token. 1 found, 0 there is no such file or no such rank
 * in it. */
int crystal_places_find(const char *directory, uint32_t lrank,
                        struct crystal_msg_node *ret,
                        uint8_t ret_token[CRYSTAL_TOKEN_BYTES],
                        struct crystal_error *err);

/* The assistant that carries the real wire for a rank, and the token. 1 found, 0 the
 * wire is modelled or there is no such rank. */
int crystal_places_assistant(const char *directory, uint32_t lrank,
                             struct crystal_msg_node *ret,
                             uint8_t ret_token[CRYSTAL_TOKEN_BYTES],
                             struct crystal_error *err);

/* Which of so many assistants carries the wire for the index-th of all sandbox ranks,
 * on node `node` of node_count: those with number node modulo node_count, in turn;
 * where there are fewer than nodes, number node modulo assistant_count. */
uint32_t crystal_places_assistant_of(uint32_t assistant_count, uint32_t node_count,
                                     uint32_t node, uint32_t index);

#endif
