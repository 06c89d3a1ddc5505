/* A list of every message that NCCL posts, for comparing runs: CRYSTAL_MESSAGES names a
 * file, and PATH.LRANK gets one line for each isend and irecv of this process,
 *   send|receive COMM PEER CHANNEL FUNC SEQ STEP BYTES
 * COMM counts this process's communicators, PEER is a crank, FUNC and SEQ are those of
 * the operation (0 where there is none), BYTES is what is sent or the room to receive.
 * Lines of one connection are in their order. Costs time; unset: nothing. Thread-safe.
 */
#ifndef CRYSTAL_NET_MESSAGES_H
#define CRYSTAL_NET_MESSAGES_H

#include "runtime/error.h"

#include <stdint.h>

struct crystal_messages;
struct crystal_net_end;
struct crystal_net_request;

/* NULL with err set. */
struct crystal_messages *crystal_messages_create(const char *path, uint32_t lrank,
                                                 struct crystal_error *err);
void crystal_messages_add(struct crystal_messages *messages,
                          const struct crystal_net_end *end,
                          const struct crystal_net_request *request);
/* What was added is in the file; messages may be NULL. */
void crystal_messages_flush(struct crystal_messages *messages);

#endif
