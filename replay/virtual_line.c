/* Delay lines. See virtual_line.h. A line lives from the first message of either side
 * to the last of both; its storage is what a has sent and b has not taken.
 */
#include "config.h"

#include "replay/virtual_line.h"

#include "replay/net.h"
#include "replay/net_wait.h"
#include "runtime/reduce.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct line_message {
    struct crystal_vt_sent sent;
    void *data; /* owned; NULL: only its time matters, or taken */
};

struct line_own {
    unsigned char *data;
    uint64_t bytes;
    uint64_t index_plus1;
};

struct crystal_line {
    struct crystal_line *next;
    uint64_t seq;
    uint32_t channel;
    /* from a: messages first .. first + kept - 1 in a ring of `room` */
    struct line_message *messages;
    uint64_t first, kept, room;
    uint64_t arrived, arrived_count; /* count 0: not known yet */
    struct line_own own[2];          /* by slice */
    /* to b */
    int is_taking;
    uint64_t taken, taken_count;
    struct crystal_vt vt;
    struct crystal_vt_rank *ranks;
    struct crystal_payload_plan plan;
};

struct crystal_lines {
    struct crystal_net_comm *comm;
    struct crystal_line_place place;
    pthread_mutex_t lock; /* everything below and the lines */
    struct crystal_line *first;
    unsigned char *scratch; /* a message's data before it takes its form; owned */
    uint64_t scratch_bytes;
    int is_waited; /* a thread waits for a's messages */
    pthread_t waiter;
};

/* --- what a message is made of --- */

void crystal_line_source(const struct crystal_ring_op *op, uint32_t crank, uint32_t run,
                         uint64_t index, struct crystal_line_source *ret)
{
    const uint32_t n = op->nranks;
    struct crystal_line_source s = {0};
    struct crystal_vt_path path;
    uint64_t step, passed;

    crystal_vt_path(op, crank, run, &path);
    step = index / path.slices % path.steps;
    s.has_copy = path.is_ring ? step >= run : path.has_sender;
    s.copy_index = index - (path.is_ring ? (uint64_t)run * path.slices : 0);
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
        s.count = path.reach;
        break;
    default: /* blocks are passed on as they are */
        s.is_block = !s.has_copy;
        s.count = s.is_block ? 1 : 0;
    }
    if (s.is_block)
        s.first = op->func == CRYSTAL_FUNC_BROADCAST
                      ? op->root
                      : (uint32_t)((crank + 2 * (uint64_t)n - 1 - step) % n);
    else if (s.has_copy)
        s.first = (crank + n - run) % n; /* the first behind a */
    else
        s.first = (uint32_t)((crank + (uint64_t)n - s.count) % n);
    *ret = s;
}

int crystal_line_is_passed(const struct crystal_vt_path *path, uint64_t index)
{
    if (!path->has_sender)
        return 0;
    return !path->is_ring ||
           index / path->slices % path->steps + path->run < path->steps;
}

/* --- lines --- */

static void line_free(struct crystal_line *line)
{
    for (uint64_t i = 0; i < line->kept; i++)
        free(line->messages[(line->first + i) % line->room].data);
    free(line->messages);
    free(line->own[0].data);
    free(line->own[1].data);
    free(line->ranks);
    free(line);
}

/* Real neighbours beyond the virtual ones; the run that ends at crank. */
static uint32_t run_before(const uint8_t *is_real, uint32_t n, uint32_t crank,
                           uint32_t *ret_real)
{
    uint32_t run = 0, at = (crank + n - 1) % n;

    for (; !is_real[at]; at = (at + n - 1) % n)
        run++;
    *ret_real = at;
    return run;
}

static uint32_t run_behind(const uint8_t *is_real, uint32_t n, uint32_t crank,
                           uint32_t *ret_real)
{
    uint32_t run = 0, at = (crank + 1) % n;

    for (; !is_real[at]; at = (at + 1) % n)
        run++;
    *ret_real = at;
    return run;
}

