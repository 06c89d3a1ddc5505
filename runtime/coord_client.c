/* A client's connection to the coordinator: see coord_client.h for the calls and
 * message.h for the bytes; the table of expected answers is in coord_pending.c, the
 * reader thread in coord_reader.c.
 *
 * Callers send under send_lock and register what they expect; the reader fills the
 * answers in, results straight into the callers' buffers, and wakes whoever waits. A
 * stop or a lost connection is remembered as one sentence and ends every present and
 * later call.
 */
#include "config.h"

#include "runtime/coord_client_state.h"

#include "runtime/coord_dial.h"
#include "runtime/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define WAITING_MS 300 /* a wait that lasts longer is told to the coordinator */

int crystal_client_stopped(const struct crystal_client *c, struct crystal_error *err)
{
    return crystal_error_set(err, c->stopped, "%s", c->sentence);
}

/* --- sending --- */

int crystal_client_send(struct crystal_client *c, unsigned type, uint32_t request,
                        struct iovec *body, size_t body_count,
                        struct crystal_error *err)
{
    int rc;

    pthread_mutex_lock(&c->send_lock);
    rc = crystal_message_send(c->fd, type, request, body, body_count, err);
    pthread_mutex_unlock(&c->send_lock);
    return rc;
}

/* Not for the reader thread: a broken connection is explained by what the reader still
 * finds in the socket, and this waits for it. */
static int send_message(struct crystal_client *c, unsigned type, uint32_t request,
                        struct iovec *body, size_t body_count,
                        struct crystal_error *err)
{
    int rc = crystal_client_send(c, type, request, body, body_count, err);

    if (rc == 0 || rc == -EMSGSIZE)
        return rc;
    (void)shutdown(c->fd, SHUT_WR);
    pthread_mutex_lock(&c->lock);
    while (!c->stopped)
        pthread_cond_wait(&c->changed, &c->lock);
    rc = crystal_client_stopped(c, err);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static int send_text(struct crystal_client *c, unsigned type, const char *text)
{
    struct iovec body = {(void *)(uintptr_t)text, strlen(text)};

    return crystal_client_send(c, type, 0, &body, 1, NULL);
}

/* --- opening --- */

static struct crystal_client *client_create(int fd, struct crystal_error *err)
{
    struct crystal_client *c = calloc(1, sizeof *c);
    pthread_condattr_t attr;
    int rc;

    if (!c) {
        (void)crystal_error_set(err, ENOMEM, "coordinator: out of memory");
        return NULL;
    }
    c->fd = fd;
    c->next_request = 1;
    (void)pthread_mutex_init(&c->lock, NULL); /* cannot fail on Linux, like the rest */
    (void)pthread_mutex_init(&c->send_lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&c->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    rc = crystal_thread_start(&c->reader, crystal_client_read, c);
    if (rc != 0) {
        (void)crystal_error_set(err, rc, "coordinator: cannot start a thread: %s",
                                strerror(rc));
        free(c);
        return NULL;
    }
    return c;
}

struct crystal_client *crystal_client_open(const char *coord_file,
                                           const char *token_file,
                                           enum crystal_role role, uint32_t lrank,
                                           struct crystal_msg_welcome *ret_welcome,
                                           struct crystal_error *err)
{
    struct crystal_client *c;
    int fd;

    if (crystal_coord_dial(coord_file, token_file, role, lrank, ret_welcome, &fd, err) <
        0)
        return NULL;
    c = client_create(fd, err);
    if (!c)
        (void)close(fd);
    return c;
}

void crystal_client_close(struct crystal_client *c)
{
    if (!c)
        return;
    (void)crystal_client_send(c, CRYSTAL_MSG_BYE, 0, NULL, 0, NULL);
    (void)shutdown(c->fd, SHUT_RDWR); /* what was sent still arrives */
    (void)pthread_join(c->reader, NULL);
    (void)close(c->fd);
    for (unsigned i = 0; i < CRYSTAL_PENDING_CHAINS; i++)
        while (c->chains[i]) {
            struct pending *p = c->chains[i];

            c->chains[i] = p->next;
            crystal_pending_free(p);
        }
    (void)pthread_cond_destroy(&c->changed);
    (void)pthread_mutex_destroy(&c->send_lock);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}

/* --- calls --- */

static void deadline_in(struct timespec *t, int64_t ms)
{
    (void)clock_gettime(CLOCK_MONOTONIC, t);
    t->tv_sec += ms / 1000;
    t->tv_nsec += ms % 1000 * 1000000;
    if (t->tv_nsec >= 1000000000) {
        t->tv_sec++;
        t->tv_nsec -= 1000000000;
    }
}

/* Waits for p, takes it out of the table. p is the caller's then. */
static int pending_wait(struct crystal_client *c, struct pending *p,
                        struct crystal_error *err)
{
    struct timespec deadline;
    int told = p->type != CRYSTAL_MSG_RESULT;
    int rc = 0;

