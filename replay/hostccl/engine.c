/* The driver's role, waiting, and the progress thread. */
#include "config.h"

#include "replay/hostccl/engine.h"

#include "replay/hostccl/comm.h"
#include "replay/hostccl/fork.h"
#include "replay/hostccl/plugin.h"
#include "replay/hostccl/service.h"
#include "runtime/clock.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define WAIT_NS        100000000U /* longest sleep in the plugin */
#define JOIN_WAIT_NS   5000000U   /* while connections are being made */
#define DRAIN_WAIT_NS  200000U    /* while the program ends */
#define TIMER_SLACK_NS 1000UL
#define EXIT_DRAIN_NS  10000000000U /* for the last messages when the program ends */
#define EXIT_ROLE_NS   1000000000U  /* for whoever drives when the program ends */
/* A caller that looks again and again: how long at most, and with waits of which mean
 * length before. A wait through the kernel costs about 5 us, a message 3. */
#define SPIN_NS       50000U
#define LONG_PAUSE_NS (2 * SPIN_NS) /* longer ones count as this */
/* Work that a call leaves is for its caller, where callers wait this soon. */
#define SOON_NS     100000U
#define TICK_MIN_NS 200000U
#define TICK_MAX_NS 1600000U
#define ROUNDS_MAX  4 /* of a call that does not wait */

struct close_order {
    struct close_order *next;
    ncclComm_t comm;
    bool is_flush;    /* only wait until it is idle */
    uint64_t is_done; /* under the lock */
};

/* A thread that waits while another drives, on its stack. */
struct waiter {
    struct waiter *next;
    const uint64_t *value;
    uint64_t until;
    sem_t is_told; /* of its value, or that nobody drives */
};

static struct {
    pthread_mutex_t lock;
    /* under lock */
    pthread_cond_t role; /* for the progress thread: the role is to be had */
    pthread_cond_t news; /* for a driver without transfers */
    struct waiter *waiters;
    struct waiter *told; /* to be woken by the unlock */
    bool is_wake_due;    /* so is the driver, or else the progress thread */
    struct hostccl_item *inbox, **inbox_end;
    struct close_order *orders;
    bool is_running, is_stopping;
    pthread_t thread;
    bool is_driven;
    bool has_driver; /* now or before: */
    pthread_t driver;
    bool is_in_plugin;    /* the driver sleeps there, */
    bool is_asleep;       /* or on news */
    bool is_notified;     /* something is new for the driver */
    bool is_under_way;    /* the last round moved something or left transfers */
    bool is_ticking;      /* the progress thread looks again soon by itself */
    bool do_callers_wait; /* the last ones came soon after their calls */
    bool has_cpus;        /* more than one */
    uint64_t submit_count;
    uint64_t submit_ns; /* of the last call that nobody waited for; 0: not known */
    uint64_t pause_ns;  /* mean time in which nothing moved for a caller that drove */
} engine = {.lock = PTHREAD_MUTEX_INITIALIZER,
            .role = PTHREAD_COND_INITIALIZER,
            .news = PTHREAD_COND_INITIALIZER};

void hostccl_lock(void)
{
    pthread_mutex_lock(&engine.lock);
}

/* Nobody is woken under the lock, so that they need not wait for it. */
void hostccl_unlock(void)
{
    struct waiter *told = engine.told;
    bool is_wake_due = engine.is_wake_due, is_driven = engine.is_driven;
    bool is_in_plugin = engine.is_in_plugin, is_asleep = engine.is_asleep;

    engine.told = NULL;
    engine.is_wake_due = false;
    pthread_mutex_unlock(&engine.lock);
    while (told) {
        struct waiter *next = told->next; /* told goes away when it is woken */

        (void)sem_post(&told->is_told); /* cannot overflow: once per waiter */
        told = next;
    }
    if (!is_wake_due)
        return;
    if (!is_driven)
        pthread_cond_signal(&engine.role);
    else if (is_in_plugin)
        hostccl_plugin_loaded()->wake();
    else if (is_asleep)
        pthread_cond_signal(&engine.news);
}

void hostccl_tell(void)
{
    struct waiter **at = &engine.waiters, *waiter;

    while ((waiter = *at)) {
        if (*waiter->value < waiter->until) {
            at = &waiter->next;
            continue;
        }
        *at = waiter->next;
        waiter->next = engine.told;
        engine.told = waiter;
    }
}