struct crystal_lines *crystal_lines_create(struct crystal_net_comm *comm,
                                           struct crystal_board_comm *entry,
                                           struct crystal_error *err)
{
    const uint8_t *is_real = crystal_board_is_real(comm->module->board, entry);
    struct crystal_lines *lines = calloc(1, sizeof *lines);

    if (!lines) {
        (void)crystal_error_set(err, ENOMEM, "out of memory for delay lines");
        return NULL;
    }
    lines->comm = comm;
    /* crank is real, so both walks end */
    lines->place.run_before =
        run_before(is_real, entry->nranks, comm->crank, &lines->place.sender);
    lines->place.run_behind =
        run_behind(is_real, entry->nranks, comm->crank, &lines->place.receiver);
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
    free(lines->scratch);
    (void)pthread_mutex_destroy(&lines->lock);
    free(lines);
}

const struct crystal_line_place *crystal_lines_place(const struct crystal_lines *lines)
{
    return &lines->place;
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
                       const struct crystal_vt_sent *sent, void *data,
                       struct crystal_error *err)
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
    line->messages[index % line->room] = (struct line_message){*sent, data};
    line->kept++;
    line->arrived++;
    line->arrived_count = count;
    line_settle(lines, line);
    return 0;
}

int crystal_lines_push_owned(struct crystal_lines *lines, uint64_t seq,
                             uint32_t channel, uint64_t index, uint64_t count,
                             const struct crystal_vt_sent *sent, void *data,
                             struct crystal_error *err)
{
    int code, wakes;

    (void)pthread_mutex_lock(&lines->lock);
    code = push_locked(lines, seq, channel, index, count, sent, data, err);
    wakes = lines->is_waited && !pthread_equal(lines->waiter, pthread_self());
    lines->is_waited = 0;
    (void)pthread_mutex_unlock(&lines->lock);
    if (wakes)
        crystal_net_wake();
    if (code)
        free(data);
    return code;
}

int crystal_lines_push(struct crystal_lines *lines, uint64_t seq, uint32_t channel,
                       uint64_t index, uint64_t count,
                       const struct crystal_vt_sent *sent, const void *data,
                       struct crystal_error *err)
{
    void *copy = NULL;

    if (data && sent->bytes) {
        copy = malloc(sent->bytes);
        if (!copy)
            return crystal_error_set(err, ENOMEM, "out of memory for a delay line");
        memcpy(copy, data, sent->bytes);
    }
    return crystal_lines_push_owned(lines, seq, channel, index, count, sent, copy, err);
}

int crystal_lines_own(struct crystal_lines *lines, uint64_t seq, uint32_t channel,
                      uint64_t index, const void *data, uint64_t bytes,
                      struct crystal_error *err)
{
    struct crystal_line *line;
    struct line_own *own;
    unsigned char *copy = malloc(bytes ? bytes : 1);
    int wakes;

    if (!copy)
        return crystal_error_set(err, ENOMEM, "out of memory for a delay line");
    if (bytes)
        memcpy(copy, data, bytes);
    (void)pthread_mutex_lock(&lines->lock);
    line = line_get(lines, seq, channel, err);
    if (line) {
        own = &line->own[index % 2];
        free(own->data);
        *own = (struct line_own){copy, bytes, index + 1};
    }
    wakes = lines->is_waited && !pthread_equal(lines->waiter, pthread_self());
    (void)pthread_mutex_unlock(&lines->lock);
    if (wakes)
        crystal_net_wake();
    if (!line)
        free(copy);
    return line ? 0 : -ENOMEM;
}

/* --- b's side --- */

static struct line_message *message_at(struct crystal_line *line, uint64_t index)
{
    if (index < line->first || index >= line->first + line->kept)
        return NULL;
    return &line->messages[index % line->room];
}

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
    crystal_vt_path(&next->ring, lines->comm->crank, lines->place.run_before, &path);
    line->ranks = calloc((size_t)path.reach + 1, sizeof *line->ranks);
    if (!line->ranks)
        return crystal_error_set(err, ENOMEM, "out of memory for a delay line");
    crystal_vt_init(&line->vt, &path, &lines->comm->module->wire, line->ranks);
    line->taken_count = next->count;
    line->is_taking = 1;
    return 0;
}

