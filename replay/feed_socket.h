/* The socket of a rank's feed: BOARD_DIRECTORY/feed.LRANK. virtual_feed.h draws the
 * messages.
 */
#ifndef CRYSTAL_FEED_SOCKET_H
#define CRYSTAL_FEED_SOCKET_H

#include "runtime/error.h"

#include <stdint.h>
#include <sys/un.h>

#define CRYSTAL_FEED_MAGIC     0x46595243U
#define CRYSTAL_FEED_TREE      0x54595243U
#define CRYSTAL_FEED_PASSED    0x50595243U
#define CRYSTAL_FEED_BYTES_MAX (64U << 20)

struct crystal_feed_message {
    uint32_t magic;
    uint32_t channel;
    uint64_t comm_id;
    uint64_t seq;
    uint64_t index;
    uint64_t count;
    uint64_t start_ns;
    uint64_t bytes;
    uint32_t crank;
    uint32_t has_bytes;
};
_Static_assert(sizeof(struct crystal_feed_message) == 64, "drawn above");

int crystal_feed_address(const char *board_directory, uint32_t lrank,
                         struct sockaddr_un *ret, struct crystal_error *err);
/* A socket that is connected to a feed of this node; -EAGAIN while nobody listens. */
int crystal_feed_dial(const char *board_directory, uint32_t lrank,
                      struct crystal_error *err);
/* Agent: hands a connection from another node on to a rank of this one. 0: done, fd is
 * closed here; -EAGAIN while the rank does not listen yet. */
int crystal_feed_pass(const char *board_directory, uint32_t lrank, int fd);

#endif