    deadline_in(&deadline, WAITING_MS);
    pthread_mutex_lock(&c->lock);
    while (!p->done && !c->stopped) {
        if (told) {
            (void)pthread_cond_wait(&c->changed, &c->lock);
        } else if (pthread_cond_timedwait(&c->changed, &c->lock, &deadline) ==
                   ETIMEDOUT) {
            pthread_mutex_unlock(&c->lock);
            told = !c->is_blocked || c->is_blocked();
            if (told) /* a failure shows as stopped */
                (void)crystal_client_send(c, CRYSTAL_MSG_WAITING, p->request, NULL, 0,
                                          NULL);
            deadline_in(&deadline, WAITING_MS);
            pthread_mutex_lock(&c->lock);
        }
    }
    if (!p->done)
        rc = crystal_client_stopped(c, err);
    crystal_pending_unlink(c, p);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* What was posted under this number; NULL with the sentence where nothing was. */
static struct pending *posted(struct crystal_client *c, uint32_t ticket,
                              struct crystal_error *err)
{
    struct pending *p;

    pthread_mutex_lock(&c->lock);
    p = crystal_pending_find(c, ticket);
    pthread_mutex_unlock(&c->lock);
    if (!p)
        (void)crystal_error_set(err, EINVAL, "coordinator: nothing was posted as %u",
                                ticket);
    return p;
}

/* Sends a request whose answer is of answer_type; *ret expects it. */
static int request_send(struct crystal_client *c, unsigned type, const void *body,
                        size_t body_bytes, unsigned answer_type, struct pending **ret,
                        struct crystal_error *err)
{
    struct iovec iov = {(void *)(uintptr_t)body, body_bytes};
    struct pending *p = calloc(1, sizeof *p);
    int rc;

    if (!p)
        return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    p->type = (uint16_t)answer_type;
    rc = crystal_pending_add(c, p, err);
    if (rc < 0)
        goto err_free;
    rc = send_message(c, type, p->request, &iov, 1, err);
    if (rc < 0) {
        pthread_mutex_lock(&c->lock);
        crystal_pending_unlink(c, p);
        pthread_mutex_unlock(&c->lock);
        goto err_free;
    }
    *ret = p;
    return 0;
err_free:
    crystal_pending_free(p);
    return rc;
}

/* Waits for the answer to a request, which must have exactly answer_bytes (or at least,
 * where ret_rest is given: the rest is copied there as text). Frees p. */
static int request_wait(struct crystal_client *c, struct pending *p, void *answer,
                        size_t answer_bytes, char *ret_rest, size_t rest_bytes,
                        struct crystal_error *err)
{
    int rc = pending_wait(c, p, err);
    size_t rest = p->answer_bytes - answer_bytes;

    if (rc < 0)
        goto out;
    if (p->answer_bytes < answer_bytes || (ret_rest ? rest >= rest_bytes : rest != 0)) {
        rc = crystal_client_bad_answer(err, p->type);
        goto out;
    }
    if (answer_bytes)
        memcpy(answer, p->answer, answer_bytes);
    if (ret_rest) {
        memcpy(ret_rest, p->answer + answer_bytes, rest);
        ret_rest[rest] = '\0';
    }
out:
    crystal_pending_free(p);
    return rc;
}

static int call(struct crystal_client *c, unsigned type, const void *body,
                size_t body_bytes, unsigned answer_type, void *answer,
                size_t answer_bytes, char *ret_rest, size_t rest_bytes,
                struct crystal_error *err)
{
    struct pending *p;
    int rc = request_send(c, type, body, body_bytes, answer_type, &p, err);

