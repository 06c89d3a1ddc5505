/* The reader thread of a client: takes in every message of the coordinator. See
 * coord_client_state.h. */
#include "config.h"

#include "runtime/coord_client_state.h"

#include "runtime/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define ANSWER_MAX 65536

/* With lock held. */
static void stop_locked(struct crystal_client *c, int well, const char *sentence)
{
    if (!c->stopped) {
        c->stopped = ECANCELED;
        c->stopped_well = well;
        (void)snprintf(c->sentence, sizeof c->sentence, "%s", sentence);
    }
    pthread_cond_broadcast(&c->changed);
}

static int read_text(struct crystal_client *c, uint32_t bytes, char *text,
                     size_t text_bytes, struct crystal_error *err)
{
    char rest[256];
    size_t keep = bytes < text_bytes - 1 ? bytes : text_bytes - 1;
    int rc = crystal_message_receive(c->fd, text, keep, err);

    text[rc < 0 ? 0 : keep] = '\0';
    for (size_t left = bytes - keep; rc == 0 && left;) {
        size_t part = left < sizeof rest ? left : sizeof rest;

        rc = crystal_message_receive(c->fd, rest, part, err);
        left -= part;
    }
    return rc;
}

int crystal_client_bad_answer(struct crystal_error *err, unsigned type)
{
    return crystal_error_set(err, EBADMSG,
                             "coordinator: message of type %u does not fit what was "
                             "asked",
                             type);
}

/* Fills the buffers of a RESULT. p stays valid: only its waiter frees it, when it is
 * done or all is stopped, and the reader reads nothing after a stop. */
static int read_result(struct crystal_client *c, struct pending *p, uint64_t left,
                       struct crystal_error *err)
{
    uint32_t count;
    int rc;

    if (left < sizeof count)
        return crystal_client_bad_answer(err, CRYSTAL_MSG_RESULT);
    rc = crystal_message_receive(c->fd, &count, sizeof count, err);
    left -= sizeof count;
    if (rc == 0 && count != p->recv_count)
        return crystal_client_bad_answer(err, CRYSTAL_MSG_RESULT);
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        uint64_t bytes;

        if (left < sizeof bytes)
            return crystal_client_bad_answer(err, CRYSTAL_MSG_RESULT);
        rc = crystal_message_receive(c->fd, &bytes, sizeof bytes, err);
        left -= sizeof bytes;
        if (rc < 0)
            return rc;
        if (bytes != p->recvs[i].bytes || bytes > left)
            return crystal_client_bad_answer(err, CRYSTAL_MSG_RESULT);
        rc = crystal_message_receive(c->fd, p->recvs[i].recv, (size_t)bytes, err);
        left -= bytes;
    }
    if (rc == 0 && left)
        return crystal_client_bad_answer(err, CRYSTAL_MSG_RESULT);
    return rc;
}

static int read_answer(struct crystal_client *c,
                       const struct crystal_message_head *head,
                       struct crystal_error *err)
{
    struct pending *p;
    int rc;

    pthread_mutex_lock(&c->lock);
    p = crystal_pending_find(c, head->request);
    pthread_mutex_unlock(&c->lock);
    if (!p || p->done || p->type != head->type)
        return crystal_client_bad_answer(err, head->type);
    if (head->type == CRYSTAL_MSG_RESULT) {
        rc = read_result(c, p, head->body_bytes, err);
    } else {
        if (head->body_bytes > ANSWER_MAX)
            return crystal_client_bad_answer(err, head->type);
        p->answer = malloc(head->body_bytes + 1);
        if (!p->answer)
            return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
        p->answer_bytes = head->body_bytes;
        rc = crystal_message_receive(c->fd, p->answer, head->body_bytes, err);
    }
    if (rc < 0)
        return rc;
    pthread_mutex_lock(&c->lock);
    p->done = 1;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return 0;
}

/* COMM_ID and COMM_FORGE. The callback's failure stops the stage, not this reader. */
static int read_comm_id(struct crystal_client *c,
                        const struct crystal_message_head *head,
                        struct crystal_error *err)
{
    struct crystal_msg_comm_id msg;
    struct crystal_error why = {0};
    uint8_t *body = malloc((size_t)head->body_bytes + 1);
    struct crystal_message_cursor cursor = {body, head->body_bytes};
    uint32_t *members = NULL;
    char *name = NULL;
    const void *name_at, *members_at;
    crystal_client_comm_id_fn fn;
    void *context;
    int forge = head->type == CRYSTAL_MSG_COMM_FORGE;
    int rc;