/* A block of a virtual rank: recorded; else of a gather this rank's own at the same
 * place, of a broadcast the first of its shape; else zeros. 1 put, 0 wait. */
static int block_put(struct crystal_line *line, const struct crystal_line_next *next,
                     const struct crystal_line_source *source,
                     const struct crystal_ring_message *message, void *data,
                     uint64_t bytes, struct crystal_error *err)
{
    uint64_t offset = message->offset_elts, own_index;
    const struct line_own *own;
    const void *recorded;
    int code;

    if (next->ring.func == CRYSTAL_FUNC_ALLGATHER)
        offset -= (uint64_t)source->first * next->ring.count;
    offset *= next->ring.elt_bytes;
    if (line->plan.is_recorded || line->plan.is_bulk ||
        next->ring.func == CRYSTAL_FUNC_BROADCAST) {
        code = crystal_payload_get(next->op, &line->plan, source->first, offset, bytes,
                                   &recorded, line->plan.is_recorded ? err : NULL);
        if (!code)
            memcpy(data, recorded, bytes);
        if (!code || line->plan.is_recorded)
            return code ? code : 1;
    }
    if (next->ring.func == CRYSTAL_FUNC_ALLGATHER) {
        own_index =
            message->loop * line->vt.path.slices * line->vt.path.steps + message->slice;
        own = &line->own[own_index % 2];
        if (own->index_plus1 != own_index + 1)
            return 0;
        if (own->bytes != crystal_form_bytes(next->ring.proto, bytes))
            return crystal_error_set(err, EPROTO,
                                     "an all-gather's first message has %llu bytes "
                                     "where the ring's schedule has %llu",
                                     (unsigned long long)own->bytes,
                                     (unsigned long long)bytes);
        crystal_form_unpack(next->ring.proto, own->data, bytes, data);
    } else if (crystal_payload_first(next->op, &line->plan, source->first, offset,
                                     bytes, &recorded)) {
        memcpy(data, recorded, bytes);
    } else {
        memset(data, 0, bytes);
    }
    if (!line->plan.is_unneeded)
        crystal_operation_standin(next->op, bytes);
    return 1;
}

/* Adds the contributions of the run to what data holds (or starts with them). */
static int contributions_put(struct crystal_line *line,
                             const struct crystal_line_next *next,
                             const struct crystal_line_source *source,
                             const struct crystal_ring_message *message, void *data,
                             struct crystal_error *err)
{
    struct crystal_payload_sum sum = {.op = next->op,
                                      .plan = &line->plan,
                                      .data = data,
                                      .elts = message->elts,
                                      .is_started = source->has_copy};
    const uint64_t offset = message->offset_elts * next->ring.elt_bytes;

    if (!source->count)
        return 0;
    for (uint32_t i = 0; i < source->count; i++) {
        int code = crystal_payload_add(&sum, (source->first + i) % next->ring.nranks,
                                       offset, err);

        if (code)
            return code;
    }
    crystal_payload_end(&sum);
    /* integers are divided by whom the sum completes, floats beforehand by everybody */
    if (source->is_completed && line->plan.redop == ncclAvg && line->plan.is_recorded)
        (void)crystal_reduce_finish_avg(data, message->elts, line->plan.dtype,
                                        next->ring.nranks);
    return 0;
}

