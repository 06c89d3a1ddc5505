/* Delay lines. See virtual_line.h. A line lives from the first message of either side
 * to the last of both; its storage is what a has sent and b has not taken.
 */
#include "config.h"

#include "replay/virtual_line_internal.h"

#include "replay/net.h"
#include "replay/net_wait.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* --- what a message is made of --- */

void crystal_line_source(const struct crystal_ring_op *op,
                         const struct crystal_vt_path *path, uint32_t place,
                         uint64_t index, struct crystal_line_source *ret)
{
    const uint32_t n = op->nranks, run = path->run;
    const uint64_t step = (index >> (path->slices - 1)) % path->steps;
    struct crystal_line_source s = {0};
    uint64_t passed;

    s.has_copy = path->is_ring ? step >= run : path->has_sender;
    s.copy_index = index - (path->is_ring ? (uint64_t)run * path->slices : 0);
    s.count = run;
    switch (op->func) {
    case CRYSTAL_FUNC_ALLREDUCE:
        passed = step - run; /* the chunk's step at a, where step + 1 ranks are in it */
        if (!s.has_copy)
            s.count = (uint32_t)step + 1;
        else if (passed + 1 >= n)
            s.count = 0;
        else if (n - 1 - passed < run)
            s.count = (uint32_t)(n - 1 - passed);
        s.is_completed = step + 1 >= n && (!s.has_copy || passed + 1 < n);
        break;
    case CRYSTAL_FUNC_REDUCESCATTER:
        s.count = s.has_copy ? run : (uint32_t)step + 1;
        break;
    case CRYSTAL_FUNC_REDUCE:
        s.count = path->reach;
        break;
    default: /* blocks are passed on as they are */
        s.is_block = !s.has_copy;
        s.count = s.is_block ? 1 : 0;
    }
    if (s.is_block)
        s.first = op->func == CRYSTAL_FUNC_BROADCAST
                      ? op->root
                      : (uint32_t)((place + 2 * (uint64_t)n - 1 - step) % n);
    else if (s.has_copy)
        s.first = (place + n - run) % n; /* the first behind a */
    else
        s.first = (uint32_t)((place + (uint64_t)n - s.count) % n);
    *ret = s;
}

int crystal_line_is_passed(const struct crystal_vt_path *path, uint64_t index)
{
    if (!path->has_sender)
        return 0;
    return !path->is_ring ||
           (index >> (path->slices - 1)) % path->steps + path->run < path->steps;
}

/* --- lines --- */

static void message_free(struct line_message *message)
{
    if (message->room)
        crystal_room_give(message->room);
    else
        free(message->data);
    message->room = NULL;
    message->data = NULL;
}

static void line_free(struct crystal_line *line)
{
    for (uint64_t i = 0; i < line->kept; i++)
        message_free(&line->messages[(line->first + i) % line->room]);
    free(line->messages);
    crystal_room_give(line->own[0].room);
    crystal_room_give(line->own[1].room);
    free(line->ranks);
    free(line);
}

struct crystal_lines *crystal_lines_create(struct crystal_net_comm *comm,
                                           struct crystal_error *err)
{
    struct crystal_lines *lines = calloc(1, sizeof *lines);

    if (!lines) {
        (void)crystal_error_set(err, ENOMEM, "out of memory for delay lines");
        return NULL;
    }
    lines->comm = comm;
    (void)pthread_mutex_init(&lines->lock, NULL); /* cannot fail on Linux */
    return lines;
}

void crystal_lines_destroy(struct crystal_lines *lines)
{
    if (!lines)
        return;
    while (lines->first) {
        struct crystal_line *line = lines->first;

        lines->first = line->next;
        line_free(line);
    }
    crystal_room_give(lines->scratch);
    (void)pthread_mutex_destroy(&lines->lock);
    free(lines);
}

