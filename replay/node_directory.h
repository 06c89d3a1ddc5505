/* The private directory of one node's service below /dev/shm: mode 0700, named
 * crystal-UID-random, locked (flock) while its owner lives. It holds the board and the
 * sockets between the ranks of the node.
 */
#ifndef CRYSTAL_NODE_DIRECTORY_H
#define CRYSTAL_NODE_DIRECTORY_H

#include "runtime/error.h"

struct crystal_node_directory {
    char path[64];
    int lock_fd; /* -1: none */
};

/* Makes it, after removing those of this user whose owner was killed. */
int crystal_node_directory_create(struct crystal_node_directory *ret,
                                  struct crystal_error *err);
/* Removes it with the files in it. Fine on one that was never made (lock_fd -1). */
void crystal_node_directory_remove(struct crystal_node_directory *directory);

#endif
