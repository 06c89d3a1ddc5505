/* Roots and mailboxes on one event loop. Other threads have things done by posting a
 * function and waiting until the loop has run it; mail is handed over under the
 * mailbox's lock.
 *
 * A root collects check-ins and tells each rank its successor's ring address as soon as
 * both are known (with several roots, the first rank of the next root's block checks in
 * here too). A connection that does not keep to the protocol is closed and forgotten.
 */
#include "config.h"

#include "replay/hostccl/service.h"

#include "replay/hostccl/socket.h"
#include "runtime/log.h"
#include "runtime/loop.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE_MAX (64U << 10)
#define NRANKS_MAX  (1 << 24)

struct mail {
    struct mail *next;
    struct hostccl_envelope from;
    uint32_t bytes;
    char data[];
};

struct port { /* something that listens */
    struct crystal_watch watch;
    uint64_t magic;
    struct root *root; /* one of the two */
    struct hostccl_mailbox *box;
};

struct root {
    struct port port;
    struct root *next;
    uint32_t rank_count;  /* whose check-ins are expected, once the first is there */
    uint32_t reply_count; /* of them are ours to answer */
    uint32_t seen_count, first;
    int32_t nranks, iroot, nroots;
    struct hostccl_checkin *ranks; /* [rank_count] by crank - first */
    bool *seen;
};

struct hostccl_mailbox {
    struct port port;
    void (*notify)(void);
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    struct mail *first, **last; /* under lock */
};

struct guest { /* an accepted connection whose message is not complete */
    struct crystal_watch watch;
    struct guest *next;
    struct port *port;
    uint32_t have;
    uint32_t want; /* bytes that can be understood next */
    char *bytes;   /* [MESSAGE_MAX at most] */
};