    return rc ? rc
              : request_wait(c, p, answer, answer_bytes, ret_rest, rest_bytes, err);
}

void crystal_client_blocked(struct crystal_client *c, uint32_t ticket)
{
    (void)crystal_client_send(c, CRYSTAL_MSG_WAITING, ticket, NULL, 0,
                              NULL); /* shows as stopped */
}

void crystal_client_ask_blocked(struct crystal_client *c, int (*is_blocked)(void))
{
    c->is_blocked = is_blocked;
}

int crystal_client_comm_init(struct crystal_client *c,
                             const struct crystal_msg_comm_init *init,
                             uint32_t *ret_comm, char *ret_name, size_t name_bytes,
                             struct crystal_error *err)
{
    struct crystal_msg_comm_ready ready;
    int rc;

    rc = call(c, CRYSTAL_MSG_COMM_INIT, init, sizeof *init, CRYSTAL_MSG_COMM_READY,
              &ready, sizeof ready, ret_name, name_bytes, err);
    if (rc == 0)
        *ret_comm = ready.comm;
    return rc;
}

int crystal_client_hint(struct crystal_client *c, uint64_t iterations, int *ret_stop,
                        struct crystal_error *err)
{
    uint32_t stop;
    int rc;

    rc = call(c, CRYSTAL_MSG_HINT, &iterations, sizeof iterations,
              CRYSTAL_MSG_HINT_ANSWER, &stop, sizeof stop, NULL, 0, err);
    if (rc == 0)
        *ret_stop = stop != 0;
    return rc;
}

static int begin(struct crystal_client *c, uint32_t stage, uint32_t slice,
                 struct crystal_error *err)
{
    struct crystal_msg_begin message = {.stage = stage, .slice = slice};

    return call(c, CRYSTAL_MSG_BEGIN, &message, sizeof message, CRYSTAL_MSG_OK, NULL, 0,
                NULL, 0, err);
}

int crystal_client_begin(struct crystal_client *c, uint32_t stage,
                         struct crystal_error *err)
{
    return begin(c, stage, 0, err);
}

int crystal_client_begin_rank(struct crystal_client *c, uint32_t lrank,
                              struct crystal_error *err)
{
    return begin(c, 1, lrank + 1, err);
}

int crystal_client_begin_slice(struct crystal_client *c, uint32_t target_node,
                               struct crystal_error *err)
{
    return begin(c, 2, target_node + 1, err);
}

int crystal_client_nodes(struct crystal_client *c, const struct crystal_msg_node *own,
                         struct crystal_msg_node *nodes, struct crystal_error *err)
{
    int rc = call(c, CRYSTAL_MSG_NODE, own, sizeof *own, CRYSTAL_MSG_NODES, nodes,
                  own->node_count * sizeof *nodes, NULL, 0, err);

    for (uint32_t i = 0; rc == 0 && i < own->node_count; i++)
        if (nodes[i].node != i || nodes[i].node_count != own->node_count ||
            !nodes[i].port || nodes[i].port > UINT16_MAX)
            rc = crystal_client_bad_answer(err, CRYSTAL_MSG_NODES);
    return rc;
}

int crystal_client_meet(struct crystal_client *c, const struct crystal_msg_meet *own,
                        uint32_t *ret_ticket, struct crystal_error *err)
{
    struct pending *p;
    int rc =
        request_send(c, CRYSTAL_MSG_MEET, own, sizeof *own, CRYSTAL_MSG_MET, &p, err);

    if (rc == 0)
        *ret_ticket = p->request;
    return rc;
}

int crystal_client_met(struct crystal_client *c, uint32_t ticket, uint32_t *ret_value,
                       struct crystal_error *err)
{
    struct pending *p = posted(c, ticket, err);
    struct crystal_msg_meet first;
    int rc;

