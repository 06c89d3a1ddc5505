/* See pass_done.h. A ring between issuing threads and the lane's thread, without a
 * lock: a note's number is claimed, the note filled, and its `ready` set to its number
 * + 1. The lane's thread sleeps on a futex only when nothing is ready; the issuing
 * thread makes a system call only to wake it.
 */
#include "config.h"

#include "capture/pass_done.h"

#include "capture/recorder.h"
#include "runtime/thread.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NOTES  1024 /* under way per stream; a power of two */
#define MARGIN 64   /* more threads do not issue on one stream at once */
#define BATCH  64   /* DONE records per turn at the recorder's lock */
#define LOOKS                                                               \
    100 /* before sleeping, a few us: less than falling asleep costs, and a \
           burst of calls finds the thread awake */

#define CACHE_LINE 64 /* what two threads write stays apart */

struct note {
    _Alignas(CACHE_LINE) _Atomic uint32_t ready; /* number + 1; release and acquire */
    int last;
    crystal_event_t event;  /* owned by the ring, made once */
    crystal_event_t before; /* the same; NULL: events have no times */
    int has_begun;          /* before was recorded */
    uint64_t record;
    uint64_t issue_ns;
};

/* Its padding keeps apart what different threads write. */
struct pass_lane { /* NOLINT(clang-analyzer-optin.performance.Padding) */
    const struct pass_done_library *library;
    ncclStream_t stream;
    /* issuing threads */
    _Alignas(CACHE_LINE) _Atomic uint32_t claimed; /* numbers given out, without end */
    _Atomic uint32_t taken_seen;                   /* an old value of taken; relaxed */
    _Atomic uint64_t dropped; /* operations that get no DONE record */
    /* both */
    _Alignas(CACHE_LINE) _Atomic uint32_t is_asleep; /* the futex; sequentially
                                                        consistent with `ready` */
    _Alignas(CACHE_LINE) _Atomic uint32_t taken;     /* numbers settled */
    /* the lane's thread only */
    uint64_t ended_ns; /* of the last operation */
    uint32_t done_count;
    struct crystal_op done[BATCH];
    struct note notes[NOTES];
};

static void flush_done(struct pass_lane *lane)
{
    recorder_append_all(recorder_get(), lane->done, lane->done_count);
    lane->done_count = 0;
}

/* When work whose end was just seen began. */
static uint64_t begin_of(struct pass_lane *lane, uint32_t from, uint32_t to,
                         uint64_t end_ns)
{
    const struct note *first = &lane->notes[from % NOTES];
    uint64_t begin_ns =
        first->issue_ns > lane->ended_ns ? first->issue_ns : lane->ended_ns;
    uint64_t took_ns;

    if (first->has_begun &&
        lane->library->event_elapsed(first->before, lane->notes[to % NOTES].event,
                                     &took_ns) == ncclSuccess &&
        took_ns <= end_ns)
        begin_ns = end_ns - took_ns;
    return begin_ns;
}

/* Waits for the event of note `to` and writes what from .. to were. */
static void settle(struct pass_lane *lane, uint32_t from, uint32_t to)
{
    ncclResult_t result =
        lane->library->event_synchronize(lane->notes[to % NOTES].event);
    uint64_t end_ns = recorder_now_ns(recorder_get());
    uint64_t begin_ns = result == ncclSuccess ? begin_of(lane, from, to, end_ns) : 0;

    for (uint32_t i = from; i != to + 1; i++) {
        struct note *note = &lane->notes[i % NOTES];

        note->has_begun = 0;
        if (result != ncclSuccess || !note->record)
            continue; /* what failed has no duration */
        lane->done[lane->done_count++] =
            (struct crystal_op){.kind = CRYSTAL_OP_DONE,
                                .peer = (uint32_t)note->record,
                                .value = begin_ns,
                                .t_ns = end_ns};
        if (lane->done_count == BATCH)
            flush_done(lane);
    }
    lane->ended_ns = end_ns;
}

static int is_ready(struct pass_lane *lane, uint32_t number)
{
    return atomic_load(&lane->notes[number % NOTES].ready) == number + 1;
}

/* Sleeps until note `number` is ready. */
static void sleep_until_ready(struct pass_lane *lane, uint32_t number)
{
    for (;;) {
        atomic_store(&lane->is_asleep, 1);
        if (is_ready(lane, number))
            break;
        (void)syscall(SYS_futex, &lane->is_asleep, FUTEX_WAIT_PRIVATE, 1, NULL, NULL,
                      0); /* EAGAIN and EINTR: look again */
    }
    atomic_store(&lane->is_asleep, 0);
}

/* A tenth of a microsecond or so, off the caches. */
static void relax(void)
{
    for (int i = 0; i < 10; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("isb" ::: "memory");
#endif
    }
}

