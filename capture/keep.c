/* What is kept of contributions. See keep.h. Shapes are found by open addressing. */
#include "config.h"

#include "capture/keep.h"

#include "capture/recorder.h"

#include <string.h>

/* The shape's place: where it is, or where it would go. NULL where the table is full.
 */
static struct keep_shape *shape_find(struct keep *k, const struct keep_shape *want)
{
    uint64_t hash = want->count * 0x9e3779b97f4a7c15U + want->peer;
    uint32_t at;

    hash = (hash ^ ((uint64_t)want->comm << 16 | want->func << 8 | want->dtype)) *
           0x9e3779b97f4a7c15U;
    at = (uint32_t)(hash >> 40) % KEEP_FIRST_SHAPES;
    for (uint32_t i = 0; i < KEEP_FIRST_SHAPES; i++) {
        struct keep_shape *s = &k->shapes[(at + i) % KEEP_FIRST_SHAPES];

        if (s->func == CRYSTAL_FUNC_NONE || memcmp(s, want, sizeof *s) == 0)
            return s;
    }
    return NULL;
}

static int is_first(struct keep *k, const struct recorder_call *call, uint64_t bytes)
{
    struct keep_shape want = {.count = call->count,
                              .peer = call->peer,
                              .comm = call->comm,
                              .func = call->func,
                              .dtype = call->dtype};
    struct keep_shape *s;

    if ((call->func != CRYSTAL_FUNC_SEND && call->func != CRYSTAL_FUNC_BROADCAST &&
         call->func != CRYSTAL_FUNC_ALLTOALL && call->func != CRYSTAL_FUNC_SCATTER) ||
        bytes > KEEP_FIRST_BYTES || bytes > KEEP_FIRST_TOTAL - k->first_bytes ||
        k->shape_count >= KEEP_FIRST_SHAPES / 4 * 3)
        return 0;
    s = shape_find(k, &want);
    if (!s || s->func != CRYSTAL_FUNC_NONE)
        return 0;
    *s = want;
    k->shape_count++;
    k->first_bytes += bytes;
    return 1;
}

uint64_t keep_bytes(struct keep *k, const struct recorder_call *call,
                    uint64_t send_bytes)
{
    if (send_bytes > UINT32_MAX) /* more than a record can say */
        return 0;
    if (k->is_all)
        return send_bytes;
    if (!crystal_dtype_is_float(call->dtype))
        return send_bytes <= KEEP_CONTROL_BYTES ? send_bytes : 0;
    return send_bytes && is_first(k, call, send_bytes) ? send_bytes : 0;
}
