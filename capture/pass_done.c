/* See pass_done.h. A ring between issuing threads and whoever settles, without a lock
 * for the former: a note's number is claimed, the note filled, and its `ready` set to
 * its number + 1. Notes are settled in their order, by one thread at a time.
 */
#include "config.h"

#include "capture/pass_done.h"

#include "capture/recorder.h"
#include "runtime/clock.h"
#include "runtime/thread.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NOTES  1024 /* under way per stream; a power of two */
#define MARGIN 64   /* more threads do not issue on one stream at once */
#define MANY   512  /* from here on an issuing thread sees to it that */
#define EVERY  64   /* notes are settled, each so many */
#define BATCH  64   /* DONE records per turn at the recorder's lock */
#define LOOKS                                                               \
    100 /* before sleeping, a few us: less than falling asleep costs, and a \
           burst of calls finds the watching thread awake */

#define CACHE_LINE 64 /* what two threads write stays apart */

struct note {
    _Alignas(CACHE_LINE) _Atomic uint32_t ready; /* number + 1; release and acquire */
    int last;
    int has_begun;          /* before was recorded */
    crystal_event_t event;  /* owned by the ring, made once */
    crystal_event_t before; /* the same; NULL: none between which time is told */
    uint64_t record;        /* 0: no end is to be seen */
    uint64_t issue_ns;
    uint64_t seen_ns; /* the watching thread's: the end; 0: it failed */
};

/* Its padding keeps apart what different threads write. */
struct pass_lane { /* NOLINT(clang-analyzer-optin.performance.Padding) */
    const struct pass_done_library *library;
    ncclStream_t stream;
    /* issuing threads */
    _Alignas(CACHE_LINE) _Atomic uint32_t claimed; /* numbers given out, without end */
    _Atomic uint32_t taken_seen;                   /* an old value of taken; relaxed */
    _Atomic uint64_t dropped; /* operations that get no DONE record */
    /* whoever settles */
    _Alignas(CACHE_LINE) pthread_mutex_t settling; /* of the rest, but to read taken */
    _Atomic uint32_t taken;                        /* numbers settled */
    uint64_t ended_ns;                             /* of the last operation */
    uint32_t done_count;
    struct crystal_op done[BATCH];
    /* of a library without times: the watching thread */
    _Alignas(CACHE_LINE) _Atomic uint32_t is_asleep; /* the futex; sequentially
                                                        consistent with `ready` */
    _Atomic uint32_t watched;                        /* numbers whose ends were seen */
    struct note notes[NOTES];
};

static struct note *note_at(struct pass_lane *lane, uint32_t number)
{
    return &lane->notes[number % NOTES];
}

static int is_ready(struct pass_lane *lane, uint32_t number)
{
    return atomic_load(&note_at(lane, number)->ready) == number + 1;
}

/* --- settling --- */

static void flush_done(struct pass_lane *lane)
{
    recorder_append_all(recorder_get(), lane->done, lane->done_count);
    lane->done_count = 0;
}

/* When the event of note `number` was reached, since the trace began; not before it was
 * issued or the one before it ended, as CUDA's times are a little off. ncclInProgress:
 * not yet; another error: it never is. */
static ncclResult_t end_of(struct pass_lane *lane, uint32_t number, uint64_t *ret_ns)
{
    const struct pass_done_library *library = lane->library;
    const struct note *note = note_at(lane, number);
    ncclResult_t result = ncclSuccess;
    uint64_t end_ns = 0, start_ns, least_ns;

    if (!library->event_time &&
        (int32_t)(atomic_load_explicit(&lane->watched, memory_order_acquire) -
                  number) <= 0)
        return ncclInProgress; /* until then the note is in use */
    if (!note->record)
        return ncclInvalidUsage;
    if (library->event_time)
        result = library->event_time(note->event, &end_ns);
    else if (!(end_ns = note->seen_ns))
        result = ncclSystemError;
    least_ns = note->issue_ns > lane->ended_ns ? note->issue_ns : lane->ended_ns;
    start_ns = recorder_get()->start_ns;
    *ret_ns = end_ns > start_ns + least_ns ? end_ns - start_ns : least_ns;
    return result;
}

/* When work that ended at end_ns began. */
static uint64_t begin_of(struct pass_lane *lane, uint32_t from, uint32_t to,
                         uint64_t end_ns)
{
    const struct note *first = note_at(lane, from);
    uint64_t begin_ns =
        first->issue_ns > lane->ended_ns ? first->issue_ns : lane->ended_ns;
    uint64_t took_ns;

    if (first->has_begun &&
        lane->library->event_elapsed(first->before, note_at(lane, to)->event,
                                     &took_ns) == ncclSuccess &&
        took_ns <= end_ns)
        begin_ns = end_ns - took_ns;
    return begin_ns;
}

/* Writes what from .. to were, whose event was reached at end_ns. */
static void write_done(struct pass_lane *lane, uint32_t from, uint32_t to,
                       uint64_t end_ns)
{
    uint64_t begin_ns = begin_of(lane, from, to, end_ns);

    for (uint32_t i = from; i != to + 1; i++) {
        if (!note_at(lane, i)->record)
            continue;
        lane->done[lane->done_count++] =
            (struct crystal_op){.kind = CRYSTAL_OP_DONE,
                                .peer = (uint32_t)note_at(lane, i)->record,
                                .value = begin_ns,
                                .t_ns = end_ns};
        if (lane->done_count == BATCH)
            flush_done(lane);
    }
    lane->ended_ns = end_ns;
}