static void *lane_main(void *argument)
{
    struct pass_lane *lane = argument;
    uint32_t from = 0, to = 0;

    for (;;) {
        for (int i = 0; i < LOOKS && !is_ready(lane, to); i++)
            relax();
        if (!is_ready(lane, to)) {
            flush_done(lane);
            sleep_until_ready(lane, to);
        }
        if (lane->notes[to % NOTES].last) {
            settle(lane, from, to);
            from = to + 1;
            atomic_store_explicit(&lane->taken, from, memory_order_release);
        }
        to++;
    }
    return NULL;
}

static void lane_free(struct pass_lane *lane)
{
    for (unsigned i = 0; i < NOTES && lane->notes[i].event; i++) {
        (void)lane->library->event_destroy(lane->notes[i].event); /* never recorded */
        if (lane->notes[i].before)
            (void)lane->library->event_destroy(lane->notes[i].before);
    }
    free(lane);
}

static int make_events(const struct pass_done_library *library, struct note *note)
{
    if (library->event_create(&note->event) != ncclSuccess) {
        note->event = NULL;
        return -ENOMEM;
    }
    if (library->event_elapsed && library->event_create(&note->before) != ncclSuccess) {
        note->before = NULL;
        return -ENOMEM;
    }
    return 0;
}

struct pass_lane *pass_lane_create(const struct pass_done_library *library,
                                   ncclStream_t stream, struct crystal_error *err)
{
    struct pass_lane *lane = aligned_alloc(CACHE_LINE, sizeof *lane);
    int code = 0;

    if (!lane) {
        (void)crystal_error_set(err, ENOMEM, "recorder: out of memory");
        return NULL;
    }
    memset(lane, 0, sizeof *lane);
    lane->library = library;
    lane->stream = stream;
    for (unsigned i = 0; i < NOTES; i++)
        if (make_events(library, &lane->notes[i])) {
            (void)crystal_error_set(err, ENOMEM, "recorder: cannot create an event");
            lane_free(lane);
            return NULL;
        }
    code = crystal_thread_start(NULL, lane_main, lane);
    if (code) {
        (void)crystal_error_set(err, code, "recorder: cannot start a thread");
        lane_free(lane);
        return NULL;
    }
    return lane;
}

/* Two threads that issue on one stream at once may get each other's. */
void pass_lane_begin(struct pass_lane *lane)
{
    uint32_t claimed = atomic_load_explicit(&lane->claimed, memory_order_relaxed);
    struct note *note = &lane->notes[claimed % NOTES];

    if (!note->before)
        return;
    if (claimed - atomic_load_explicit(&lane->taken, memory_order_acquire) >=
        NOTES - MARGIN)
        return; /* the note is in use; this one will be dropped */
    note->has_begun =
        lane->library->event_record(note->before, lane->stream) == ncclSuccess;
}

void pass_lane_note(struct pass_lane *lane, uint64_t record, uint64_t issue_ns,
                    int last)
{
    uint32_t claimed = atomic_load_explicit(&lane->claimed, memory_order_relaxed);
    uint32_t taken = atomic_load_explicit(&lane->taken_seen, memory_order_relaxed);
    uint32_t room = NOTES - (last ? MARGIN : 2 * MARGIN);
    struct note *note;

    if (claimed - taken >= room) {
        taken = atomic_load_explicit(&lane->taken, memory_order_acquire);
        atomic_store_explicit(&lane->taken_seen, taken, memory_order_relaxed);
    }
    if (claimed - taken >= room) {
        atomic_fetch_add_explicit(&lane->dropped, 1, memory_order_relaxed);
        return;
    }
    claimed = atomic_fetch_add_explicit(&lane->claimed, 1, memory_order_relaxed);
    note = &lane->notes[claimed % NOTES];
    note->record = record;
    note->issue_ns = issue_ns;
    note->last = last;
    if (last && lane->library->event_record(note->event, lane->stream) != ncclSuccess)
        note->record = 0; /* the program learns of it from its own waits */
    atomic_store(&note->ready, claimed + 1);
    if (atomic_load(&lane->is_asleep) && atomic_exchange(&lane->is_asleep, 0))
        (void)syscall(SYS_futex, &lane->is_asleep, FUTEX_WAKE_PRIVATE, 1, NULL, NULL,
                      0);
}

uint64_t pass_lane_drain(struct pass_lane *lane, int timeout_ms)
{
    const struct timespec pause = {0, 1000000};

    while (timeout_ms-- > 0 &&
           (atomic_load(&lane->taken) != atomic_load(&lane->claimed) ||
            !atomic_load(&lane->is_asleep)))
        (void)nanosleep(&pause, NULL);
    return atomic_load(&lane->dropped);
}