/* Lock held. */
static bool is_left(void)
{
    return !engine.is_driven && (engine.is_notified || engine.is_under_way);
}

/* Lock held. What is left undriven goes to a waiting thread, else to the progress
 * thread. */
static void offer(void)
{
    struct waiter *waiter = engine.waiters;

    if (!is_left())
        return;
    if (waiter) {
        engine.waiters = waiter->next;
        waiter->next = engine.told;
        engine.told = waiter;
    } else if (!engine.is_ticking || !engine.do_callers_wait) {
        engine.is_wake_due = true;
    }
}

/* Lock held. */
static void wake(void)
{
    if (!engine.is_notified && engine.is_driven)
        engine.is_wake_due = true;
    engine.is_notified = true;
    offer();
}

void hostccl_engine_notify(void)
{
    hostccl_lock();
    wake();
    hostccl_unlock();
}

static void put(struct hostccl_item *item)
{
    if (!engine.inbox)
        engine.inbox_end = &engine.inbox;
    item->next = NULL;
    *engine.inbox_end = item;
    engine.inbox_end = &item->next;
}

/* Lock held. */
static bool run_orders(void)
{
    struct close_order **at = &engine.orders, *order;
    bool moved = false;

    while ((order = *at)) {
        ncclComm_t comm = order->comm;
        bool is_idle = !comm->launches && !comm->draining_count;

        if (!is_idle && (order->is_flush || !comm->is_aborting)) {
            at = &order->next;
            continue;
        }
        *at = order->next;
        order->is_done = 1;
        moved = true;
        if (!order->is_flush)
            hostccl_launches_let_go(comm);
    }
    if (moved)
        hostccl_tell();
    return moved;
}

/* Takes over what is new. Lock held. */
static void take_inbox(void)
{
    struct hostccl_item *item = engine.inbox;

    engine.inbox = NULL;
    engine.is_notified = false;
    while (item) {
        struct hostccl_item *next = item->next;

        if (item->kind == HOSTCCL_ITEM_LAUNCH && item == &item->launch->items[0])
            hostccl_launch_add(item->launch);
        hostccl_stream_feed(item);
        item = next;
    }
}

/* The driver's: one look at everything. With yields it
 * lets others have the CPU before. Lock held, but not all the time. */
static int run_round(bool yields)
{
    int said;

    take_inbox();
    said = hostccl_streams_progress() ? HOSTCCL_MOVED : 0;
    hostccl_unlock();
    if (yields)
        (void)sched_yield(); /* the peer may be waiting for this CPU */
    said |= hostccl_launches_progress();
    hostccl_lock();
    if (!engine.inbox && run_orders())
        said |= HOSTCCL_MOVED;
    engine.is_under_way = said != 0;
    return said;
}

/* The driver's, lock held; nothing moved in the last round. */
static void sleep_until_news(int said)
{
    const struct hostccl_plugin *plugin = hostccl_plugin_loaded();

    if (engine.is_notified || engine.is_stopping)
        return;
    if (!(said & (HOSTCCL_TRANSFERS | HOSTCCL_JOINING)) || !plugin) {
        engine.is_asleep = true;
        pthread_cond_wait(&engine.news, &engine.lock);
        engine.is_asleep = false;
        return;
    }
    engine.is_in_plugin = true;
    hostccl_unlock();
    plugin->wait(said & HOSTCCL_JOINING ? JOIN_WAIT_NS : WAIT_NS);
    hostccl_lock();
    engine.is_in_plugin = false;
}

/* Lock held. Where another thread has driven since, what this one noted in the plugin
 * is old. */
static void take_role(void)
{
    const struct hostccl_plugin *plugin = hostccl_plugin_loaded();
    pthread_t self = pthread_self();

    if (plugin && (!engine.has_driver || !pthread_equal(engine.driver, self)))
        plugin->wait(0);
    engine.is_driven = engine.has_driver = true;
    engine.driver = self;
}

/* Lock held. */
static void leave_role(void)
{
    engine.is_driven = false;
    if (engine.is_stopping)
        pthread_cond_signal(&engine.role);
    offer();
}

/* Lock held. A few rounds for what is to be done at once. */
static void run_rounds(void)
{
    for (int i = 0; i < ROUNDS_MAX && run_round(false) & HOSTCCL_MOVED; i++)
        ;
}

/* Lock held: the calling thread, which does not wait, does what can be done at once. */
static void drive_briefly(void)
{
    take_role();
    run_rounds();
    leave_role();
}