/* `settling` held. */
static void settle(struct pass_lane *lane)
{
    uint32_t from, to;
    uint64_t end_ns;

    from = to = atomic_load_explicit(&lane->taken, memory_order_relaxed);
    for (; is_ready(lane, to); to++) {
        ncclResult_t result;

        if (!note_at(lane, to)->last)
            continue;
        result = end_of(lane, to, &end_ns);
        if (result == ncclInProgress)
            break;
        if (result == ncclSuccess) /* what failed has no duration */
            write_done(lane, from, to, end_ns);
        for (uint32_t i = from; i != to + 1; i++)
            note_at(lane, i)->has_begun = 0;
        from = to + 1;
        atomic_store_explicit(&lane->taken, from, memory_order_release);
    }
    flush_done(lane);
}

int pass_lane_settle(struct pass_lane *lane)
{
    int is_all;

    if (pthread_mutex_trylock(&lane->settling))
        return 0;
    settle(lane);
    is_all = atomic_load_explicit(&lane->taken, memory_order_relaxed) ==
             atomic_load_explicit(&lane->claimed, memory_order_relaxed);
    (void)pthread_mutex_unlock(&lane->settling); /* ours */
    return is_all;
}

uint64_t pass_lane_drain(struct pass_lane *lane, int timeout_ms)
{
    const struct timespec pause = {0, 1000000};

    while (!pass_lane_settle(lane) && timeout_ms-- > 0)
        (void)nanosleep(&pause, NULL);
    return atomic_exchange(&lane->dropped, 0);
}

/* --- the watching thread --- */

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

static void *watch_main(void *argument)
{
    struct pass_lane *lane = argument;

    for (uint32_t number = 0;; number++) {
        struct note *note = note_at(lane, number);

        for (int i = 0; i < LOOKS && !is_ready(lane, number); i++)
            relax();
        if (!is_ready(lane, number))
            sleep_until_ready(lane, number);
        if (note->last && note->record)
            note->seen_ns = lane->library->event_synchronize(note->event) == ncclSuccess
                                ? crystal_now_ns()
                                : 0;
        atomic_store_explicit(&lane->watched, number + 1, memory_order_release);
    }
    return NULL;
}

static void wake_watching(struct pass_lane *lane)
{
    if (atomic_load(&lane->is_asleep) && atomic_exchange(&lane->is_asleep, 0))
        (void)syscall(SYS_futex, &lane->is_asleep, FUTEX_WAKE_PRIVATE, 1, NULL, NULL,
                      0);
}

/* --- a lane --- */

static void lane_free(struct pass_lane *lane)
{
    for (unsigned i = 0; i < NOTES && lane->notes[i].event; i++) {
        (void)lane->library->event_destroy(lane->notes[i].event); /* never recorded */
        if (lane->notes[i].before)
            (void)lane->library->event_destroy(lane->notes[i].before);
    }
    (void)pthread_mutex_destroy(&lane->settling); /* nobody has it */
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
    (void)pthread_mutex_init(&lane->settling,
                             NULL); /* cannot fail without attributes */
    for (unsigned i = 0; i < NOTES; i++)
        if (make_events(library, &lane->notes[i])) {
            (void)crystal_error_set(err, ENOMEM, "recorder: cannot create an event");
            lane_free(lane);
            return NULL;
        }
    if (!library->event_time)
        code = crystal_thread_start(NULL, watch_main, lane);
    if (code) {
        (void)crystal_error_set(err, code, "recorder: cannot start a thread");
        lane_free(lane);
        return NULL;
    }
    return lane;
}

/* --- issuing threads --- */

/* Whether fewer than `room` notes are under way; sees to it that many get fewer. */
static int has_room(struct pass_lane *lane, uint32_t room)
{
    uint32_t claimed = atomic_load_explicit(&lane->claimed, memory_order_relaxed);
    uint32_t taken = atomic_load_explicit(&lane->taken_seen, memory_order_relaxed);

    if (claimed - taken < MANY)
        return 1;
    if (claimed % EVERY == 0)
        pass_lane_hurry(lane);
    taken = atomic_load_explicit(&lane->taken, memory_order_acquire);
    if (claimed - taken >= room && !lane->library->settle_soon) {
        (void)pthread_mutex_lock(&lane->settling); /* whoever has it may have no CPU */
        settle(lane);
        (void)pthread_mutex_unlock(&lane->settling); /* ours */
        taken = atomic_load_explicit(&lane->taken, memory_order_acquire);
    }
    atomic_store_explicit(&lane->taken_seen, taken, memory_order_relaxed);
    return claimed - taken < room;
}

void pass_lane_hurry(struct pass_lane *lane)
{
    if (lane->library->settle_soon)
        lane->library->settle_soon();
    else
        (void)pass_lane_settle(lane); /* else another thread is at it */
}

/* Two threads that issue on one stream at once may get each other's. */
void pass_lane_begin(struct pass_lane *lane)
{
    uint32_t claimed = atomic_load_explicit(&lane->claimed, memory_order_relaxed);
    struct note *note = note_at(lane, claimed);

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
    struct note *note;
    uint32_t claimed;

    if (!has_room(lane, NOTES - (last ? MARGIN : 2 * MARGIN))) {
        atomic_fetch_add_explicit(&lane->dropped, 1, memory_order_relaxed);
        return;
    }
    claimed = atomic_fetch_add_explicit(&lane->claimed, 1, memory_order_relaxed);
    note = note_at(lane, claimed);
    note->record = record;
    note->issue_ns = issue_ns;
    note->last = last;
    if (last && lane->library->event_record(note->event, lane->stream) != ncclSuccess)
        note->record = 0; /* the program learns of it from its own waits */
    if (lane->library->event_time) {
        atomic_store_explicit(&note->ready, claimed + 1, memory_order_release);
        return;
    }
    atomic_store(&note->ready, claimed + 1);
    wake_watching(lane);
}
