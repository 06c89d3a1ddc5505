/* See pass_done.h. The issuing thread and the lane's thread share a ring: notes are
 * added at `added`, taken at `taken`. The lock is held for a few instructions; the
 * issuing thread signals only when the lane's thread sleeps, which it does not while
 * operations follow one another.
 */
#include "config.h"

#include "capture/pass_done.h"

#include "capture/recorder.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define NOTES 1024 /* under way per stream; a power of two */

struct note {
    crystal_event_t event; /* owned by the ring, made once */
    uint64_t record;
    uint64_t issue_ns;
    int last;
};

struct pass_lane {
    const struct pass_done_library *library;
    ncclStream_t stream;
    pthread_mutex_t lock;   /* added, taken, is_asleep */
    pthread_cond_t changed; /* a note was added to an empty ring; the ring is empty */
    uint32_t added, taken;  /* count up without end */
    int is_asleep;
    uint64_t ended_ns; /* of the last operation; the lane's thread only */
    struct note notes[NOTES];
};

/* Waits for the event of notes[from .. to] and writes what they were. */
static void settle(struct pass_lane *lane, uint32_t from, uint32_t to)
{
    struct recorder *r = recorder_get();
    ncclResult_t result =
        lane->library->event_synchronize(lane->notes[to % NOTES].event);
    uint64_t end_ns = recorder_now_ns(r);

    for (uint32_t i = from; i != to + 1; i++) {
        const struct note *note = &lane->notes[i % NOTES];
        uint64_t begin_ns =
            note->issue_ns > lane->ended_ns ? note->issue_ns : lane->ended_ns;

        if (result == ncclSuccess) /* what failed has no duration */
            recorder_done(r, note->record, begin_ns, end_ns);
    }
    lane->ended_ns = end_ns;
}

static void *lane_main(void *argument)
{
    struct pass_lane *lane = argument;

    (void)pthread_mutex_lock(&lane->lock);
    for (;;) {
        uint32_t to = lane->taken;

        while (to != lane->added && !lane->notes[to % NOTES].last)
            to++;
        if (to == lane->added) { /* nothing, or a group that is not complete yet */
            lane->is_asleep = 1;
            (void)pthread_cond_broadcast(&lane->changed);
            (void)pthread_cond_wait(&lane->changed, &lane->lock);
            lane->is_asleep = 0;
            continue;
        }
        (void)pthread_mutex_unlock(&lane->lock);
        settle(lane, lane->taken, to);
        (void)pthread_mutex_lock(&lane->lock);
        lane->taken = to + 1;
    }
    return NULL;
}

static void lane_free(struct pass_lane *lane)
{
    for (unsigned i = 0; i < NOTES && lane->notes[i].event; i++)
        (void)lane->library->event_destroy(lane->notes[i].event); /* never recorded */
    free(lane);
}

struct pass_lane *pass_lane_create(const struct pass_done_library *library,
                                   ncclStream_t stream, struct crystal_error *err)
{
    struct pass_lane *lane = calloc(1, sizeof *lane);
    sigset_t all, before;
    pthread_t thread;
    int code = 0;

    if (!lane) {
        (void)crystal_error_set(err, ENOMEM, "recorder: out of memory");
        return NULL;
    }
    lane->library = library;
    lane->stream = stream;
    (void)pthread_mutex_init(&lane->lock, NULL); /* cannot fail on Linux, like cond */
    (void)pthread_cond_init(&lane->changed, NULL);
    for (unsigned i = 0; i < NOTES; i++)
        if (library->event_create(&lane->notes[i].event) != ncclSuccess) {
            lane->notes[i].event = NULL;
            (void)crystal_error_set(err, ENOMEM, "recorder: cannot create an event");
            lane_free(lane);
            return NULL;
        }
    (void)sigfillset(&all); /* the program's signals are for its own threads */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(&thread, NULL, lane_main, lane);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code) {
        (void)crystal_error_set(err, code, "recorder: cannot start a thread");
        lane_free(lane);
        return NULL;
    }
    (void)pthread_detach(thread);
    return lane;
}

void pass_lane_note(struct pass_lane *lane, uint64_t record, uint64_t issue_ns,
                    int last)
{
    struct note *note;
    uint32_t at;

    (void)pthread_mutex_lock(&lane->lock);
    at = lane->added;
    if (at - lane->taken >= NOTES - 1 &&
        !last) { /* one stays free for a group's last */
        (void)pthread_mutex_unlock(&lane->lock);
        return;
    }
    if (at - lane->taken >= NOTES) {
        (void)pthread_mutex_unlock(&lane->lock);
        return;
    }
    (void)pthread_mutex_unlock(&lane->lock);
    note = &lane->notes[at % NOTES]; /* ours until `added` says so */
    note->record = record;
    note->issue_ns = issue_ns;
    note->last = last;
    if (last && lane->library->event_record(note->event, lane->stream) != ncclSuccess)
        return; /* the program learns of it from its own waits */
    (void)pthread_mutex_lock(&lane->lock);
    lane->added = at + 1;
    if (lane->is_asleep && last)
        (void)pthread_cond_broadcast(&lane->changed);
    (void)pthread_mutex_unlock(&lane->lock);
}

void pass_lane_drain(struct pass_lane *lane, int timeout_ms)
{
    const struct timespec pause = {0, 1000000};

    while (timeout_ms-- > 0) {
        int is_empty;

        (void)pthread_mutex_lock(&lane->lock);
        is_empty = lane->taken == lane->added && lane->is_asleep;
        (void)pthread_mutex_unlock(&lane->lock);
        if (is_empty)
            return;
        (void)nanosleep(&pause, NULL);
    }
}
