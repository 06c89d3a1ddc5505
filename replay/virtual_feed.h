/* Messages into a run of virtual ranks whose other end is another process. They travel
 * over a UNIX stream socket BOARD_DIRECTORY/feed.LRANK, on which the receiving process
 * listens; a thread of its own there puts them into the delay lines. From another node
 * they come over TCP: the sender dials the receiver's agent (node_links.h), which hands
 * the connection on through that socket (crystal_feed_pass).
 *
 *   offset bytes what
 *        0     4 0x46595243 ("CRYF"): of a ring, into the run behind the sender;
 *                0x54595243 ("CRYT"): of a tree, what the sender gave to the virtual
 *                rank between the two (virtual_tree.h)
 *        4     4 channel
 *        8     8 commHash of the communicator
 *       16     8 operation (its number on the board)
 *       24     8 index of the message on its channel; of a tree: on its connection
 *       32     8 messages of the operation on the channel (connection) that will come
 *       40     8 when its first byte left the sender's NIC (ns of node 0's clock)
 *       48     8 bytes of the message
 *       56     4 crank of the sender
 *       60     4 1: the bytes follow, 0: only the time matters
 * Byte order of the host. A connection that is handed on comes with a message of 64
 * bytes that are zero behind the magic 0x50595243 ("CRYP").
 */
#ifndef CRYSTAL_VIRTUAL_FEED_H
#define CRYSTAL_VIRTUAL_FEED_H

#include "replay/feed_socket.h"
#include "runtime/error.h"

#include <stdint.h>

int crystal_feed_message_check(const struct crystal_feed_message *message,
                               struct crystal_error *err);

struct crystal_net_module;

/* Starts listening and the thread, once per process; with the registry's lock held. */
int crystal_feed_listen(struct crystal_net_module *module, struct crystal_error *err);

/* A stream socket to lrank's feed, here or on another node, or -EAGAIN while nobody
 * listens there yet. */
int crystal_feed_connect(const struct crystal_net_module *module, uint32_t lrank,
                         struct crystal_error *err);

/* What a reader keeps of one connection; the bytes of a stream in any pieces. */
struct crystal_feed_reader {
    struct crystal_feed_message head;
    uint32_t head_got;
    unsigned char *data;
    uint64_t data_got;
};
/* Where the next bytes go and how many; 0 = a message is complete. Allocates its data.
 * Negative errno where the stream is broken. */
int64_t crystal_feed_want(struct crystal_feed_reader *reader, void **ret_to,
                          struct crystal_error *err);
void crystal_feed_got(struct crystal_feed_reader *reader, uint64_t bytes);
/* The complete message's data moves to the caller (NULL where it has none). */
void *crystal_feed_take(struct crystal_feed_reader *reader,
                        struct crystal_feed_message *ret_head);
void crystal_feed_reader_fini(struct crystal_feed_reader *reader);

#endif