    if (!body)
        return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    rc = crystal_message_receive(c->fd, body, head->body_bytes, err);
    if (rc < 0)
        goto out;
    rc = crystal_client_bad_answer(err, head->type);
    if (crystal_message_take(&cursor, &msg, sizeof msg) < 0)
        goto out;
    name_at = crystal_message_view(&cursor, msg.name_bytes);
    members_at = crystal_message_view(&cursor, (uint64_t)msg.member_count * 4);
    if (!name_at || !members_at || cursor.left_bytes)
        goto out;
    rc = -ENOMEM;
    name = calloc((size_t)msg.name_bytes + 1, 1);
    members = malloc((size_t)msg.member_count * 4 + 4);
    if (!name || !members) {
        (void)crystal_error_set(err, ENOMEM, "coordinator: out of memory");
        goto out;
    }
    memcpy(name, name_at, msg.name_bytes);
    memcpy(members, members_at, (size_t)msg.member_count * 4);

    pthread_mutex_lock(&c->lock);
    fn = c->comm_id_fn;
    context = c->comm_id_context;
    c->comm_id_busy = fn != NULL;
    pthread_mutex_unlock(&c->lock);
    rc = fn ? fn(context, forge, &msg, name, members, &why) : 0;
    pthread_mutex_lock(&c->lock);
    c->comm_id_busy = 0;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    if (!fn && forge)
        rc = crystal_error_set(&why, ENOTSUP,
                               "agent: nothing here can make the id of '%s'", name);
    if (rc < 0) {
        (void)crystal_client_fail(c, crystal_error_text(&why));
    } else if (forge) {
        struct iovec answer = {&msg, sizeof msg};

        msg.name_bytes = 0;
        msg.member_count = 0;
        (void)crystal_client_send(c, CRYSTAL_MSG_FORGED, head->request, &answer, 1,
                                  NULL);
    }
    rc = 0;
out:
    free(members);
    free(name);
    free(body);
    return rc;
}

static void show_notice(const char *text)
{
    static const char warning[] = CRYSTAL_NOTICE_WARNING;
    const int is_warning = strncmp(text, warning, sizeof warning - 1) == 0;

    crystal_log(is_warning ? CRYSTAL_LOG_WARNING : CRYSTAL_LOG_INFO, "coordinator",
                "%s", text + (is_warning ? sizeof warning - 1 : 0));
}

static int read_message(struct crystal_client *c, struct crystal_error *err)
{
    struct crystal_message_head head;
    struct crystal_msg_stop stop;
    char text[CRYSTAL_ERROR_TEXT_BYTES];
    int rc = crystal_message_receive(c->fd, &head, sizeof head, err);

    if (rc == 0)
        rc = crystal_message_head_check(&head, err);
    if (rc < 0)
        return rc;
    switch (head.type) {
    case CRYSTAL_MSG_ERROR:
    case CRYSTAL_MSG_STOP:
        rc = crystal_message_stop(c->fd, &head, &stop, err);
        if (rc == 0)
            rc = read_text(c, head.body_bytes, text, sizeof text, err);
        if (rc < 0)
            return rc;
        pthread_mutex_lock(&c->lock);
        if (!c->stopped)
            c->lost = stop.lost;
        stop_locked(c, head.type == CRYSTAL_MSG_STOP && !text[0],
                    text[0] ? text : "coordinator: the job is over");
        pthread_mutex_unlock(&c->lock);
        return -ECANCELED; /* nothing after it matters */
    case CRYSTAL_MSG_NOTICE:
        rc = read_text(c, head.body_bytes, text, sizeof text, err);
        if (rc == 0)
            show_notice(text);
        return rc;
    case CRYSTAL_MSG_COMM_ID:
    case CRYSTAL_MSG_COMM_FORGE:
        return read_comm_id(c, &head, err);
    default:
        return read_answer(c, &head, err);
    }
}

void *crystal_client_read(void *context)
{
    struct crystal_client *c = context;
    struct crystal_error err = {0};

    while (read_message(c, &err) == 0)
        continue;
    pthread_mutex_lock(&c->lock);
    if (!c->stopped) {
        int lost = err.code == ECONNRESET || err.code == EPIPE;

        stop_locked(c, 0,
                    lost ? "the coordinator is gone (connection lost); see its log in "
                           "the job directory"
                         : crystal_error_text(&err));
        (void)shutdown(c->fd, SHUT_RDWR); /* nobody waits in send */
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}
