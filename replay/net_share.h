/* Memory that two processes of a host share for the payload of one connection, sender
 * to receiver: a ring of bytes in which a message lies in one piece. The connection
 * itself carries its header and where it lies (net_tcp.h).
 *
 * A file of mode 0600 in /dev/shm, which the sender makes, and the receiver maps and
 * removes. Each side belongs to one thread at a time. The receiver trusts no place that
 * it is told.
 */
#ifndef CRYSTAL_NET_SHARE_H
#define CRYSTAL_NET_SHARE_H

#include "runtime/error.h"

#include <stdint.h>

#define CRYSTAL_SHARE_BYTES (16U << 20) /* of messages that are on their way */
#define CRYSTAL_SHARE_NAME  24          /* with its end */

struct crystal_share;

/* The sender's side; the name is for the receiver. NULL with err set. */
struct crystal_share *crystal_share_create(char ret_name[CRYSTAL_SHARE_NAME],
                                           struct crystal_error *err);
/* The receiver's side. The name is as it came. NULL with err set. */
struct crystal_share *crystal_share_open(const char name[CRYSTAL_SHARE_NAME],
                                         struct crystal_error *err);
/* The sender may be through before the receiver has opened it: then the file stays for
 * that, unless the receiver is gone. */
void crystal_share_destroy(struct crystal_share *share, int is_peer_gone);

/* Sender: a place for a message of at most CRYSTAL_SHARE_BYTES, behind the ones before;
 * NULL: there is no room until the receiver has taken some. */
unsigned char *crystal_share_place(struct crystal_share *share, uint64_t bytes,
                                   uint64_t *ret_at);
/* Receiver: where a message lies; NULL: nowhere in the ring. */
const unsigned char *crystal_share_at(const struct crystal_share *share, uint64_t at,
                                      uint64_t bytes);
/* Receiver: it and all before it have been taken. */
void crystal_share_taken(struct crystal_share *share, uint64_t at, uint64_t bytes);

#endif