uint32_t crystal_lines_count(struct crystal_lines *lines)
{
    uint32_t count = 0;

    (void)pthread_mutex_lock(&lines->lock);
    for (struct crystal_line *line = lines->first; line; line = line->next)
        count++;
    (void)pthread_mutex_unlock(&lines->lock);
    return count;
}

static struct crystal_line *line_get(struct crystal_lines *lines, uint64_t seq,
                                     uint32_t channel, struct crystal_error *err)
{
    struct crystal_line *line;

    for (line = lines->first; line; line = line->next)
        if (line->seq == seq && line->channel == channel)
            return line;
    line = calloc(1, sizeof *line);
    if (!line) {
        (void)crystal_error_set(err, ENOMEM, "out of memory for a delay line");
        return NULL;
    }
    line->seq = seq;
    line->channel = channel;
    line->next = lines->first;
    lines->first = line;
    return line;
}

/* Frees the line where both sides are through. */
static void line_settle(struct crystal_lines *lines, struct crystal_line *line)
{
    struct crystal_line **at = &lines->first;

    if (!line->is_taking || line->taken < line->taken_count ||
        line->arrived < crystal_vt_sent_count(&line->vt.path, line->taken_count))
        return;
    while (*at != line)
        at = &(*at)->next;
    *at = line->next;
    line_free(line);
}

/* --- a's side --- */

static int messages_grow(struct crystal_line *line)
{
    uint64_t room = line->room ? 2 * line->room : 16;
    struct line_message *larger;

    if (line->kept < line->room)
        return 0;
    larger = calloc(room, sizeof *larger);
    if (!larger)
        return -ENOMEM;
    for (uint64_t i = 0; i < line->kept; i++)
        larger[(line->first + i) % room] =
            line->messages[(line->first + i) % line->room];
    free(line->messages);
    line->messages = larger;
    line->room = room;
    return 0;
}

static int push_locked(struct crystal_lines *lines, uint64_t seq, uint32_t channel,
                       uint64_t index, uint64_t count,
                       const struct line_message *message, struct crystal_error *err)
{
    struct crystal_line *line = line_get(lines, seq, channel, err);

    if (!line)
        return -ENOMEM;
    if (index != line->arrived || index >= count ||
        (line->arrived_count && line->arrived_count != count))
        return crystal_error_set(
            err, EPROTO,
            "operation %llu, channel %u: message %llu of %llu came "
            "when %llu of %llu was due",
            (unsigned long long)seq, channel, (unsigned long long)index,
            (unsigned long long)count, (unsigned long long)line->arrived,
            (unsigned long long)line->arrived_count);
    if (messages_grow(line))
        return crystal_error_set(err, ENOMEM, "out of memory for a delay line");
    line->messages[index % line->room] = *message;
    line->kept++;
    line->arrived++;
    line->arrived_count = count;
    line_settle(lines, line);
    return 0;
}

static void news_add(struct crystal_lines *lines, uint32_t channel)
{
    if (channel < CRYSTAL_NET_CHANNELS)
        (void)atomic_fetch_add(&lines->news[channel], 1);
}

uint64_t crystal_lines_news(const struct crystal_lines *lines, uint32_t channel)
{
    return channel < CRYSTAL_NET_CHANNELS
               ? atomic_load_explicit(&lines->news[channel], memory_order_acquire)
               : 0;
}

/* Takes over what the message holds. */
static int message_push(struct crystal_lines *lines, uint64_t seq, uint32_t channel,
                        uint64_t index, uint64_t count, struct line_message *message,
                        struct crystal_error *err)
{
    int code, wakes;

    (void)pthread_mutex_lock(&lines->lock);
    code = push_locked(lines, seq, channel, index, count, message, err);
    news_add(lines, channel);
    wakes = lines->is_waited && !pthread_equal(lines->waiter, pthread_self());
    lines->is_waited = 0;
    (void)pthread_mutex_unlock(&lines->lock);
    if (wakes)
        crystal_net_wake();
    if (code)
        message_free(message);
    return code;
}