struct order {
    struct order *next;
    void (*run)(struct order *order);
    void *object;
    int result;
    struct crystal_error err;
    bool is_done;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t done;
    struct order *orders; /* under lock */
    bool is_running;      /* under lock */
    bool is_stopping;     /* set by an order, read by the thread */
    pthread_t thread;
    int wake_fd;
    struct crystal_loop *loop; /* the rest: the thread's own */
    struct crystal_watch wake;
    struct root *roots;
    struct guest *guests;
    struct crystal_timer timer;
    uint64_t period_ns;
    void (*periodic)(void);
} service = {.lock = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

static void guest_close(struct guest *guest)
{
    struct guest **at = &service.guests;

    while (*at != guest)
        at = &(*at)->next;
    *at = guest->next;
    crystal_watch_stop(&guest->watch);
    (void)close(guest->watch.fd);
    free(guest->bytes);
    free(guest);
}

static void guests_close(const struct port *port)
{
    struct guest *guest = service.guests;

    while (guest) {
        struct guest *next = guest->next;

        if (guest->port == port)
            guest_close(guest);
        guest = next;
    }
}

static void root_close(struct root *root)
{
    struct root **at = &service.roots;

    while (*at != root)
        at = &(*at)->next;
    *at = root->next;
    guests_close(&root->port);
    crystal_watch_stop(&root->port.watch);
    (void)close(root->port.watch.fd);
    free(root->ranks);
    free(root->seen);
    free(root);
}

/* Ranks per root: blocks of nranks / nroots, the first nranks % nroots one longer. */
static int root_begin(struct root *root, const struct hostccl_checkin *in)
{
    uint32_t n = (uint32_t)in->nranks, roots = (uint32_t)in->nroots;
    uint32_t i = (uint32_t)in->iroot;

    if (in->nranks < 1 || in->nranks > NRANKS_MAX || in->nroots < 1 ||
        in->nroots > in->nranks || in->iroot < 0 || in->iroot >= in->nroots)
        return -EPROTO;
    root->first = i * (n / roots) + (i < n % roots ? i : n % roots);
    root->reply_count = n / roots + (i < n % roots);
    root->rank_count = root->reply_count + (roots > 1);
    root->nranks = in->nranks;
    root->iroot = in->iroot;
    root->nroots = in->nroots;
    root->ranks = calloc(root->rank_count, sizeof *root->ranks);
    root->seen = calloc(root->rank_count, sizeof *root->seen);
    return root->ranks && root->seen ? 0 : -ENOMEM;
}

/* Tells the rank at index where its successor listens, if both have checked in. */
static void root_answer(const struct root *root, uint32_t index)
{
    uint32_t next = (index + 1) % root->rank_count;
    struct crystal_error err = {0};
    int fd, result;

    if (index >= root->reply_count || !root->seen[index] || !root->seen[next])
        return;
    result =
        hostccl_dial(&root->ranks[index].answer_at, root->port.magic, NULL, &fd, &err);
    if (!result) {
        result = hostccl_send_message(fd, root->ranks[next].connect.bytes,
                                      sizeof root->ranks[next].connect, NULL, &err);
        (void)close(fd);
    }
    if (result) /* that rank waits for us; its own log has nothing to say */
        crystal_log(CRYSTAL_LOG_WARNING, "hostccl",
                    "the root cannot answer rank %d: %s, ignoring",
                    root->ranks[index].crank, crystal_error_text(&err));
}

static void root_checkin(struct root *root, const struct hostccl_checkin *in)
{
    uint32_t index;

    if (!root->ranks && root_begin(root, in)) {
        crystal_log(CRYSTAL_LOG_DEBUG, "hostccl", "a check-in makes no sense");
        return;
    }
    index = (uint32_t)in->crank - root->first;
    if (in->nranks != root->nranks || in->iroot != root->iroot ||
        in->nroots != root->nroots || index >= root->rank_count || root->seen[index]) {
        crystal_log(CRYSTAL_LOG_WARNING, "hostccl",
                    "rank %d of %d checks in twice or with other numbers than the "
                    "ranks before, ignoring it",
                    in->crank, in->nranks);
        return;
    }
    root->ranks[index] = *in;
    root->seen[index] = true;
    root->seen_count++;
    root_answer(root, index);
    if (index)
        root_answer(root, index - 1);
    else if (root->rank_count > 1)
        root_answer(root, root->rank_count - 1); /* with several roots not ours */
    if (root->seen_count == root->rank_count)
        root_close(root);
}

static int box_deliver(struct hostccl_mailbox *box, const struct guest *guest)
{
    const char *at = guest->bytes + sizeof(struct hostccl_handshake) + 4;
    struct mail *mail;
    uint32_t bytes;

    memcpy(&bytes, at + sizeof mail->from, sizeof bytes);
    mail = malloc(sizeof *mail + bytes);
    if (!mail)
        return -ENOMEM;
    mail->next = NULL;
    memcpy(&mail->from, at, sizeof mail->from);
    mail->bytes = bytes;
    memcpy(mail->data, at + sizeof mail->from + 4, bytes);
    pthread_mutex_lock(&box->lock);
    *box->last = mail;
    box->last = &mail->next;
    pthread_cond_broadcast(&box->arrived);
    pthread_mutex_unlock(&box->lock);
    if (box->notify)
        box->notify();
    return 0;
}

/* Looks at what has arrived. 0: read on, guest->want says how much; 1: complete;
 * negative: not ours. */
static int guest_parse(struct guest *guest)
{
    const uint32_t shake = sizeof(struct hostccl_handshake);
    const uint32_t head = shake + 4 + sizeof(struct hostccl_envelope) + 4;
    struct hostccl_handshake h;
    uint32_t size;

    if (guest->have == shake) {
        memcpy(&h, guest->bytes, sizeof h);
        if (h.magic != guest->port->magic || h.kind != HOSTCCL_SOCKET_BOOTSTRAP)
            return -EPROTO;
        guest->want = guest->port->root
                          ? shake + 4 + (uint32_t)sizeof(struct hostccl_checkin)
                          : head;
        return 0;
    }
    memcpy(&size, guest->bytes + shake, sizeof size);
    if (guest->port->root)
        return size == sizeof(struct hostccl_checkin) ? 1 : -EPROTO;
    if (size != sizeof(struct hostccl_envelope))
        return -EPROTO;
    memcpy(&size, guest->bytes + head - 4, sizeof size);
    if (size > MESSAGE_MAX - head)
        return -EPROTO;
    guest->want = head + size;
    return guest->have == guest->want;
}

static void guest_finish(struct guest *guest)
{
    struct hostccl_checkin in;
    struct root *root = guest->port->root;

    if (!root) {
        if (box_deliver(guest->port->box, guest))
            crystal_log(CRYSTAL_LOG_ERROR, "hostccl", "out of memory for a message");
        guest_close(guest);
        return;
    }
    memcpy(&in, guest->bytes + sizeof(struct hostccl_handshake) + 4, sizeof in);
    guest_close(guest);
    root_checkin(root, &in);
}

static void guest_read(void *context, uint32_t events)
{
    struct guest *guest = context;

    (void)events; /* hang-up and error show when reading */
    for (;;) {
        ssize_t n = recv(guest->watch.fd, guest->bytes + guest->have,
                         guest->want - guest->have, 0);
        int state;

        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0)
            break;
        guest->have += (uint32_t)n;
        if (guest->have < guest->want)
            continue;
        state = guest_parse(guest);
        if (state < 0)
            break;
        if (state > 0) {
            guest_finish(guest);
            return;
        }
    }
    guest_close(guest); /* a stranger, or one who left in the middle */
}

