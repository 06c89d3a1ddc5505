/* See cuda_clock.h. */
#include "config.h"

#include "capture/cuda_clock.h"

#include "runtime/clock.h"

#include <pthread.h>

#define RENEW_NS 100000000U
/* Then a mark is given up, as the device is kept from it; the first one is needed. */
#define PATIENCE_NS       5000000U
#define FIRST_PATIENCE_NS 1000000000U
#define NARROW_NS         6000U  /* a mark that is known so well is good enough */
#define WIDE_NS           50000U /* this one is worse than the pace */
#define TRIES             3
#define FIRST_TRIES       64   /* until it is not wide; a short program gets no other */
#define PACE_MOST         1e-3 /* no clock is so far from another: a mark was wrong */

struct mark {
    cuda_event_handle event;
    uint64_t host_ns; /* in the middle of when it may have been reached */
    uint64_t width_ns;
};

static struct {
    cuda_stream stream;
    struct mark spare[2]; /* of whoever renews */
    pthread_mutex_t lock; /* of all below */
    struct mark older, newer;
    double pace; /* host ns in one of the device's */
} the_clock = {.lock = PTHREAD_MUTEX_INITIALIZER, .pace = 1};

/* Records the mark and looks until it is reached. */
static int make(struct mark *mark, uint64_t patience_ns)
{
    const struct cuda_api *cuda = cuda_api_get();
    uint64_t first_ns = crystal_now_ns(), before_ns = first_ns, now_ns;
    int code = cuda->cudaEventRecord(mark->event, the_clock.stream);

    while (!code) {
        const uint64_t look_ns = crystal_now_ns();

        code = cuda->cudaEventQuery(mark->event);
        now_ns = crystal_now_ns();
        if (code == CUDA_SUCCESS)
            break;
        if (code != CUDA_NOT_READY || now_ns - first_ns > patience_ns)
            return code;
        before_ns = look_ns;
        code = CUDA_SUCCESS;
    }
    if (code)
        return code;
    mark->width_ns = now_ns - before_ns;
    mark->host_ns = before_ns + mark->width_ns / 2;
    return 0;
}

/* Tries again where the mark in spare[0] is wider than that; the better one stays. */
static void improve(int tries, uint64_t width_ns)
{
    struct mark *spare = the_clock.spare;

    for (; tries > 0 && spare[0].width_ns > width_ns; tries--)
        if (!make(&spare[1], PATIENCE_NS) && spare[1].width_ns < spare[0].width_ns) {
            const struct mark better = spare[1];

            spare[1] = spare[0];
            spare[0] = better;
        }
}

/* The best of some tries is in spare[0] then; 0 or a cudaError_t. */
static int make_well(uint64_t patience_ns)
{
    int code = make(&the_clock.spare[0], patience_ns);

    if (!code)
        improve(TRIES - 1, NARROW_NS);
    return code;
}

static int make_events(void)
{
    struct mark *all[] = {&the_clock.older, &the_clock.newer, &the_clock.spare[0],
                          &the_clock.spare[1]};
    int code = 0;

    for (size_t i = 0; !code && i < sizeof all / sizeof *all; i++)
        code = cuda_api_get()->cudaEventCreateWithFlags(&all[i]->event, 0);
    return code;
}

/* The mark in spare[0] becomes the newer one, pace that of the clock: both at once, as
 * who asks for a time takes both. */
static void take(double pace)
{
    const struct mark gone = the_clock.older;

    (void)pthread_mutex_lock(&the_clock.lock); /* a plain mutex */
    the_clock.older = the_clock.newer;
    the_clock.newer = the_clock.spare[0];
    the_clock.pace = pace;
    (void)pthread_mutex_unlock(&the_clock.lock);
    the_clock.spare[0] = gone;
}

int cuda_clock_open(void)
{
    int code = cuda_api_get()->cudaStreamCreateWithFlags(&the_clock.stream,
                                                         CUDA_STREAM_NON_BLOCKING);

    if (!code)
        code = make_events();
    if (!code)
        code = make_well(FIRST_PATIENCE_NS);
    if (!code) {
        improve(FIRST_TRIES, WIDE_NS);
        take(1);
    }
    return code;
}

/* From the newer mark to the one in spare[0]. Only who renews writes either. */
static double find_pace(void)
{
    const struct mark *from = &the_clock.newer, *to = &the_clock.spare[0];
    float ms = 0;
    int code = cuda_api_get()->cudaEventElapsedTime(&ms, from->event, to->event);
    double host_ns = (double)(to->host_ns - from->host_ns);
    double ratio = !code && ms > 0 ? host_ns / ((double)ms * 1e6) : 1;

    return ratio > 1 - PACE_MOST && ratio < 1 + PACE_MOST ? ratio : 1;
}

void cuda_clock_renew(void)
{
    if (crystal_now_ns() - the_clock.newer.host_ns >= RENEW_NS &&
        !make_well(PATIENCE_NS) && the_clock.spare[0].width_ns <= WIDE_NS)
        take(find_pace());
}

int cuda_clock_time(cuda_event_handle event, uint64_t *ret_ns)
{
    struct mark mark;
    float ms = 0;
    double ns;
    int code;

    (void)pthread_mutex_lock(&the_clock.lock);
    mark = the_clock.newer;
    ns = the_clock.pace;
    code = cuda_api_get()->cudaEventElapsedTime(&ms, mark.event, event);
    (void)pthread_mutex_unlock(
        &the_clock.lock); /* until here the mark stays as it is */
    ns *= (double)ms * 1e6;
    if (!code)
        *ret_ns = mark.host_ns + (uint64_t)(int64_t)ns;
    return code;
}