    if (!p)
        return -EINVAL;
    rc = request_wait(c, p, &first, sizeof first, NULL, 0, err);
    if (rc == 0)
        *ret_value = first.value;
    return rc;
}

int crystal_client_finish(struct crystal_client *c, struct crystal_error *err)
{
    return call(c, CRYSTAL_MSG_FINISH, NULL, 0, CRYSTAL_MSG_OK, NULL, 0, NULL, 0, err);
}

int crystal_client_fail(struct crystal_client *c, const char *sentence)
{
    return send_text(c, CRYSTAL_MSG_FAIL, sentence);
}

void crystal_client_on_comm_id(struct crystal_client *c, crystal_client_comm_id_fn fn,
                               void *context)
{
    pthread_mutex_lock(&c->lock);
    while (c->comm_id_busy) /* the old context is its caller's again when we return */
        pthread_cond_wait(&c->changed, &c->lock);
    c->comm_id_fn = fn;
    c->comm_id_context = context;
    pthread_mutex_unlock(&c->lock);
}

int crystal_client_post(struct crystal_client *c, const struct crystal_client_op *ops,
                        uint32_t op_count, uint32_t *ret_ticket,
                        struct crystal_error *err)
{
    struct iovec *body = malloc(((size_t)op_count * 2 + 1) * sizeof *body);
    struct pending *p = calloc(1, sizeof *p);
    size_t parts = 0;
    int rc;

    if (p)
        p->recvs = calloc((size_t)op_count + 1, sizeof *p->recvs);
    if (!body || !p || !p->recvs) {
        rc = crystal_error_set(err, ENOMEM, "coordinator: out of memory");
        goto err_free;
    }
    p->type = CRYSTAL_MSG_RESULT;
    p->recv_count = op_count;
    body[parts++] = (struct iovec){&op_count, sizeof op_count};
    for (uint32_t i = 0; i < op_count; i++) {
        const struct crystal_client_op *op = &ops[i];

        p->recvs[i] = (struct pending_recv){op->recv, op->op.recv_bytes};
        body[parts++] = (struct iovec){(void *)(uintptr_t)&op->op, sizeof op->op};
        if (op->op.send_bytes)
            body[parts++] =
                (struct iovec){(void *)(uintptr_t)op->send, (size_t)op->op.send_bytes};
    }
    rc = crystal_pending_add(c, p, err);
    if (rc < 0)
        goto err_free;
    *ret_ticket = p->request;
    rc = send_message(c, CRYSTAL_MSG_OPS, p->request, body, parts, err);
    if (rc < 0) {
        pthread_mutex_lock(&c->lock);
        crystal_pending_unlink(c, p);
        pthread_mutex_unlock(&c->lock);
        goto err_free;
    }
    free(body);
    return 0;
err_free:
    crystal_pending_free(p);
    free(body);
    return rc;
}

int crystal_client_wait(struct crystal_client *c, uint32_t ticket,
                        struct crystal_error *err)
{
    struct pending *p = posted(c, ticket, err);
    int rc;

    if (!p)
        return -EINVAL;
    rc = pending_wait(c, p, err);
    crystal_pending_free(p);
    return rc;
}

int crystal_client_poll(struct crystal_client *c, uint32_t ticket)
{
    struct pending *p;
    int rc;

    pthread_mutex_lock(&c->lock);
    p = crystal_pending_find(c, ticket);
    if (!p)
        rc = -EINVAL;
    else if (p->done)
        rc = 1;
    else
        rc = -c->stopped;
    pthread_mutex_unlock(&c->lock);
    return rc;
}

int crystal_client_wait_stop(struct crystal_client *c, int timeout_ms,
                             struct crystal_error *err)
{
    struct timespec deadline;
    int rc = 0;

    deadline_in(&deadline, timeout_ms < 0 ? 0 : timeout_ms);
    pthread_mutex_lock(&c->lock);
    while (!c->stopped && rc == 0) {
        if (timeout_ms < 0)
            (void)pthread_cond_wait(&c->changed, &c->lock);
        else if (pthread_cond_timedwait(&c->changed, &c->lock, &deadline) == ETIMEDOUT)
            rc = -ETIMEDOUT;
    }
    if (c->stopped)
        rc = c->stopped_well ? 0 : crystal_client_stopped(c, err);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

uint32_t crystal_client_lost(struct crystal_client *c)
{
    uint32_t lost;

    pthread_mutex_lock(&c->lock);
    lost = c->stopped ? c->lost : 0;
    pthread_mutex_unlock(&c->lock);
    return lost ? lost - 1 : UINT32_MAX;
}