static void port_read(void *context, uint32_t events)
{
    struct port *port = context;

    (void)events;
    for (;;) {
        int fd = accept4(port->watch.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        struct guest *guest;

        if (fd < 0)
            return; /* none left; what is wrong with one says nothing of the next */
        guest = calloc(1, sizeof *guest);
        if (guest)
            guest->bytes = malloc(MESSAGE_MAX);
        if (!guest || !guest->bytes ||
            crystal_watch_start(&guest->watch, service.loop, fd, EPOLLIN, guest_read,
                                guest, NULL)) {
            if (guest)
                free(guest->bytes);
            free(guest);
            (void)close(fd);
            return;
        }
        guest->port = port;
        guest->want = sizeof(struct hostccl_handshake);
        guest->next = service.guests;
        service.guests = guest;
    }
}

static void run_orders(void *context, uint32_t events)
{
    uint64_t count;

    (void)context;
    (void)events;
    if (read(service.wake_fd, &count, sizeof count) < 0)
        return; /* woken for nothing */
    pthread_mutex_lock(&service.lock);
    while (service.orders) {
        struct order *order = service.orders;

        service.orders = order->next;
        order->run(order);
        order->is_done = true;
    }
    pthread_cond_broadcast(&service.done);
    pthread_mutex_unlock(&service.lock);
}

static void *serve(void *context)
{
    struct crystal_error err = {0};

    (void)context;
    while (!service.is_stopping)
        if (crystal_loop_step(service.loop, -1, &err)) {
            crystal_log(CRYSTAL_LOG_ERROR, "hostccl", "%s", crystal_error_text(&err));
            break;
        }
    while (service.roots)
        root_close(service.roots);
    return NULL;
}

/* Starts the thread; service.lock is held. */
static int start(struct crystal_error *err)
{
    int result;

    if (service.is_running)
        return 0;
    service.is_stopping = false;
    service.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (service.wake_fd < 0)
        return crystal_error_set(err, errno, "eventfd: %s", strerror(errno));
    service.loop = crystal_loop_create(err);
    if (!service.loop) {
        (void)close(service.wake_fd);
        return -ENOMEM;
    }
    result = crystal_watch_start(&service.wake, service.loop, service.wake_fd, EPOLLIN,
                                 run_orders, NULL, err);
    if (!result && (result = pthread_create(&service.thread, NULL, serve, NULL)))
        result = crystal_error_set(err, result, "cannot start a thread: %s",
                                   strerror(result));
    if (result) {
        crystal_loop_destroy(service.loop);
        (void)close(service.wake_fd);
        return result;
    }
    service.is_running = true;
    return 0;
}

/* Has run(object) done by the thread and waits for it. */
static int have_done(void (*run)(struct order *order), void *object,
                     struct crystal_error *err)
{
    struct order order = {.run = run, .object = object};
    struct order **at;
    uint64_t one = 1;
    int result;

    pthread_mutex_lock(&service.lock);
    result = start(err);
    if (result) {
        pthread_mutex_unlock(&service.lock);
        return result;
    }
    for (at = &service.orders; *at; at = &(*at)->next)
        continue;
    *at = &order;
    if (write(service.wake_fd, &one, sizeof one) < 0)
        order.result = 0; /* the counter is full: it wakes anyway */
    while (!order.is_done)
        pthread_cond_wait(&service.done, &service.lock);
    pthread_mutex_unlock(&service.lock);
    if (order.result)
        return crystal_error_set(err, order.err.code, "%s", order.err.text);
    return 0;
}

static void root_start(struct order *order)
{
    struct root *root = order->object;

    order->result =
        crystal_watch_start(&root->port.watch, service.loop, root->port.watch.fd,
                            EPOLLIN, port_read, &root->port, &order->err);
    if (order->result)
        return;
    root->next = service.roots;
    service.roots = root;
}

int hostccl_service_root(int listen_fd, uint64_t magic, struct crystal_error *err)
{
    struct root *root = calloc(1, sizeof *root);
    int result;

    if (!root)
        return crystal_error_set(err, ENOMEM, "out of memory");
    root->port.watch.fd = listen_fd;
    root->port.magic = magic;
    root->port.root = root;
    result = have_done(root_start, root, err);
    if (result)
        free(root);
    return result;
}

static void box_start(struct order *order)
{
    struct hostccl_mailbox *box = order->object;

    order->result =
        crystal_watch_start(&box->port.watch, service.loop, box->port.watch.fd, EPOLLIN,
                            port_read, &box->port, &order->err);
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
    box->port.box = box;
    box->notify = notify;
    box->last = &box->first;
    (void)pthread_mutex_init(&box->lock, NULL); /* cannot fail with defaults */
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&box->arrived, &attr);
    (void)pthread_condattr_destroy(&attr);
    if (have_done(box_start, box, err)) {
        (void)pthread_cond_destroy(&box->arrived);
        (void)pthread_mutex_destroy(&box->lock);
        free(box);
        return NULL;
    }
    return box;
}