/* Lock held. */
static bool is_free(void)
{
    return !engine.is_driven && engine.is_running && !engine.is_stopping;
}

void hostccl_engine_push(struct hostccl_item *item)
{
    bool is_idle = is_free() && !is_left();

    put(item);
    if (is_idle)
        drive_briefly(); /* a mark that nothing stands before */
    else
        wake();
}

/* A waiting caller's, lock held; nothing moved in the last round, nor since *since_ns
 * (0: it did in the one before). */
static void pause_briefly(int said, uint64_t *since_ns)
{
    uint64_t now = crystal_now_ns();

    if (!*since_ns)
        *since_ns = now;
    if (engine.has_cpus && said == HOSTCCL_TRANSFERS && engine.pause_ns < SPIN_NS &&
        now - *since_ns < SPIN_NS)
        hostccl_plugin_loaded()->wait(0); /* transfers are the plugin's */
    else
        sleep_until_news(said);
}

/* Lock held: nothing moved since since_ns, now something has. */
static void end_pause(uint64_t since_ns)
{
    uint64_t ns = crystal_now_ns() - since_ns;

    if (ns > LONG_PAUSE_NS)
        ns = LONG_PAUSE_NS;
    engine.pause_ns = (7 * engine.pause_ns + ns) / 8;
}

/* Lock held: the calling thread drives until *value is there. */
static void drive_until(const uint64_t *value, uint64_t until)
{
    uint64_t since_ns = 0;

    take_role();
    while (*value < until && !engine.is_stopping) {
        int said = run_round(since_ns != 0);

        if (!(said & HOSTCCL_MOVED)) {
            pause_briefly(said, &since_ns);
        } else if (since_ns) {
            end_pause(since_ns);
            since_ns = 0;
        }
    }
    if (!engine.is_stopping)
        run_rounds();
    leave_role();
}

/* Lock held: waits until told, of the value or that nobody drives. */
static void wait_to_be_told(const uint64_t *value, uint64_t until)
{
    struct waiter self = {.value = value, .until = until};

    (void)sem_init(&self.is_told, 0, 0); /* valid arguments */
    self.next = engine.waiters;
    engine.waiters = &self;
    hostccl_unlock();
    while (sem_wait(&self.is_told)) /* interrupted */
        ;
    (void)sem_destroy(&self.is_told);
    hostccl_lock();
}

void hostccl_wait_until(const uint64_t *value, uint64_t until)
{
    if (hostccl_fork_is_child())
        return;
    if (engine.submit_ns && crystal_now_ns() - engine.submit_ns < SOON_NS)
        engine.do_callers_wait = true;
    engine.submit_ns = 0;
    if (*value >= until)
        return;
    while (*value < until)
        if (is_free())
            drive_until(value, until);
        else
            wait_to_be_told(value, until);
    offer(); /* it may have been this thread's to drive */
}

/* --- the progress thread --- */

/* Lock held: drives as long as something is under way. */
static void drive(void)
{
    take_role();
    do {
        int said = run_round(false);

        if (said && !(said & HOSTCCL_MOVED))
            sleep_until_news(said);
    } while ((engine.is_under_way || engine.is_notified) && !engine.is_stopping);
    leave_role();
}

/* Lock held: on the role's condition, whose clock is monotonic. */
static void sleep_for(uint64_t ns)
{
    uint64_t at_ns = crystal_now_ns() + ns;
    struct timespec at = {.tv_sec = (time_t)(at_ns / 1000000000U),
                          .tv_nsec = (long)(at_ns % 1000000000U)};

    (void)pthread_cond_timedwait(&engine.role, &engine.lock, &at);
}

/* Lock held. Drives what is left, but gives callers time to come and do it themselves
 * where they have done so. */
static void stand_by(void)
{
    uint64_t seen = 0, tick_ns = TICK_MIN_NS;

    while (!engine.is_stopping) {
        bool is_fresh = engine.submit_count != seen;

        seen = engine.submit_count;
        if (is_left() && !(is_fresh && engine.do_callers_wait)) {
            engine.do_callers_wait = false;
            tick_ns = TICK_MIN_NS;
            drive();
        } else if (is_fresh && engine.do_callers_wait) {
            engine.is_ticking = true;
            sleep_for(tick_ns);
            engine.is_ticking = false;
            tick_ns = tick_ns < TICK_MAX_NS ? 2 * tick_ns : tick_ns;
        } else {
            pthread_cond_wait(&engine.role, &engine.lock);
        }
    }
}

