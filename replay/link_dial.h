/* Connecting to the service of a sandbox node (node_links.h): its address and the first
 * words.
 */
#ifndef CRYSTAL_LINK_DIAL_H
#define CRYSTAL_LINK_DIAL_H

#include "runtime/error.h"
#include "runtime/message.h"

#include <stdint.h>
#include <sys/socket.h>

/* Roles of the HELLO, next to enum crystal_role. */
enum crystal_link_role {
    CRYSTAL_LINK_NODE = 16,      /* lrank: the node that connects */
    CRYSTAL_LINK_BOOTSTRAP = 17, /* lrank: the low 24 bits of the address 127.x.y.z of a
                                    virtual rank that was dialled */
    CRYSTAL_LINK_FEED = 18,      /* lrank: of the sandbox rank that it is for */
    CRYSTAL_LINK_WIRE = 19       /* to an assistant (assist_message.h); lrank: of the
                                    sandbox rank that dials */
};

/* A blocking connection to the service of a node behind the HELLO. *ret_fd is the
 * caller's; what it sends fails where the node takes nothing for 10 s. */
int crystal_link_dial(const struct crystal_msg_node *node,
                      const uint8_t token[CRYSTAL_TOKEN_BYTES],
                      enum crystal_link_role role, uint32_t lrank, int *ret_fd,
                      struct crystal_error *err);
/* The service's address; returns its size. */
socklen_t crystal_link_address(const struct crystal_msg_node *node,
                               struct sockaddr_storage *ret);
/* The HELLO's bytes, for whoever dials by itself. */
#define CRYSTAL_LINK_HELLO_BYTES \
    (sizeof(struct crystal_message_head) + sizeof(struct crystal_msg_hello))
void crystal_link_hello(const uint8_t token[CRYSTAL_TOKEN_BYTES],
                        enum crystal_link_role role, uint32_t lrank,
                        uint8_t ret[CRYSTAL_LINK_HELLO_BYTES]);

/* Messages leave at once; a peer that is dead or takes nothing is noticed. */
void crystal_link_socket(int fd);

#endif