/* 1 put, 0 wait. */
static int payload_put(struct crystal_lines *lines, struct crystal_line *line,
                       const struct crystal_line_next *next,
                       const struct crystal_ring_message *message, void *data,
                       uint64_t bytes, struct crystal_error *err)
{
    struct crystal_line_source source;
    struct line_message *copy;
    int code;

    crystal_line_source(&next->ring, lines->comm->crank, lines->place.run_before,
                        next->index, &source);
    if (source.is_block)
        return block_put(line, next, &source, message, data, bytes, err);
    if (source.has_copy) {
        copy = message_at(line, source.copy_index);
        if (!copy)
            return 0;
        if (copy->sent.bytes != crystal_form_bytes(next->ring.proto, bytes) ||
            (bytes && !copy->data))
            return crystal_error_set(
                err, EPROTO,
                "message %llu of an operation has %llu bytes where "
                "the ring's schedule has %llu",
                (unsigned long long)source.copy_index,
                (unsigned long long)copy->sent.bytes, (unsigned long long)bytes);
        crystal_form_unpack(next->ring.proto, copy->data, bytes, data);
    }
    code = contributions_put(line, next, &source, message, data, err);
    return code ? code : 1;
}

/* Forgets what no later message needs. */
static void messages_drop(struct crystal_line *line, uint64_t next_index)
{
    const struct crystal_vt_path *path = &line->vt.path;
    uint64_t delay = path->is_ring ? (uint64_t)path->run * path->slices : 0;

    while (line->kept && line->first + delay < next_index) {
        free(line->messages[line->first % line->room].data);
        line->messages[line->first % line->room].data = NULL;
        line->first++;
        line->kept--;
    }
}

/* Where the data of a message are made: at their place where they stay as they are. */
static void *data_place(struct crystal_lines *lines, enum crystal_proto proto,
                        uint64_t bytes, void *data)
{
    if (proto == CRYSTAL_PROTO_SIMPLE)
        return data;
    if (bytes > lines->scratch_bytes || !lines->scratch) {
        free(lines->scratch);
        lines->scratch = malloc(bytes ? bytes : 1);
        lines->scratch_bytes = lines->scratch ? bytes : 0;
    }
    return lines->scratch;
}

static int take_locked(struct crystal_lines *lines, struct crystal_line *line,
                       const struct crystal_line_next *next, void *data, uint64_t room,
                       uint64_t *ret_bytes, uint64_t *ret_ns, uint64_t *ret_free_ns,
                       struct crystal_error *err)
{
    struct line_message *sent = NULL, *edge = NULL;
    struct crystal_ring_message message;
    uint64_t sent_index, edge_index, bytes, wire_bytes;
    void *place;
    int code = line_open(lines, line, next, err);

    if (code)
        return code;
    if (next->index != line->taken || next->count != line->taken_count)
        return crystal_error_set(
            err, EPROTO,
            "operation %llu: message %llu was posted when %llu was "
            "due",
            (unsigned long long)line->seq, (unsigned long long)next->index,
            (unsigned long long)line->taken);
    crystal_ring_message(&next->ring, lines->comm->crank, 0, next->index, &message);
    bytes = (uint64_t)message.elts * next->ring.elt_bytes;
    wire_bytes = crystal_form_bytes(next->ring.proto, bytes);
    if (wire_bytes > room)
        return crystal_error_set(err, EMSGSIZE,
                                 "a message of %llu bytes of the ring's schedule does "
                                 "not fit the %llu that were posted",
                                 (unsigned long long)wire_bytes,
                                 (unsigned long long)room);
    place = data_place(lines, next->ring.proto, bytes, data);
    if (!place)
        return crystal_error_set(err, ENOMEM, "out of memory for a message");
    crystal_vt_needs(&line->vt.path, next->index, &sent_index, &edge_index);
    if (sent_index != CRYSTAL_VT_NONE && !(sent = message_at(line, sent_index)))
        return wait_for_sender(lines);
    if (edge_index != CRYSTAL_VT_NONE && !(edge = message_at(line, edge_index)))
        return wait_for_sender(lines);
    code = payload_put(lines, line, next, &message, place, bytes, err);
    if (code < 0)
        return code;
    if (!code)
        return wait_for_sender(lines);
    crystal_form_pack(next->ring.proto, next->step, place, bytes, data);
    *ret_ns = crystal_vt_next(&line->vt, wire_bytes, next->arrive, next->arrive_user,
                              sent ? &sent->sent : NULL, edge ? &edge->sent : NULL,
                              ret_free_ns);
    *ret_bytes = wire_bytes;
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