int crystal_lines_push_owned(struct crystal_lines *lines, uint64_t seq,
                             uint32_t channel, uint64_t index, uint64_t count,
                             const struct crystal_vt_sent *sent, void *data,
                             struct crystal_error *err)
{
    struct line_message message = {.sent = *sent, .data = data};

    return message_push(lines, seq, channel, index, count, &message, err);
}

/* A copy of a message's bytes; NULL with err set where memory runs out. */
static struct crystal_room *room_copy(struct crystal_lines *lines, const void *data,
                                      uint64_t bytes, struct crystal_error *err)
{
    struct crystal_room *room = crystal_room_take(lines->comm->module->rooms, bytes);

    if (room && bytes)
        memcpy(room->data, data, bytes);
    if (!room)
        (void)crystal_error_set(err, ENOMEM, "out of memory for a delay line");
    return room;
}

int crystal_lines_push(struct crystal_lines *lines, uint64_t seq, uint32_t channel,
                       uint64_t index, uint64_t count,
                       const struct crystal_vt_sent *sent, const void *data,
                       struct crystal_error *err)
{
    struct line_message message = {.sent = *sent};

    if (data && sent->bytes) {
        message.room = room_copy(lines, data, sent->bytes, err);
        if (!message.room)
            return -ENOMEM;
        message.data = message.room->data;
    }
    return message_push(lines, seq, channel, index, count, &message, err);
}

int crystal_lines_push_room(struct crystal_lines *lines, uint64_t seq, uint32_t channel,
                            uint64_t index, uint64_t count,
                            const struct crystal_vt_sent *sent,
                            struct crystal_room *room, struct crystal_error *err)
{
    struct line_message message = {
        .sent = *sent, .data = room->data, .room = crystal_room_share(room)};

    return message_push(lines, seq, channel, index, count, &message, err);
}

int crystal_lines_own(struct crystal_lines *lines, uint64_t seq, uint32_t channel,
                      uint64_t index, const void *data, uint64_t bytes,
                      struct crystal_room *room, struct crystal_error *err)
{
    struct crystal_line *line;
    struct line_own *own;
    struct crystal_room *copy =
        room ? crystal_room_share(room) : room_copy(lines, data, bytes, err);
    int wakes;

    if (!copy)
        return -ENOMEM;
    (void)pthread_mutex_lock(&lines->lock);
    line = line_get(lines, seq, channel, err);
    if (line) {
        own = &line->own[index % 2];
        crystal_room_give(own->room);
        *own = (struct line_own){copy, bytes, index + 1};
        news_add(lines, channel);
    }
    wakes = lines->is_waited && !pthread_equal(lines->waiter, pthread_self());
    (void)pthread_mutex_unlock(&lines->lock);
    if (wakes)
        crystal_net_wake();
    if (!line)
        crystal_room_give(copy);
    return line ? 0 : -ENOMEM;
}

/* --- b's side --- */

/* Something of a's is not there yet. Another thread that brings it wakes this one; a
 * wake before the wait counts for it. */
static int wait_for_sender(struct crystal_lines *lines)
{
    lines->is_waited = 1;
    lines->waiter = pthread_self();
    return 0;
}

static int line_open(struct crystal_lines *lines, struct crystal_line *line,
                     const struct crystal_line_next *next, struct crystal_error *err)
{
    struct crystal_vt_path path;
    int code;

    if (line->is_taking)
        return 0;
    code = crystal_payload_plan(next->op, &line->plan, err);
    if (code)
        return code;
    crystal_vt_path(&next->ring, next->place->place, next->place->run_before, &path);
    line->ranks = calloc((size_t)path.reach + 1, sizeof *line->ranks);
    if (!line->ranks)
        return crystal_error_set(err, ENOMEM, "out of memory for a delay line");
    crystal_vt_init(&line->vt, &path, &lines->comm->module->wire, line->ranks);
    line->taken_count = next->count;
    line->is_taking = 1;
    return 0;
}

