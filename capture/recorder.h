/* What libcrystal-nccl.so writes down: the trace of this process and its counters.
 *
 * One recorder per process, made at the first call of any entry point. Appending takes
 * one short lock and copies 32 bytes; nothing is allocated. The recorder knows nothing
 * of where operations go: capture/park.c hands them to the coordinator, capture/pass.c
 * to another library.
 */
#ifndef CRYSTAL_RECORDER_H
#define CRYSTAL_RECORDER_H

#include "capture/keep.h"
#include "runtime/error.h"
#include "runtime/nccl_abi.h"
#include "runtime/payload.h"
#include "runtime/trace.h"

#include <pthread.h>
#include <stdint.h>

/* One communication call as the program made it. */
struct recorder_call {
    uint8_t func;  /* enum crystal_func */
    uint8_t dtype; /* ncclDataType_t, checked */
    uint8_t flags; /* CRYSTAL_OP_FLAG_* */
    uint16_t stream;
    uint16_t comm;
    uint32_t redop; /* 0..4, 5 = pre-multiplied sum */
    uint32_t peer;  /* root or peer crank */
    uint64_t count; /* elements as in the API call */
};

#define RECORDER_FLUSHES 2 /* at most so many hooks */

struct recorder {
    pthread_mutex_t lock;                   /* all fields below but the constant ones */
    struct crystal_trace_writer *trace;     /* NULL: not recording */
    struct crystal_payload_writer *payload; /* capture only; constant; own lock */
    uint64_t start_ns;                      /* of the trace; constant */
    uint64_t hint_count, range_count;       /* of HINT records: STEP, RANGE */
    uint64_t issued_count; /* records but DONE and WORK, which other threads append */
    uint32_t event_count;
    uint32_t stream_count; /* the null stream included */
    uint32_t comm_count;
    struct keep keep; /* which contributions */
    /* who wants to know, see recorder_hooks; NULL: nobody */
    void (*on_issue)(uint64_t record);
    void (*on_flush[RECORDER_FLUSHES])(int is_last);
    /* constant after start */
    uint32_t lrank;
    uint32_t iterations;                   /* 0: not given */
    int is_replica;                        /* this rank may stand for others */
    char broken[CRYSTAL_ERROR_TEXT_BYTES]; /* why there is no trace; empty: fine */
};

/* The process's recorder, started on the first call; never NULL. */
struct recorder *recorder_get(void);

/* From now on: on_issue (NULL: as before) is called with the index of each record that
 * the program's threads issue, the lock held; on_flush, beside those given before,
 * about every 200 ms from the recorder's own thread and, is_last, before the end, the
 * lock not held, so that what is known late can be appended. */
void recorder_hooks(struct recorder *r, void (*on_issue)(uint64_t record),
                    void (*on_flush)(int is_last));

/* CLOCK_MONOTONIC ns since the trace began. */
uint64_t recorder_now_ns(const struct recorder *r);

/* Appends *op; returns its record index. */
uint64_t recorder_append(struct recorder *r, const struct crystal_op *op);

/* Next index of a stream (0xffff for all beyond what a record can name) or event. */
uint16_t recorder_stream_next(struct recorder *r);
uint32_t recorder_event_next(struct recorder *r);

/* Writes COMM with its name; sets *ret_comm. -ENOSPC after 65535 communicators. */
int recorder_comm(struct recorder *r, const char *name, uint32_t nranks, uint32_t crank,
                  uint16_t *ret_comm, struct crystal_error *err);
void recorder_comm_free(struct recorder *r, uint16_t comm);
/* Writes COLL, SEND or RECV; returns the record index. Where the send_bytes that the
 * call contributes are to be kept, room is reserved in the payload file, PAYLOAD is
 * written behind, and *ret_payload_bytes and its offset are set; else it is 0. */
uint64_t recorder_call(struct recorder *r, const struct recorder_call *call,
                       uint64_t send_bytes, uint64_t *ret_payload_bytes,
                       uint64_t *ret_payload_offset);
/* The same without payload, at t_ns, with r->lock held. */
uint64_t recorder_call_locked(struct recorder *r, const struct recorder_call *call,
                              uint64_t t_ns);
/* ncclGroupStart and the outermost ncclGroupEnd. */
void recorder_group(struct recorder *r, int start);
void recorder_event(struct recorder *r, enum crystal_op_kind kind, uint32_t event,
                    uint16_t stream);
/* The host waited from from_ns until now; event is ignored for SYNC, stream for WAIT.
 */
void recorder_waited(struct recorder *r, enum crystal_op_kind kind, uint32_t event,
                     uint16_t stream, uint64_t from_ns);
/* Several at once, under one lock. */
void recorder_append_all(struct recorder *r, const struct crystal_op *ops,
                         uint32_t count);
void recorder_alloc(struct recorder *r, uint64_t bytes, int is_free);
/* Writes HINT, flushes; returns how many iterations have ended by such hints. */
uint64_t recorder_hint(struct recorder *r, enum crystal_hint hint);
/* END record, flush and close. Later calls record nothing. Idempotent. */
void recorder_finish(struct recorder *r, int stopped);

/* Bytes that a member contributes to (send) and gets from (recv) a call; crank is its
 * own. -EOVERFLOW where they do not fit. */
int recorder_call_bytes(const struct recorder_call *call, uint32_t nranks,
                        uint32_t crank, uint64_t *ret_send_bytes,
                        uint64_t *ret_recv_bytes);

/* The sentence of the last failed call of this process, for ncclGetLastError. */
void recorder_fail(const struct crystal_error *err);
const char *recorder_last_error(void);

/* Polling an event: a row of queries that ends in "done" is one wait of the host. Lives
 * in the event; zero it when the event is recorded. */
struct recorder_poll {
    uint64_t first_ns;     /* of the first query that said "not yet" */
    uint64_t issued_count; /* at that time; a record since then ends the row */
    int waited;            /* this mark was waited for already */
};
void recorder_polled(struct recorder *r, struct recorder_poll *poll, int is_done,
                     enum crystal_op_kind kind, uint32_t event, uint16_t stream);

#endif
