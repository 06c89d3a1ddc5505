/* Streams of capture and marks in them: what stands before a mark must have ended. */
#include "config.h"

#include "capture/park_queue_state.h"

#include "capture/cuda_device.h"
#include "capture/recorder.h"
#include "capture/work.h"

#include <errno.h>
#include <stdlib.h>

static struct park_stream null_stream; /* under the queue's lock */

static void stream_unref(struct park_stream *s)
{
    if (!s || s == &null_stream || --s->refs)
        return;
    free(s); /* no entries: each holds a reference through its item's end */
}

static void stream_ref(struct park_stream *s)
{
    if (s && s != &null_stream) /* that is never freed */
        s->refs++;
}

static int entry_ended(const struct park_entry *e)
{
    return e->item ? e->item->state == ITEM_ENDED : park_mark_ended(&e->mark);
}

/* The ncclResult_t of an entry that has ended. */
static int entry_result(const struct park_entry *e)
{
    if (e->item)
        return e->item->result;
    return e->mark.stream ? e->mark.stream->result : ncclSuccess;
}

void park_stream_advance(struct park_stream *s)
{
    struct park_entry *e;

    if (s->advancing)
        return;
    s->advancing = 1;
    while ((e = s->first) != NULL && entry_ended(e)) {
        int result = entry_result(e);

        if (result && !s->result)
            s->result = result;
        s->first = e->next;
        if (!s->first)
            s->last = &s->first;
        s->ended++;
        if (e->event) {
            cuda_event_perform(e->event, s, e->generation, &e->mark);
            cuda_event_unref(e->event);
        }
        if (e->item)
            park_item_unref(e->item);
        stream_unref(e->mark.stream);
        free(e);
    }
    s->advancing = 0;
}

int park_mark_ended(const struct park_mark *mark)
{
    if (!mark->stream)
        return 1;
    if (mark->stream->ended < mark->seq)
        park_stream_advance(mark->stream);
    return mark->stream->ended >= mark->seq;
}

int park_mark_wait(const struct park_mark *mark)
{
    struct park_mark own = *mark; /* the event may be recorded anew while we wait */
    int result;

    if (!own.stream)
        return ncclSuccess;
    stream_ref(own.stream);
    while (!park_mark_ended(&own)) {
        struct park_entry *e = own.stream->first;

        if (e->item)
            park_item_wait(e->item);
        else
            (void)park_mark_wait(&e->mark); /* its failure comes to our stream */
    }
    result = own.stream->result;
    stream_unref(own.stream);
    return result;
}

int park_stream_drain(struct park_stream *s)
{
    struct park_mark end = {s, s->issued};

    return park_mark_wait(&end);
}

static int append(struct park_stream *s, const struct park_entry *entry)
{
    struct park_entry *e = malloc(sizeof *e);

    if (!e)
        return -ENOMEM;
    *e = *entry;
    if (e->item)
        e->item->refs++;
    stream_ref(e->mark.stream);
    if (e->event)
        e->event->refs++;
    *s->last = e;
    s->last = &e->next;
    s->issued++;
    return 0;
}

int park_stream_append(struct park_stream *s, struct park_item *item,
                       const struct park_mark *mark)
{
    struct park_entry e = {.item = item};

    if (mark)
        e.mark = *mark;
    return append(s, &e);
}

int park_stream_append_event(struct park_stream *s, struct cuda_event *event,
                             uint64_t generation, const struct park_mark *mark)
{
    struct park_entry e = {.event = event, .generation = generation};

    if (mark)
        e.mark = *mark;
    return append(s, &e);
}

static void stream_init(struct park_stream *s)
{
    s->refs = 1;
    s->last = &s->first;
}

struct park_stream *park_queue_stream_create(struct crystal_error *err)
{
    struct park_stream *s = calloc(1, sizeof *s);

    if (s)
        stream_init(s);
    else
        (void)crystal_error_set(err, ENOMEM, "recorder: out of memory");
    return s;
}

struct park_stream *park_queue_stream_null(void)
{
    park_queue_lock();
    if (!null_stream.refs) {
        stream_init(&null_stream);
        null_stream.has_index = 1;
    }
    park_queue_unlock();
    return &null_stream;
}

void park_queue_stream_release(struct park_stream *s)
{
    struct park_mark end = {s, s->issued};

    park_queue_lock();
    /* What is under way goes on; its entries leave when somebody looks. Streams whose
     * work has not ended stay, a few bytes each. */
    if (park_mark_ended(&end))
        stream_unref(s);
    park_queue_unlock();
}

uint16_t park_queue_stream_index(struct park_stream *s)
{
    uint16_t index;

    park_queue_lock();
    if (!s->has_index) {
        s->index = recorder_stream_next(recorder_get());
        s->has_index = 1;
        if (s->is_device)
            work_stream(s->handle, s->index);
    }
    index = s->index;
    park_queue_unlock();
    return index;
}

void park_mark_set(struct park_mark *mark, struct park_stream *stream)
{
    park_stream_advance(stream);
    stream_ref(stream);
    stream_unref(mark->stream);
    mark->stream = stream;
    mark->seq = stream->issued;
}

void park_mark_copy(struct park_mark *mark, const struct park_mark *other)
{
    stream_ref(other->stream);
    stream_unref(mark->stream);
    *mark = *other;
}

void park_mark_drop(struct park_mark *mark)
{
    stream_unref(mark->stream);
    mark->stream = NULL;
}

void park_queue_mark_set(struct park_mark *mark, struct park_stream *stream)
{
    park_queue_lock();
    park_mark_set(mark, stream);
    park_queue_unlock();
}

void park_queue_mark_clear(struct park_mark *mark)
{
    park_queue_lock();
    park_mark_drop(mark);
    park_queue_unlock();
}

int park_queue_stream_wait(struct park_stream *stream, const struct park_mark *mark,
                           struct crystal_error *err)
{
    int code = 0;

    park_queue_lock();
    if (mark->stream != stream && !park_mark_ended(mark))
        code = park_stream_append(stream, NULL, mark);
    park_queue_unlock();
    return code ? crystal_error_set(err, ENOMEM, "recorder: out of memory") : 0;
}

int park_queue_mark_wait(const struct park_mark *mark)
{
    int result;

    park_queue_lock();
    result = park_mark_wait(mark);
    park_queue_unlock();
    return result;
}

int park_queue_mark_query(const struct park_mark *mark, int *ret_result)
{
    int ended;

    park_queue_lock();
    ended = park_mark_ended(mark);
    if (!ended) {
        park_items_reap();
        ended = park_mark_ended(mark);
    }
    if (ended)
        *ret_result = mark->stream ? mark->stream->result : ncclSuccess;
    else
        park_polled(mark);
    park_queue_unlock();
    return ended;
}