/* Lock held. The program ends: what it still sends on to others must go out, as it may
 * end as soon as its own results are there. */
static void drain(void)
{
    const struct hostccl_plugin *plugin = hostccl_plugin_loaded();
    uint64_t begin_ns = crystal_now_ns();

    while (engine.is_driven && crystal_now_ns() - begin_ns < EXIT_ROLE_NS)
        sleep_for(EXIT_ROLE_NS);
    if (engine.is_driven)
        return;
    take_role();
    while (hostccl_launches_are_sending() &&
           crystal_now_ns() - begin_ns < EXIT_DRAIN_NS)
        if (!(run_round(false) & HOSTCCL_MOVED) && plugin)
            plugin->wait(DRAIN_WAIT_NS);
    leave_role();
}

static void *progress(void *context)
{
    (void)context;
    (void)prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0); /* else later, no worse */
    (void)prctl(PR_SET_NAME, "crystal-hostccl", 0, 0, 0);
    hostccl_lock();
    stand_by();
    drain();
    hostccl_unlock();
    return NULL;
}

static void at_exit(void)
{
    hostccl_engine_stop();
    hostccl_service_stop();
}

static bool has_cpus(void)
{
    cpu_set_t set;

    /* fails where there are more than the set holds */
    return sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) > 1;
}

/* Lock held. What is made once. */
static int set_up(struct crystal_error *err)
{
    static bool is_set_up; /* under lock */
    pthread_condattr_t attr;

    if (is_set_up)
        return 0;
    if (atexit(at_exit))
        return crystal_error_set(err, ENOMEM, "cannot register an exit handler");
    (void)pthread_condattr_init(&attr); /* none of these can fail on Linux */
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&engine.role, &attr);
    (void)pthread_condattr_destroy(&attr);
    engine.has_cpus = has_cpus();
    is_set_up = true;
    return 0;
}

/* Lock held. */
static int start(struct crystal_error *err)
{
    int result = hostccl_fork_check(err);

    if (result || engine.is_running)
        return result;
    result = hostccl_fork_watch(err);
    if (!result)
        result = set_up(err);
    if (result)
        return result;
    engine.is_stopping = false;
    result = pthread_create(&engine.thread, NULL, progress, NULL);
    if (result)
        return crystal_error_set(err, result, "cannot start the progress thread: %s",
                                 strerror(result));
    engine.is_running = true;
    return 0;
}

int hostccl_engine_start(struct crystal_error *err)
{
    int result;

    hostccl_lock();
    result = start(err);
    hostccl_unlock();
    return result;
}

void hostccl_engine_stop(void)
{
    bool is_running;

    if (hostccl_fork_is_child())
        return;
    hostccl_lock();
    is_running = engine.is_running;
    engine.is_stopping = true;
    wake();
    pthread_cond_signal(&engine.role);
    hostccl_unlock();
    if (!is_running)
        return;
    (void)pthread_join(engine.thread, NULL);
    hostccl_lock();
    engine.is_running = false;
    hostccl_unlock();
}

void hostccl_engine_submit(struct hostccl_launch *launches)
{
    hostccl_lock();
    while (launches) {
        struct hostccl_launch *launch = launches;

        launches = launch->next;
        for (uint32_t i = 0; i < launch->stream_count; i++) {
            hostccl_stream_announce(launch->items[i].stream);
            put(&launch->items[i]);
        }
    }
    engine.submit_count++;
    if (!engine.do_callers_wait)
        engine.submit_ns = crystal_now_ns();
    if (engine.do_callers_wait && is_free())
        drive_briefly();
    else
        wake();
    hostccl_unlock();
}

static void have_closed(ncclComm_t comm, bool is_flush, bool is_abort)
{
    struct close_order order = {.comm = comm, .is_flush = is_flush};

    hostccl_lock();
    if (engine.is_running && !engine.is_stopping) {
        if (is_abort)
            comm->is_aborting = true;
        order.next = engine.orders;
        engine.orders = &order;
        wake();
        hostccl_wait_until(&order.is_done, 1);
    }
    if (!is_flush)
        hostccl_streams_forget(comm->id);
    hostccl_unlock();
}

void hostccl_engine_flush(ncclComm_t comm)
{
    have_closed(comm, true, false);
}

void hostccl_engine_close(ncclComm_t comm, bool is_abort)
{
    have_closed(comm, false, is_abort);
}
