/* The service's thread: an event loop with ports and their guests. Other threads have
 * things done by posting an order and waiting until the loop has run it. A connection
 * that does not keep to the protocol is closed and forgotten.
 */
#include "config.h"

#include "replay/hostccl/service_internal.h"

#include "replay/hostccl/fork.h"
#include "runtime/log.h"
#include "runtime/peer.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SIZE_BYTES 4U /* of a message, behind the handshake */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t done;
    struct hostccl_order *orders; /* under lock */
    bool is_running;              /* under lock */
    bool is_stopping;             /* set by an order, read by the thread */
    pthread_t thread;
    int wake_fd;
    struct crystal_loop *loop; /* the rest: the thread's own */
    struct crystal_watch wake;
    struct hostccl_guest *guests;
    struct crystal_timer timer;
    uint64_t period_ns;
    void (*periodic)(void);
} service = {.lock = PTHREAD_MUTEX_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

void hostccl_guest_close(struct hostccl_guest *guest)
{
    struct hostccl_guest **at = &service.guests;

    while (*at != guest)
        at = &(*at)->next;
    *at = guest->next;
    crystal_watch_stop(&guest->watch);
    (void)close(guest->watch.fd);
    free(guest->bytes);
    free(guest);
}

void hostccl_port_close(struct hostccl_port *port)
{
    struct hostccl_guest *guest = service.guests;

    while (guest) {
        struct hostccl_guest *next = guest->next;

        if (guest->port == port)
            hostccl_guest_close(guest);
        guest = next;
    }
    crystal_watch_stop(&port->watch);
    (void)close(port->watch.fd);
}

/* The handshake, then what the port makes of the message. */
static int guest_parse(struct hostccl_guest *guest)
{
    struct hostccl_handshake shake;

    if (guest->have > sizeof shake)
        return guest->port->parse(guest);
    memcpy(&shake, guest->bytes, sizeof shake);
    if (shake.magic != guest->port->magic || shake.kind != HOSTCCL_SOCKET_BOOTSTRAP)
        return -EPROTO;
    guest->want += SIZE_BYTES;
    return 0;
}

static void guest_read(void *context, uint32_t events)
{
    struct hostccl_guest *guest = context;

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
            guest->port->finish(guest);
            return;
        }
    }
    hostccl_guest_close(guest); /* a stranger, or one who left in the middle */
}

static void port_read(void *context, uint32_t events)
{
    struct hostccl_port *port = context;

    (void)events;
    for (;;) {
        int fd = accept4(port->watch.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        struct hostccl_guest *guest;

        if (fd < 0)
            return; /* none left; what is wrong with one says nothing of the next */
        if (!crystal_peer_admit(fd, "hostccl", CRYSTAL_PEER_GONE_MAY)) {
            (void)close(fd); /* another user's */
            continue;
        }
        guest = calloc(1, sizeof *guest);
        if (guest)
            guest->bytes = malloc(HOSTCCL_GUEST_MAX);
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

int hostccl_port_start(struct hostccl_port *port, struct crystal_error *err)
{
    return crystal_watch_start(&port->watch, service.loop, port->watch.fd, EPOLLIN,
                               port_read, port, err);
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
        struct hostccl_order *order = service.orders;

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
    hostccl_roots_close();
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

int hostccl_service_do(void (*run)(struct hostccl_order *order), void *object,
                       struct crystal_error *err)
{
    struct hostccl_order order = {.run = run, .object = object};
    struct hostccl_order **at;
    uint64_t one = 1;
    int result = hostccl_fork_check(err);

    if (result)
        return result;
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

static void tick(void *context)
{
    (void)context;
    service.periodic();
    crystal_timer_start(&service.timer, service.loop, service.period_ns, tick, NULL);
}

static void every(struct hostccl_order *order)
{
    (void)order;
    crystal_timer_start(&service.timer, service.loop, service.period_ns, tick, NULL);
}

int hostccl_service_every(uint64_t period_ns, void (*fn)(void),
                          struct crystal_error *err)
{
    service.period_ns = period_ns;
    service.periodic = fn;
    return hostccl_service_do(every, NULL, err);
}

static void stop(struct hostccl_order *order)
{
    (void)order;
    service.is_stopping = true;
}

void hostccl_service_stop(void)
{
    bool is_running;

    if (hostccl_fork_is_child())
        return;
    pthread_mutex_lock(&service.lock);
    is_running = service.is_running;
    pthread_mutex_unlock(&service.lock);
    if (!is_running)
        return;
    (void)hostccl_service_do(stop, NULL, NULL);
    (void)pthread_join(service.thread, NULL);
    pthread_mutex_lock(&service.lock);
    service.is_running = false;
    pthread_mutex_unlock(&service.lock);
    crystal_loop_destroy(service.loop);
    (void)close(service.wake_fd);
}
