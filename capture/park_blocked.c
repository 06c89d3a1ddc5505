/* Whether the whole rank waits: when its main thread does, or when another thread does
 * and the main one waits for a thread (two looks in a row; it may be a short wait); or
 * when the main thread has done nothing but poll for POLLED_NS.
 */
#include "config.h"

#include "capture/park_queue_state.h"

#include "capture/recorder.h"

#include "runtime/clock.h"
#include "runtime/process.h"

#include <sys/syscall.h>
#include <unistd.h>

#define POLLED_NS   UINT64_C(500000000)
#define POLL_GAP_NS UINT64_C(200000000) /* a longer pause ends a row of polls */

static struct { /* the main thread's row of polls that said "not yet"; the queue's lock
                 */
    uint64_t first_ns, last_ns, issue_count;
    int is_told;
} polls;

static int is_main_thread(void)
{
    return syscall(SYS_gettid) == getpid();
}

/* Asked by a thread that waits in the client. */
int park_is_blocked(void)
{
    static _Thread_local uint64_t ticks_before;
    static _Thread_local int waited_before;
    uint64_t ticks = 0;
    int waits, is_blocked;

    if (is_main_thread())
        return 1;
    waits = crystal_process_main_waits(&ticks);
    is_blocked = waits && waited_before && ticks == ticks_before;
    waited_before = waits;
    ticks_before = ticks;
    return is_blocked;
}

/* The oldest operation that a mark waits for; NULL where that is not known. */
static const struct park_item *first_of(const struct park_mark *mark)
{
    const struct park_entry *e = mark->stream ? mark->stream->first : NULL;

    return e ? e->item : NULL;
}

/* A query has said "not yet". Lock held. */
void park_polled(const struct park_mark *mark)
{
    uint64_t now_ns = crystal_now_ns();
    const struct park_item *item;

    if (!is_main_thread())
        return;
    if (!polls.first_ns || polls.issue_count != park_queue.issue_count ||
        now_ns - polls.last_ns > POLL_GAP_NS) {
        polls.first_ns = now_ns;
        polls.issue_count = park_queue.issue_count;
        polls.is_told = 0;
    }
    polls.last_ns = now_ns;
    item = first_of(mark);
    if (polls.is_told || now_ns - polls.first_ns < POLLED_NS || !item ||
        item->state != ITEM_POSTED || !park_queue.client)
        return;
    polls.is_told = 1;
    crystal_client_blocked(park_queue.client, item->ticket);
}
