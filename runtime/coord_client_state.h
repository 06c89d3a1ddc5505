/* What the parts of a coordinator's client share; include coord_client.h instead. */
#ifndef CRYSTAL_COORD_CLIENT_STATE_H
#define CRYSTAL_COORD_CLIENT_STATE_H

#include "runtime/coord_client.h"
#include "runtime/error.h"
#include "runtime/message.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define CRYSTAL_PENDING_CHAINS 64 /* a power of two */

struct pending_recv {
    void *recv;
    uint64_t bytes;
};

/* One expected answer; owned by the table, or by its waiter once it is taken out. */
struct pending {
    struct pending *next;
    uint32_t request;
    uint16_t type; /* of the answer */
    int done;
    struct pending_recv *recvs; /* RESULT: where the results go */
    uint32_t recv_count;
    uint8_t *answer; /* other types: the body */
    size_t answer_bytes;
};

struct crystal_client {
    int fd;
    pthread_t reader;
    pthread_mutex_t send_lock; /* one message at a time */
    pthread_mutex_t lock;      /* everything below */
    pthread_cond_t changed;
    uint32_t next_request;
    struct pending *chains[CRYSTAL_PENDING_CHAINS];
    int stopped; /* 0 no, else a positive errno: no call succeeds any more */
    int stopped_well;
    char sentence[CRYSTAL_ERROR_TEXT_BYTES];
    uint32_t lost; /* as in struct crystal_msg_stop */
    crystal_client_comm_id_fn comm_id_fn;
    void *comm_id_context;
    int comm_id_busy;        /* the reader is in comm_id_fn */
    int (*is_blocked)(void); /* constant after the first wait; NULL: always */
};

/* --- coord_pending.c --- */

/* With c->lock held. */
struct pending *crystal_pending_find(struct crystal_client *c, uint32_t request);
void crystal_pending_unlink(struct crystal_client *c, struct pending *gone);
/* Registers an expected answer and gives it a number. Fails once all is stopped. */
int crystal_pending_add(struct crystal_client *c, struct pending *p,
                        struct crystal_error *err);
void crystal_pending_free(struct pending *p); /* NULL is fine */

/* --- coord_client.c --- */

/* Why every call fails now; with c->lock held and c->stopped set. */
int crystal_client_stopped(const struct crystal_client *c, struct crystal_error *err);
/* One message, as it is. A broken connection shows as stopped. */
int crystal_client_send(struct crystal_client *c, unsigned type, uint32_t request,
                        struct iovec *body, size_t body_count,
                        struct crystal_error *err);

/* --- coord_reader.c --- */

/* The reader thread: context is the client. */
void *crystal_client_read(void *context);
/* The sentence of a message that does not fit what was asked. */
int crystal_client_bad_answer(struct crystal_error *err, unsigned type);

#endif
