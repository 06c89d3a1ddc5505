/* Capture's exchange of data between live ranks: communicators, collectives, sends and
 * receives, and the sentences for what can never complete.
 *
 * A collective completes when every live member has deposited its part; a member that
 * is not live contributes what its representative deposited. As the root
 *   of a broadcast  the buffer of its representative before the call,
 *   of a scatter    what its representative scattered last on this communicator.
 * Sends are buffered; receives take messages in order per communicator, source and
 * destination. A receive from a rank that is not live takes what its representative
 * sent to the receiver; where these two are one rank, what it sent to the rank that is
 * as many replicas away as the receiver is from the sender (exchange_p2p.c). Knows
 * nothing of sockets; one thread.
 */
#ifndef CRYSTAL_EXCHANGE_H
#define CRYSTAL_EXCHANGE_H

#include "runtime/blob.h"
#include "runtime/error.h"
#include "runtime/layout.h"
#include "runtime/message.h"

#include <stddef.h>
#include <stdint.h>

struct crystal_exchange;

struct crystal_exchange_hooks {
    void *context;
    /* Answers COMM_INIT. members by crank. first: the communicator's first answer. */
    void (*comm_ready)(void *context, uint32_t lrank, uint32_t request, uint32_t comm,
                       const char *name);
    /* A communicator is complete; once. */
    void (*comm_made)(void *context, const char *name, const uint32_t *members,
                      uint32_t nranks);
    /* Where in the program of lrank an address is, for sentences; NULL, or a negative
     * value: it is told as a number. */
    int (*site)(void *context, uint32_t lrank, uint64_t address, char *text,
                size_t text_bytes);
    /* Something that the user should know once; NULL = nobody listens. */
    void (*notice)(void *context, const char *text);
    /* Answers OPS: one slice per operation. The hook takes what references it needs. */
    void (*result)(void *context, uint32_t lrank, uint32_t request,
                   const struct crystal_slice *results, uint32_t count);
};

/* layout and hooks' context are borrowed. NULL = out of memory. */
struct crystal_exchange *
crystal_exchange_create(const struct crystal_layout *layout,
                        const struct crystal_exchange_hooks *hooks);
void crystal_exchange_destroy(struct crystal_exchange *x);

/* The layout's only live rank runs by itself: whatever others contribute is injected,
 * see exchange_inject.c, by the rules of the layout. inject is borrowed until destroy.
 * Before the first join. */
struct crystal_inject;
void crystal_exchange_inject(struct crystal_exchange *x,
                             const struct crystal_inject *inject);

/* Tells that the id belongs to name, the store key under which it stands. members by
 * crank, NULL where they are not known: each member's own rank then counts, and all of
 * them must be live. */
int crystal_exchange_learn(struct crystal_exchange *x, const uint8_t *id,
                           const char *name, const uint32_t *members, uint32_t nranks,
                           struct crystal_error *err);

/* 1 where learn was told of the id, or a rank has asked for it. */
int crystal_exchange_knows(const struct crystal_exchange *x, const uint8_t *id);

/* The calls of a rank. A negative value with its sentence ends the stage. */
int crystal_exchange_join(struct crystal_exchange *x, uint32_t lrank);
int crystal_exchange_comm_init(struct crystal_exchange *x, uint32_t lrank,
                               uint32_t request,
                               const struct crystal_msg_comm_init *init,
                               struct crystal_error *err);
/* body: of an OPS message, a reference is taken. */
int crystal_exchange_ops(struct crystal_exchange *x, uint32_t lrank, uint32_t request,
                         struct crystal_blob *body, struct crystal_error *err);
/* The rank can do nothing before the answer to request. */
void crystal_exchange_waiting(struct crystal_exchange *x, uint32_t lrank,
                              uint32_t request);
/* The rank has ended and contributes nothing any more. */
void crystal_exchange_leave(struct crystal_exchange *x, uint32_t lrank);

enum crystal_exchange_state {
    CRYSTAL_EXCHANGE_ABSENT = 0, /* a live rank that has not joined */
    CRYSTAL_EXCHANGE_RUNS,
    CRYSTAL_EXCHANGE_WAITS, /* it can do nothing before others have done something */
    CRYSTAL_EXCHANGE_LEFT
};
enum crystal_exchange_state crystal_exchange_state(const struct crystal_exchange *x,
                                                   uint32_t lrank);
/* Calls fn with a sentence for each pair of live ranks with messages that were sent and
 * not received. */
void crystal_exchange_each_unreceived(const struct crystal_exchange *x,
                                      void (*fn)(void *context, const char *text),
                                      void *context);
/* What a rank is doing, for sentences: "waits in all-reduce 3 of
 * '/default_pg/0//cpu//0' (called at 0x1234)", "computes after ...". */
void crystal_exchange_describe(const struct crystal_exchange *x, uint32_t lrank,
                               char *text, size_t text_bytes);

#endif
