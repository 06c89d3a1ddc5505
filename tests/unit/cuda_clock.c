/* Times of CUDA's events on the host's clock, against a device whose clock has another
 * beginning and a pace 50 ppm off, and whose work is done when its time has come: so
 * when an event was reached is known exactly.
 */
#include "config.h"

#include "capture/cuda_clock.h"
#include "runtime/clock.h"

#include "tests/check.h"

#include <time.h>

#define PACE      1.00005
#define BEHIND_NS 3000  /* from a record on an idle stream to when it is reached */
#define FAR_NS    60000 /* more than a mark is ever off; fewer on an idle machine */

struct event {
    uint64_t reached_ns; /* of the host's clock; UINT64_MAX: it is held up */
};

static struct event events[32];
static unsigned event_count;
static int is_held_up, fails_to_create;
static int busy_looks; /* so many looks are kept from the processor for a while */

static int create_event(cuda_event_handle *ret, unsigned flags)
{
    CHECK_EQ(flags, 0);
    if (event_count == sizeof events / sizeof events[0])
        return CUDA_UNKNOWN;
    *ret = &events[event_count++];
    return CUDA_SUCCESS;
}

static int create_stream(cuda_stream *ret, unsigned flags)
{
    static int stream;

    CHECK_EQ(flags, CUDA_STREAM_NON_BLOCKING);
    *ret = &stream;
    return fails_to_create ? CUDA_UNKNOWN : CUDA_SUCCESS;
}

static int record(cuda_event_handle event, cuda_stream stream)
{
    CHECK(stream != NULL);
    ((struct event *)event)->reached_ns =
        is_held_up ? UINT64_MAX : crystal_now_ns() + BEHIND_NS;
    return CUDA_SUCCESS;
}

static void pause_ms(long ms)
{
    const struct timespec pause = {0, ms * 1000000};

    (void)nanosleep(&pause, NULL);
}

static int query(cuda_event_handle event)
{
    if (busy_looks && busy_looks--)
        pause_ms(2);
    return crystal_now_ns() < ((struct event *)event)->reached_ns ? CUDA_NOT_READY
                                                                  : CUDA_SUCCESS;
}

static int elapsed(float *ret_ms, cuda_event_handle from, cuda_event_handle to)
{
    const struct event *a = from, *b = to;

    if (query(from) || query(to))
        return CUDA_NOT_READY;
    *ret_ms = (float)((double)(int64_t)(b->reached_ns - a->reached_ns) / PACE / 1e6);
    return CUDA_SUCCESS;
}

const struct cuda_api *cuda_api_get(void)
{
    static const struct cuda_api api = {.is_whole = 1,
                                        .cudaEventCreateWithFlags = create_event,
                                        .cudaStreamCreateWithFlags = create_stream,
                                        .cudaEventRecord = record,
                                        .cudaEventQuery = query,
                                        .cudaEventElapsedTime = elapsed};

    return &api;
}

/* How far the clock is off for an event that was reached so long ago. */
static uint64_t error_ns(uint64_t ago_ns)
{
    struct event event = {crystal_now_ns() - ago_ns};
    uint64_t told_ns = 0;

    CHECK_EQ(cuda_clock_time(&event, &told_ns), CUDA_SUCCESS);
    return told_ns > event.reached_ns ? told_ns - event.reached_ns
                                      : event.reached_ns - told_ns;
}

/* The least of several errors, as a mark may be made while the machine is busy. */
static uint64_t least_error_ns(uint64_t ago_ns)
{
    uint64_t least = UINT64_MAX;

    for (int i = 0; i < 20 && least > FAR_NS / 10; i++) {
        uint64_t error;

        pause_ms(110);
        cuda_clock_renew();
        error = error_ns(ago_ns);
        least = error < least ? error : least;
    }
    return least;
}

static void no_stream_no_times(void)
{
    fails_to_create = 1;
    CHECK_EQ(cuda_clock_open(), CUDA_UNKNOWN);
    fails_to_create = 0;
}

/* Before, between and behind marks; without the pace an event of a minute ago would be
 * 3 ms off. */
static void times_are_the_hosts(void)
{
    busy_looks = 20; /* the first mark is made again until one is good */
    CHECK_EQ(cuda_clock_open(), CUDA_SUCCESS);
    CHECK_EQ(busy_looks, 0);
    CHECK(error_ns(0) < FAR_NS);
    CHECK(least_error_ns(0) < FAR_NS);
    CHECK(least_error_ns(50000000) < FAR_NS);
    pause_ms(250);
    CHECK(error_ns(0) < 1000000);
    CHECK(least_error_ns(60000000000) < 1500000);
}

static void what_is_not_reached_has_no_time(void)
{
    struct event event = {UINT64_MAX};
    uint64_t told_ns = 7;

    CHECK_EQ(cuda_clock_time(&event, &told_ns), CUDA_NOT_READY);
    CHECK_EQ(told_ns, 7);
}

/* A mark that does not come is given up; the ones before tell the times. */
static void a_device_that_is_held_up(void)
{
    uint64_t from_ns;

    is_held_up = 1;
    pause_ms(110);
    from_ns = crystal_now_ns();
    cuda_clock_renew();
    CHECK(crystal_now_ns() - from_ns >= 5000000);
    CHECK(error_ns(0) < 1000000);
    is_held_up = 0;
    CHECK(least_error_ns(0) < FAR_NS);
}

int main(void)
{
    check_begin();
    CHECK_RUN(no_stream_no_times);
    CHECK_RUN(times_are_the_hosts);
    CHECK_RUN(what_is_not_reached_has_no_time);
    CHECK_RUN(a_device_that_is_held_up);
    return check_end();
}
