/* Streams of capture and marks in them: what stands before a mark must have ended. */
#include "config.h"

#include "capture/park_queue_state.h"

#include "capture/recorder.h"

#include <errno.h>
#include <stdlib.h>

static struct park_stream null_stream; /* under the queue's lock */

static void stream_unref(struct park_stream *s)
{
    if (!s || s == &null_stream || --s->refs)
        return;
    free(s); /* no entries: each holds a reference through its item's end */
}

static int mark_ended(const struct park_mark *mark);

void park_stream_advance(struct park_stream *s)
{
    struct park_entry *e;

    if (s->advancing)
        return;
    s->advancing = 1;
    while ((e = s->first) != NULL) {
        int result;

        if (e->item ? e->item->state != ITEM_ENDED : !mark_ended(&e->mark))
            break;
        result = e->item ? e->item->result : e->mark.stream->result;
        if (result && !s->result)
            s->result = result;
        s->first = e->next;
        if (!s->first)
            s->last = &s->first;
        s->ended++;
        if (e->item)
            park_item_unref(e->item);
        else
            stream_unref(e->mark.stream);
        free(e);
    }
    s->advancing = 0;
}

static int mark_ended(const struct park_mark *mark)
{
    if (!mark->stream)
        return 1;
    if (mark->stream->ended < mark->seq)
        park_stream_advance(mark->stream);
    return mark->stream->ended >= mark->seq;
}

static void mark_wait(const struct park_mark *mark)
{
    while (!mark_ended(mark)) {
        struct park_entry *e = mark->stream->first;

        if (e->item) {
            park_item_wait(e->item);
        } else {
            struct park_mark other = e->mark;

            other.stream->refs++;
            mark_wait(&other);
            stream_unref(other.stream);
        }
    }
}

int park_stream_append(struct park_stream *s, struct park_item *item,
                       const struct park_mark *mark)
{
    struct park_entry *e = calloc(1, sizeof *e);

    if (!e)
        return -ENOMEM;
    if (item) {
        e->item = item;
        item->refs++;
    } else {
        e->mark = *mark;
        e->mark.stream->refs++;
    }
    *s->last = e;
    s->last = &e->next;
    s->issued++;
    return 0;
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
    if (mark_ended(&end))
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
    }
    index = s->index;
    park_queue_unlock();
    return index;
}

void park_queue_mark_set(struct park_mark *mark, struct park_stream *stream)
{
    park_queue_lock();
    park_stream_advance(stream);
    if (stream != &null_stream)
        stream->refs++;
    stream_unref(mark->stream);
    mark->stream = stream;
    mark->seq = stream->issued;
    park_queue_unlock();
}

void park_queue_mark_clear(struct park_mark *mark)
{
    park_queue_lock();
    stream_unref(mark->stream);
    mark->stream = NULL;
    park_queue_unlock();
}

int park_queue_stream_wait(struct park_stream *stream, const struct park_mark *mark,
                           struct crystal_error *err)
{
    int code = 0;

    park_queue_lock();
    if (mark->stream != stream && !mark_ended(mark))
        code = park_stream_append(stream, NULL, mark);
    park_queue_unlock();
    return code ? crystal_error_set(err, ENOMEM, "recorder: out of memory") : 0;
}

int park_queue_mark_wait(const struct park_mark *mark)
{
    struct park_mark own;
    int result = ncclSuccess;

    park_queue_lock();
    own = *mark; /* the event may be recorded anew while we wait */
    if (own.stream) {
        own.stream->refs++;
        mark_wait(&own);
        result = own.stream->result;
        stream_unref(own.stream);
    }
    park_queue_unlock();
    return result;
}

int park_queue_mark_query(const struct park_mark *mark, int *ret_result)
{
    int ended;

    park_queue_lock();
    ended = mark_ended(mark);
    if (!ended) {
        park_items_reap();
        ended = mark_ended(mark);
    }
    if (ended)
        *ret_result = mark->stream ? mark->stream->result : ncclSuccess;
    else
        park_polled(mark);
    park_queue_unlock();
    return ended;
}
