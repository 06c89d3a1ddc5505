/* What the files behind park_queue.h share: the queue's state under its one lock, the
 * items in it, and what stands in streams. Include park_queue.h instead.
 */
#ifndef CRYSTAL_PARK_QUEUE_STATE_H
#define CRYSTAL_PARK_QUEUE_STATE_H

#include "capture/park_queue.h"

#include <pthread.h>

struct cuda_event;
struct cuda_stage;

#define PARK_POLL_MIN_NS 200000L
#define PARK_POLL_MAX_NS 2000000L
#define PARK_STAGED_NS   50000L

enum park_item_state {
    ITEM_HELD,
    ITEM_STAGED, /* device memory: on its way to host memory (capture/cuda_stage.h) */
    ITEM_POSTED,
    ITEM_ENDED
};

/* One deposit: the operations of a call or a group. */
struct park_item {
    struct park_item *previous, *next; /* of those under way, in order of issue */
    uint32_t refs;                     /* list, stream entries, waiting threads */
    enum park_item_state state;
    int is_waited; /* a thread is in crystal_client_wait for it */
    int result;    /* ncclResult_t once ended */
    uint32_t ticket;
    struct cuda_stage *stage; /* owned; NULL: nothing of it is on a device */
    uint32_t count;
    struct park_op ops[];
};

/* What stands in a stream: an item, or another stream's mark to wait for. On a device,
 * what the program does with events behind such: a record (no mark), or a wait. */
struct park_entry {
    struct park_entry *next;
    struct park_item *item; /* NULL: mark or event */
    struct park_mark mark;
    struct cuda_event *event; /* a reference; NULL: none */
    uint64_t generation;      /* of the event at that call */
};

struct park_stream {
    uint32_t refs; /* handle, marks */
    int has_index;
    uint16_t index;
    int advancing;   /* guards against going round in circles */
    int result;      /* ncclResult_t of the first failure before `ended` */
    uint64_t issued; /* entries so far */
    uint64_t ended;  /* of these, from the front */
    struct park_entry *first, **last;
    /* of a device only */
    int is_device;
    int gpu;       /* as CUDA counts them */
    void *handle;  /* cudaStream_t */
    int is_forked; /* it has waited for an event since its last operation */
    int has_work;  /* the program has put something else into it */
    int is_gone;   /* the program has destroyed it */
};

extern struct park_queue {
    pthread_mutex_t lock; /* of everything in these files */
    pthread_cond_t changed;
    struct crystal_client *client;
    struct crystal_payload_writer *payload;
    struct park_item *first, *last;
    uint32_t held_count;           /* items that are not posted */
    _Atomic uint32_t device_count; /* items with a stage; relaxed */
    int has_worker;
    uint64_t issue_count;
} park_queue;

void park_queue_lock(void);
void park_queue_unlock(void);

/* The lock is held by whoever calls what follows. */

/* park_item.c */
void park_item_unref(struct park_item *item);
void park_comm_unref(struct ncclComm *comm);
/* The earlier item that holds this one back, NULL: none. */
struct park_item *park_item_holder(struct park_item *item);
/* Prepares one with operations on a device; -ENOMEM. */
int park_item_stage(struct park_item *item);
/* Posts it, or what comes before that, as far as can be now; a failure ends it. */
void park_item_go_on(struct park_item *item);
/* Hands item to the coordinator; a failure ends it. */
void park_item_post(struct park_item *item);
/* It is over, with a negative errno where it failed, for the reason in err. */
void park_item_end(struct park_item *item, int code, const struct crystal_error *err);
/* Ends what has ended meanwhile and posts what may be, without blocking. */
void park_items_reap(void);
/* Until something changes, at most ns. The lock is not held meanwhile. */
void park_items_pause(long ns);
/* Starts the thread that looks at held items, where it does not run. */
void park_items_watch(void);
/* Blocks until it has ended; the lock is not held meanwhile. */
void park_item_wait(struct park_item *item);

/* park_mark.c */
void park_stream_advance(struct park_stream *stream);
/* Blocks until nothing stands in the stream; the lock is not held meanwhile. The
 * ncclResult_t of its first failure. */
int park_stream_drain(struct park_stream *stream);
/* The same for what stands before a mark, which may be set anew meanwhile. */
int park_mark_wait(const struct park_mark *mark);
int park_mark_ended(const struct park_mark *mark);
void park_mark_set(struct park_mark *mark, struct park_stream *stream);
void park_mark_copy(struct park_mark *mark, const struct park_mark *other);
void park_mark_drop(struct park_mark *mark);
/* -ENOMEM. item or mark, the other NULL. */
int park_stream_append(struct park_stream *stream, struct park_item *item,
                       const struct park_mark *mark);
/* The same of a device's event: its record, or (mark not NULL) the wait for it. */
int park_stream_append_event(struct park_stream *stream, struct cuda_event *event,
                             uint64_t generation, const struct park_mark *mark);

/* park_blocked.c */
/* Asked by a thread that waits in the client: does the whole rank wait? The only
 * function here that is called without the lock. */
int park_is_blocked(void);
/* A query of that mark has said "not yet". */
void park_polled(const struct park_mark *mark);

#endif