static void box_stop(struct order *order)
{
    struct hostccl_mailbox *box = order->object;

    guests_close(&box->port);
    crystal_watch_stop(&box->port.watch);
    (void)close(box->port.watch.fd);
}

void hostccl_mailbox_destroy(struct hostccl_mailbox *box)
{
    if (!box)
        return;
    (void)have_done(box_stop, box, NULL); /* the thread runs: cannot fail */
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
                         void *data, uint32_t max, uint32_t *ret_bytes,
                         const atomic_bool *abort, struct crystal_error *err)
{
    int result;

    pthread_mutex_lock(&box->lock);
    while (!(result = take(box, crank, tag, data, max, ret_bytes))) {
        struct timespec until;

        if (abort && atomic_load_explicit(abort, memory_order_acquire)) {
            result = crystal_error_set(err, ECANCELED, "the communicator was aborted");
            break;
        }
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 100000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        (void)pthread_cond_timedwait(&box->arrived, &box->lock, &until);
    }
    pthread_mutex_unlock(&box->lock);
    if (result == -EMSGSIZE)
        return crystal_error_set(err, EPROTO, "rank %d sends %u bytes, expected %u",
                                 crank, *ret_bytes, max);
    return result < 0 ? result : 0;
}

static void tick(void *context)
{
    (void)context;
    service.periodic();
    crystal_timer_start(&service.timer, service.loop, service.period_ns, tick, NULL);
}

static void every(struct order *order)
{
    (void)order;
    crystal_timer_start(&service.timer, service.loop, service.period_ns, tick, NULL);
}

int hostccl_service_every(uint64_t period_ns, void (*fn)(void),
                          struct crystal_error *err)
{
    service.period_ns = period_ns;
    service.periodic = fn;
    return have_done(every, NULL, err);
}

static void stop(struct order *order)
{
    (void)order;
    service.is_stopping = true;
}

void hostccl_service_stop(void)
{
    bool is_running;

    pthread_mutex_lock(&service.lock);
    is_running = service.is_running;
    pthread_mutex_unlock(&service.lock);
    if (!is_running)
        return;
    (void)have_done(stop, NULL, NULL);
    (void)pthread_join(service.thread, NULL);
    pthread_mutex_lock(&service.lock);
    service.is_running = false;
    pthread_mutex_unlock(&service.lock);
    crystal_loop_destroy(service.loop);
    (void)close(service.wake_fd);
}
