/* Mailboxes: messages from rank to rank, kept until somebody takes them. The service's
 * thread puts them in under the mailbox's lock.
 */
#include "config.h"

#include "replay/hostccl/service_internal.h"

#include "runtime/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Where a message's parts stand: handshake, size, envelope, size, data. */
#define ENVELOPE_AT (sizeof(struct hostccl_handshake) + 4)
#define SIZE_AT     (ENVELOPE_AT + sizeof(struct hostccl_envelope))
#define DATA_AT     (SIZE_AT + 4)

#define WAIT_NS 100000000L

struct mail {
    struct mail *next;
    struct hostccl_envelope from;
    uint32_t bytes;
    char data[];
};

struct hostccl_mailbox {
    struct hostccl_port port; /* first */
    void (*notify)(void);
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    struct mail *first, **last; /* under lock */
};

static int parse(struct hostccl_guest *guest)
{
    uint32_t size;

    memcpy(&size, guest->bytes + sizeof(struct hostccl_handshake), sizeof size);
    if (size != sizeof(struct hostccl_envelope))
        return -EPROTO;
    guest->want = DATA_AT;
    if (guest->have < DATA_AT)
        return 0;
    memcpy(&size, guest->bytes + SIZE_AT, sizeof size);
    if (size > HOSTCCL_GUEST_MAX - DATA_AT)
        return -EPROTO;
    guest->want += size;
    return guest->have == guest->want;
}

static int deliver(struct hostccl_mailbox *box, const struct hostccl_guest *guest)
{
    uint32_t bytes = guest->have - DATA_AT;
    struct mail *mail = malloc(sizeof *mail + bytes);

    if (!mail)
        return -ENOMEM;
    mail->next = NULL;
    memcpy(&mail->from, guest->bytes + ENVELOPE_AT, sizeof mail->from);
    mail->bytes = bytes;
    memcpy(mail->data, guest->bytes + DATA_AT, bytes);
    pthread_mutex_lock(&box->lock);
    *box->last = mail;
    box->last = &mail->next;
    pthread_cond_broadcast(&box->arrived);
    pthread_mutex_unlock(&box->lock);
    if (box->notify)
        box->notify();
    return 0;
}

static void finish(struct hostccl_guest *guest)
{
    if (deliver((struct hostccl_mailbox *)guest->port, guest))
        crystal_log(CRYSTAL_LOG_ERROR, "hostccl", "out of memory for a message");
    hostccl_guest_close(guest);
}

static void box_start(struct hostccl_order *order)
{
    struct hostccl_mailbox *box = order->object;

    order->result = hostccl_port_start(&box->port, &order->err);
}

struct hostccl_mailbox *hostccl_mailbox_create(int listen_fd, uint64_t magic,
                                               void (*notify)(void),
                                               struct crystal_error *err)
{
    struct hostccl_mailbox *box = calloc(1, sizeof *box);
    pthread_condattr_t attr;

    if (!box) {
        (void)crystal_error_set(err, ENOMEM, "out of memory");
        return NULL;
    }
    box->port.watch.fd = listen_fd;
    box->port.magic = magic;
    box->port.parse = parse;
    box->port.finish = finish;
    box->notify = notify;
    box->last = &box->first;
    (void)pthread_mutex_init(&box->lock, NULL); /* cannot fail with defaults */
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&box->arrived, &attr);
    (void)pthread_condattr_destroy(&attr);
    if (hostccl_service_do(box_start, box, err)) {
        (void)pthread_cond_destroy(&box->arrived);
        (void)pthread_mutex_destroy(&box->lock);
        free(box);
        return NULL;
    }
    return box;
}

static void box_stop(struct hostccl_order *order)
{
    struct hostccl_mailbox *box = order->object;

    hostccl_port_close(&box->port);
}

void hostccl_mailbox_destroy(struct hostccl_mailbox *box)
{
    if (!box)
        return;
    (void)hostccl_service_do(box_stop, box, NULL); /* the thread runs: cannot fail */
    while (box->first) {
        struct mail *mail = box->first;

        box->first = mail->next;
        free(mail);
    }
    (void)pthread_cond_destroy(&box->arrived);
    (void)pthread_mutex_destroy(&box->lock);
    free(box);
}

/* box->lock is held. */
static int take(struct hostccl_mailbox *box, int32_t crank, int32_t tag, void *data,
                uint32_t max, uint32_t *ret_bytes)
{
    struct mail **at, *mail;
    int result = 1;

    for (at = &box->first; (mail = *at); at = &mail->next)
        if (mail->from.crank == crank && mail->from.tag == tag)
            break;
    if (!mail)
        return 0;
    *at = mail->next;
    if (!*at)
        box->last = at;
    if (mail->bytes > max)
        result = -EMSGSIZE;
    else if (mail->bytes)
        memcpy(data, mail->data, mail->bytes);
    *ret_bytes = mail->bytes;
    free(mail);
    return result;
}

int hostccl_mailbox_take(struct hostccl_mailbox *box, int32_t crank, int32_t tag,
                         void *data, uint32_t max, uint32_t *ret_bytes)
{
    int result;

    pthread_mutex_lock(&box->lock);
    result = take(box, crank, tag, data, max, ret_bytes);
    pthread_mutex_unlock(&box->lock);
    return result;
}

int hostccl_mailbox_wait(struct hostccl_mailbox *box, int32_t crank, int32_t tag,
                         void *data, uint32_t max, uint32_t *ret_bytes)
{
    struct timespec until;
    int result, code = 0;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += WAIT_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&box->lock);
    while (!(result = take(box, crank, tag, data, max, ret_bytes)) && !code)
        code = pthread_cond_timedwait(&box->arrived, &box->lock, &until);
    pthread_mutex_unlock(&box->lock);
    return result;
}