/* Forgets what no later message needs. */
static void messages_drop(struct crystal_line *line, uint64_t next_index)
{
    const struct crystal_vt_path *path = &line->vt.path;
    uint64_t delay = path->is_ring ? (uint64_t)path->run * path->slices : 0;

    while (line->kept && line->first + delay < next_index) {
        message_free(&line->messages[line->first % line->room]);
        line->first++;
        line->kept--;
    }
}

/* What there is to put, of the schedule. */
static int put_init(struct line_put *put, struct crystal_lines *lines,
                    struct crystal_line *line, const struct crystal_line_next *next,
                    void *data, uint64_t room, struct crystal_error *err)
{
    *put = (struct line_put){.lines = lines, .line = line, .next = next, .wire = data};
    if (next->index != line->taken || next->count != line->taken_count)
        return crystal_error_set(
            err, EPROTO,
            "operation %llu: message %llu was posted when %llu was "
            "due",
            (unsigned long long)line->seq, (unsigned long long)next->index,
            (unsigned long long)line->taken);
    crystal_ring_message(&next->ring, next->place->place, 0, next->index,
                         &put->message);
    crystal_line_source(&next->ring, &line->vt.path, next->place->place, next->index,
                        &put->source);
    put->bytes = (uint64_t)put->message.elts * next->ring.elt_bytes;
    put->wire_bytes = crystal_form_bytes(next->ring.proto, put->bytes);
    if (put->wire_bytes > room)
        return crystal_error_set(err, EMSGSIZE,
                                 "a message of %llu bytes of the ring's schedule does "
                                 "not fit the %llu that were posted",
                                 (unsigned long long)put->wire_bytes,
                                 (unsigned long long)room);
    return 0;
}

static int take_locked(struct crystal_lines *lines, struct crystal_line *line,
                       const struct crystal_line_next *next, void *data, uint64_t room,
                       uint64_t *ret_bytes, uint64_t *ret_ns, uint64_t *ret_free_ns,
                       struct crystal_error *err)
{
    struct line_message *sent = NULL, *edge = NULL;
    uint64_t sent_index, edge_index;
    struct line_put put;
    int code = line_open(lines, line, next, err);

    if (!code)
        code = put_init(&put, lines, line, next, data, room, err);
    if (code)
        return code;
    crystal_vt_needs(&line->vt.path, next->index, &sent_index, &edge_index);
    if (sent_index != CRYSTAL_VT_NONE &&
        !(sent = crystal_line_message(line, sent_index)))
        return wait_for_sender(lines);
    if (edge_index != CRYSTAL_VT_NONE &&
        !(edge = crystal_line_message(line, edge_index)))
        return wait_for_sender(lines);
    code = crystal_line_put(&put, err);
    if (code < 0)
        return code;
    if (!code)
        return wait_for_sender(lines);
    *ret_ns = crystal_vt_next(&line->vt, put.wire_bytes, next->arrive,
                              next->arrive_user, sent ? &sent->sent : NULL,
                              edge ? &edge->sent : NULL, ret_free_ns);
    *ret_bytes = put.wire_bytes;
    line->taken++;
    messages_drop(line, line->taken);
    return 1;
}

int crystal_lines_take(struct crystal_lines *lines,
                       const struct crystal_line_next *next, void *data, uint64_t room,
                       uint64_t *ret_bytes, uint64_t *ret_ns, uint64_t *ret_free_ns,
                       struct crystal_error *err)
{
    struct crystal_line *line;
    int code;

    (void)pthread_mutex_lock(&lines->lock);
    line = line_get(lines, next->op->seq, next->channel, err);
    code = line ? take_locked(lines, line, next, data, room, ret_bytes, ret_ns,
                              ret_free_ns, err)
                : -ENOMEM;
    if (code > 0)
        line_settle(lines, line);
    (void)pthread_mutex_unlock(&lines->lock);
    return code;
}
