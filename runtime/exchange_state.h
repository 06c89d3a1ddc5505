/* The state behind exchange.h, shared by the exchange*.c files only. */
#ifndef CRYSTAL_EXCHANGE_STATE_H
#define CRYSTAL_EXCHANGE_STATE_H

#include "runtime/collective.h"
#include "runtime/exchange.h"
#include "runtime/replica.h"

#define NO_RANK      UINT32_MAX
#define QUEUE_CHAINS 64 /* a power of two */

/* A live rank's place in a communicator. */
struct member {
    uint32_t lrank, crank;
    uint32_t times;   /* members that it stands for, itself included */
    uint32_t request; /* of its COMM_INIT */
    uint8_t joined;
    uint64_t next_seq;              /* of its next collective */
    struct crystal_slice scattered; /* its last scatter as root; owns a reference */
};

struct op {
    struct ticket *ticket;
    struct crystal_msg_op head;
    struct comm *comm;
    uint32_t slot; /* of the depositing member in comm->live */
    uint8_t done;
    uint64_t seq;                /* collectives: number within the communicator */
    struct crystal_slice send;   /* borrows the ticket's body */
    struct crystal_slice result; /* owns a reference */
    struct queue *queue;         /* receives: where its message comes */
    struct op *next;             /* receives: later ones of the same consumer */
};

/* One OPS message. Owned by its rank's list until all its operations are done. */
struct ticket {
    struct ticket *next;
    uint32_t lrank, request;
    struct crystal_blob *body;
    uint32_t pending; /* operations not done */
    uint32_t count;
    struct crystal_slice *results; /* room for count; behind ops */
    struct op ops[];
};

struct coll {
    struct coll *next;
    uint64_t seq;
    uint32_t count;       /* of deposits */
    struct op *first;     /* to which the others are compared */
    struct op **deposits; /* by slot */
};

struct message {
    struct message *next;
    struct crystal_slice data; /* owns a reference */
    uint64_t call_site;
};

/* Who takes the messages of a queue: the receiver asking for the sender itself, or for
 * a rank that the sender stands for. Each takes all messages in order. */
struct consumer {
    struct consumer *next;
    uint32_t src_crank;  /* for whose messages it asks */
    uint64_t next_index; /* of the message that it takes next */
    struct op *first, *last;
};

/* What one live member sends to another, live or not. */
struct queue {
    struct queue *next;
    uint32_t src_slot, dst_crank;
    uint8_t is_closed;    /* nobody asked for them: messages are dropped */
    uint32_t count;       /* of messages */
    uint64_t first_index; /* of messages */
    struct message *messages, **end;
    struct consumer *consumers;
};

struct comm {
    char *name; /* owned, as the arrays */
    uint8_t id[NCCL_UNIQUE_ID_BYTES];
    uint32_t index; /* in the exchange's table: the number in messages */
    uint32_t nranks;
    uint32_t *members; /* lranks by crank; NO_RANK where not known yet */
    uint32_t *part_of; /* by crank: slot of the live member that stands for it */
    struct member *live;
    uint32_t live_count, live_capacity, joined_count;
    uint8_t named_only;    /* nranks comes with the first member */
    uint8_t members_known; /* from the store; else from who joins */
    uint8_t ready;
    uint64_t *received; /* with injection: messages by source crank; owned */
    uint8_t root_told;  /* the notice about roots that are not live */
    struct crystal_replica_span span; /* of members */
    struct coll *first_coll;          /* ascending by seq */
    struct queue *queues[QUEUE_CHAINS];
};

struct rank {
    uint8_t is_live, joined, left, has_last;
    uint32_t blocked_request; /* 0 = it does not say that it waits */
    struct comm *joining;     /* COMM_INIT without answer */
    struct ticket *tickets;   /* oldest first */
    struct crystal_msg_op last;
};

struct crystal_exchange {
    const struct crystal_layout *layout;
    struct crystal_exchange_hooks hooks;
    struct crystal_replica replica;
    const struct crystal_inject *inject; /* borrowed; NULL: no injection */
    int inject_told;
    struct rank *ranks; /* by lrank */
    struct comm **comms;
    uint32_t comm_count;
};

/* Takes the reference in result. The operation's ticket may be gone afterwards. */
void crystal_exchange_done(struct crystal_exchange *x, struct op *op,
                           struct crystal_slice result);

#define CALL_SITE_BYTES 160
/* Where in the program of lrank an address is: text, which has CALL_SITE_BYTES. */
const char *crystal_exchange_site(const struct crystal_exchange *x, uint32_t lrank,
                                  uint64_t address, char *text);

/* NULL where nothing is outstanding under that number. */
struct ticket *crystal_exchange_ticket(const struct rank *r, uint32_t request);

/* exchange_comm.c. member: NULL where lrank is none that runs. */
void crystal_exchange_comm_free(struct comm *m);
struct member *crystal_exchange_member(const struct comm *m, uint32_t lrank);

/* exchange_coll.c: a deposit, which may complete its collective. */
int crystal_exchange_coll_deposit(struct crystal_exchange *x, struct op *op,
                                  struct crystal_error *err);
void crystal_exchange_coll_fini(struct comm *m);

/* With injection: the parts of all members by crank (each with a reference), and a
 * receive from a rank that is not live. own: the live rank's. */
int crystal_exchange_inject_parts(struct crystal_exchange *x, struct comm *m,
                                  const struct op *own, struct crystal_part *parts,
                                  struct crystal_error *err);
int crystal_exchange_inject_receive(struct crystal_exchange *x, struct op *op,
                                    struct crystal_error *err);

int crystal_exchange_p2p_announce(struct crystal_exchange *x, struct op *op,
                                  struct crystal_error *err);
int crystal_exchange_p2p_send(struct crystal_exchange *x, struct op *op,
                              struct crystal_error *err);
int crystal_exchange_p2p_match(struct crystal_exchange *x, struct queue *q,
                               struct crystal_error *err);
void crystal_exchange_p2p_fini(struct comm *m);

#endif
