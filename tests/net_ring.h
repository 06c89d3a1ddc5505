/* A rank of a ring over the net plugin, for tests: runs collectives by the ring's
 * schedule as hostccl does, message by message, on host memory of floats or int32.
 */
#ifndef CRYSTAL_TESTS_NET_RING_H
#define CRYSTAL_TESTS_NET_RING_H

#include "replay/net_handle.h"
#include "runtime/clock.h"
#include "runtime/ring_schedule.h"

#include "tests/net_harness.h"

#include <netinet/in.h>

#define RING_WINDOW 8 /* receives posted ahead */

struct ring {
    struct rank rank;
    const uint32_t *order; /* crank by place; NULL: rank order */
    void *to_next, *from_prev;
    uint64_t send_steps, recv_steps; /* of the connections so far */
};

/* Place of a crank in the ring. */
static inline uint32_t ring_place(const struct ring *ring, uint32_t crank)
{
    uint32_t place = 0;

    if (!ring->order)
        return crank;
    while (ring->order[place] != crank)
        place++;
    return place;
}

static inline int ring_crank(const struct ring *ring, uint32_t place)
{
    place %= (uint32_t)ring->rank.nranks;
    return ring->order ? (int)ring->order[place] : (int)place;
}

/* An end to virtual rank `crank`, as NCCL makes it with the proxy's handle. */
static inline void *ring_connect_virtual(struct rank *r, int crank)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
    struct crystal_net_handle h = {.id = 7, .kind = CRYSTAL_NET_VIRTUAL};
    void *end = NULL, *device;

    memcpy(h.magic, CRYSTAL_NET_HANDLE_MAGIC, 8);
    h.crank = (uint32_t)crank;
    h.comm_id = r->comm_id;
    memcpy(handle, &h, sizeof h);
    return NET->connect(r->net, 0, handle, &end, &device) == ncclSuccess ? end : NULL;
}

/* Listens, and says what the proxy says for virtual rank `crank`. */
static inline void *ring_accept_virtual(struct rank *r, int crank)
{
    char bytes[NCCL_NET_HANDLE_MAXSIZE];
    struct crystal_net_hello hello = {.kind = CRYSTAL_NET_VIRTUAL};
    struct crystal_net_handle handle;
    struct sockaddr_in address;
    void *listener, *end;
    int fd;

    if (NET->listen(r->net, 0, bytes, &listener) != ncclSuccess)
        return NULL;
    memcpy(&handle, bytes, sizeof handle);
    memcpy(&address, handle.addr, sizeof address);
    memcpy(hello.magic, CRYSTAL_NET_HELLO_MAGIC, 8);
    hello.id = handle.id;
    hello.crank = (uint32_t)crank;
    hello.comm_id = r->comm_id;
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0 ||
        write(fd, &hello, sizeof hello) != (ssize_t)sizeof hello)
        return NULL;
    (void)close(fd);
    end = harness_accept_from(listener);
    (void)NET->closeListen(listener);
    return end;
}

static inline const char *ring_func_name(enum crystal_func func)
{
    static const char *const names[] = {"",          "Broadcast",     "Reduce",
                                        "AllGather", "ReduceScatter", "AllReduce"};

    return names[func];
}

/* Messages that a receive turns into: what is sent on after it. */
static inline void ring_add(void *acc, const void *in, uint32_t elts, int is_float,
                            int is_max)
{
    for (uint32_t i = 0; i < elts; i++)
        if (is_max && ((const uint32_t *)in)[i] < ((uint32_t *)acc)[i])
            continue;
        else if (is_max)
            ((uint32_t *)acc)[i] = ((const uint32_t *)in)[i];
        else if (is_float)
            ((float *)acc)[i] += ((const float *)in)[i];
        else
            ((uint32_t *)acc)[i] += ((const uint32_t *)in)[i];
}

struct ring_run {
    struct ring *ring;
    struct crystal_ring_op op;
    int is_float, is_max;    /* is_max: of small positive int32 */
    const unsigned char *in; /* 4-byte elements */
    unsigned char *out;
    uint32_t place;
    uint64_t sends, receives;
    void *coll, *send_proxy, *recv_proxy;
    uint64_t send_base, recv_base; /* steps of the connections at the first message */
    uint64_t *receive_done_ns;     /* may be NULL: when each receive was complete */
    uint64_t *send_post_ns;        /* may be NULL */
    bool failed;
};

/* The step of the connection that message `index` takes. */
static inline uint64_t ring_step(const struct ring_run *run, uint64_t base,
                                 uint64_t index)
{
    return base +
           index * (crystal_ring_chunk_steps(&run->op) / crystal_ring_slices(&run->op));
}

/* Sends message `index`; data NULL: from the input. *ret_wire is what has to be freed
 * when it is done. */
static inline void *ring_send(struct ring_run *run, uint64_t index, const void *data,
                              void **ret_wire)
{
    struct crystal_ring_message m;
    struct step_handle h;
    uint64_t bytes;

    crystal_ring_message(&run->op, run->place, 1, index, &m);
    if (!data && run->op.func == CRYSTAL_FUNC_ALLGATHER)
        data = run->in +
               4 * (m.offset_elts - (uint64_t)run->ring->rank.crank * run->op.count);
    else if (!data)
        data = run->in + 4 * m.offset_elts;
    h = step_start(&run->ring->rank, run->send_proxy, (int)index);
    bytes = crystal_form_bytes(run->op.proto, 4 * (uint64_t)m.elts);
    if (run->op.proto != CRYSTAL_PROTO_SIMPLE) {
        *ret_wire = malloc(bytes + 1);
        crystal_form_pack(run->op.proto, ring_step(run, run->send_base, index), data,
                          4 * (uint64_t)m.elts, *ret_wire);
        data = *ret_wire;
    }
    if (run->send_post_ns)
        run->send_post_ns[index] = crystal_now_ns();
    return post_send(run->ring->to_next, (void *)(uintptr_t)data, (size_t)bytes, &h);
}

/* What the GPU makes of a message with flags: its data, where all flags are right. The
 * buffer is freed. */
static inline void *ring_unpack(struct ring_run *run, uint64_t index, void *wire)
{
    struct crystal_ring_message m;
    uint64_t bytes, wire_bytes;
    void *data, *want;

    if (run->op.proto == CRYSTAL_PROTO_SIMPLE)
        return wire;
    crystal_ring_message(&run->op, run->place, 0, index, &m);
    bytes = 4 * (uint64_t)m.elts;
    wire_bytes = crystal_form_bytes(run->op.proto, bytes);
    data = calloc(1, bytes + 1);
    want = malloc(wire_bytes + 1);
    memcpy(want, wire, wire_bytes);
    crystal_form_flags(run->op.proto, ring_step(run, run->recv_base, index), wire_bytes,
                       want);
    if (memcmp(want, wire, wire_bytes) != 0) {
        printf("# message %llu has wrong flags\n", (unsigned long long)index);
        run->failed = true;
    }
    crystal_form_unpack(run->op.proto, wire, bytes, data);
    free(want);
    free(wire);
    return data;
}

/* What to do with a received message: the data to send on, or NULL. */
static inline const void *ring_use(struct ring_run *run, uint64_t index, void *data,
                                   uint64_t *ret_send)
{
    const uint32_t n = run->op.nranks, me = run->place;
    const uint64_t steps = run->op.func == CRYSTAL_FUNC_ALLREDUCE ? 2 * (n - 1) : n - 1;
    uint64_t block_offset = 0;
    struct crystal_ring_message m;
    int is_reduced, is_kept, goes_on;

    crystal_ring_message(&run->op, me, 0, index, &m);
    switch (run->op.func) {
    case CRYSTAL_FUNC_ALLREDUCE:
        is_reduced = m.step < n - 1;
        is_kept = m.step >= n - 2;
        goes_on = m.step + 1 < steps;
        break;
    case CRYSTAL_FUNC_REDUCESCATTER:
        is_reduced = 1;
        is_kept = m.step == n - 2;
        goes_on = !is_kept;
        block_offset = (uint64_t)run->ring->rank.crank * run->op.count;
        break;
    case CRYSTAL_FUNC_ALLGATHER:
        is_reduced = 0;
        is_kept = 1;
        goes_on = m.step + 1 < steps;
        break;
    case CRYSTAL_FUNC_REDUCE:
        is_reduced = 1;
        is_kept = me == run->op.root;
        goes_on = !is_kept;
        break;
    default:
        is_reduced = 0;
        is_kept = 1;
        goes_on = (me + 1) % n != run->op.root;
    }
    *ret_send = index + (run->op.func == CRYSTAL_FUNC_BROADCAST ||
                                 run->op.func == CRYSTAL_FUNC_REDUCE
                             ? 0
                             : crystal_ring_slices(&run->op));
    if (is_reduced)
        ring_add(data, run->in + 4 * m.offset_elts, m.elts, run->is_float, run->is_max);
    if (is_kept)
        memcpy(run->out + 4 * (m.offset_elts - block_offset), data, 4 * (size_t)m.elts);
    return goes_on ? data : NULL;
}

/* Sends that are in flight, with the buffers that they hold. */
struct ring_flight {
    void *request;
    void *buffer;
};

/* Asks after the oldest sends; those that are over make room. */
static inline void ring_land(struct ring_run *run, struct ring_flight *flights,
                             unsigned *count)
{
    int done = 1;

    while (*count && done) {
        if (NET->test(flights[0].request, &done, NULL) != ncclSuccess)
            run->failed = true;
        if (run->failed || !done)
            return;
        free(flights[0].buffer);
        memmove(flights, flights + 1, --*count * sizeof *flights);
    }
}

static inline void ring_land_until(struct ring_run *run, struct ring_flight *flights,
                                   unsigned *count, unsigned keep)
{
    while (!run->failed && *count > keep) {
        ring_land(run, flights, count);
        if (*count > keep)
            harness_wait(1000000000);
    }
}

/* Waits for a receive; sends go on meanwhile. */
static inline void ring_receive(struct ring_run *run, void *request,
                                struct ring_flight *flights, unsigned *count)
{
    int done = 0, bytes;

    while (!run->failed && !done) {
        ring_land(run, flights, count);
        if (NET->test(request, &done, &bytes) != ncclSuccess)
            run->failed = true;
        if (!done)
            harness_wait(1000000000);
    }
}

/* Whether the next message to send depends on nothing but the loops before. */
static inline bool ring_is_first(const struct ring_run *run, uint64_t index,
                                 uint64_t received)
{
    struct crystal_ring_message m;
    uint32_t me = run->place;

    if (run->op.func == CRYSTAL_FUNC_BROADCAST)
        return me == run->op.root;
    if (run->op.func == CRYSTAL_FUNC_REDUCE)
        return me == (run->op.root + 1) % run->op.nranks;
    crystal_ring_message(&run->op, me, 1, index, &m);
    return m.step == 0 && received >= index - m.slice;
}

static inline void ring_messages(struct ring_run *run)
{
    const size_t room = 2 * CRYSTAL_RING_STEP_BYTES;
    void *requests[RING_WINDOW] = {NULL}, *buffers[RING_WINDOW] = {NULL};
    struct ring_flight flights[16];
    unsigned flight_count = 0;
    uint64_t posted = 0, received = 0, sent = 0;

    while (!run->failed && (sent < run->sends || received < run->receives)) {
        struct step_handle h;
        const void *on;
        void *data;
        uint64_t index = 0;

        for (; posted < run->receives && posted < received + RING_WINDOW; posted++) {
            buffers[posted % RING_WINDOW] = malloc(room);
            h = step_start(&run->ring->rank, run->recv_proxy, (int)posted);
            requests[posted % RING_WINDOW] = post_recv(
                run->ring->from_prev, buffers[posted % RING_WINDOW], room, &h);
            if (!requests[posted % RING_WINDOW])
                run->failed = true;
        }
        while (!run->failed && sent < run->sends &&
               ring_is_first(run, sent, received)) {
            ring_land_until(run, flights, &flight_count, 8);
            flights[flight_count].buffer = NULL;
            flights[flight_count].request =
                ring_send(run, sent, NULL, &flights[flight_count].buffer);
            flight_count++;
            if (!flights[flight_count - 1].request)
                run->failed = true;
            sent++;
        }
        if (run->failed || received == run->receives)
            continue;
        ring_receive(run, requests[received % RING_WINDOW], flights, &flight_count);
        if (run->failed)
            break;
        if (run->receive_done_ns)
            run->receive_done_ns[received] = crystal_now_ns();
        data = ring_unpack(run, received, buffers[received % RING_WINDOW]);
        on = ring_use(run, received, data, &index);
        if (on) {
            ring_land_until(run, flights, &flight_count, 8);
            if (index != sent)
                run->failed = true;
            flights[flight_count].buffer = data;
            flights[flight_count].request =
                ring_send(run, index, on, &flights[flight_count].buffer);
            if (flights[flight_count++].buffer != data)
                free(data);
            if (!flights[flight_count - 1].request)
                run->failed = true;
            sent++;
        } else {
            free(data);
        }
        received++;
    }
    if (!run->failed)
        ring_land_until(run, flights, &flight_count, 0);
}

/* An operation begins at a multiple of its chunk's steps. */
static inline uint64_t ring_round_up(uint64_t steps, const struct crystal_ring_op *op)
{
    const uint64_t of = crystal_ring_chunk_steps(op);

    return (steps + of - 1) / of * of;
}

/* One collective with the events that NCCL sends; op's root and ring become places.
 * False on failure. */
static inline bool ring_collective(struct ring_run *run)
{
    static const char *const protos[] = {"SIMPLE", "LL", "LL128"};
    struct rank *r = &run->ring->rank;
    struct crystal_ring_op *op = &run->op;
    const uint32_t place = ring_place(run->ring, (uint32_t)r->crank);
    int next = ring_crank(run->ring, place + 1),
        prev = ring_crank(run->ring, place + (uint32_t)r->nranks - 1);

    run->place = place;
    harness_proto = protos[op->proto];
    run->coll = coll_start(r, ring_func_name(op->func),
                           run->is_float ? "ncclFloat32" : "ncclInt32", op->count,
                           (int)op->root, 1);
    op->root = ring_place(run->ring, op->root);
    op->ring = run->ring->order;
    run->sends = crystal_ring_message_count(op, place, 1);
    run->receives = crystal_ring_message_count(op, place, 0);
    run->send_base = ring_round_up(run->ring->send_steps, op);
    run->recv_base = ring_round_up(run->ring->recv_steps, op);
    run->ring->send_steps = ring_step(run, run->send_base, run->sends);
    run->ring->recv_steps = ring_step(run, run->recv_base, run->receives);
    if (run->sends)
        run->send_proxy = proxy_start(r, run->coll, 0, next, (int)run->sends, 1);
    if (run->receives)
        run->recv_proxy = proxy_start(r, run->coll, 0, prev, (int)run->receives, 0);
    ring_messages(run);
    if (run->sends)
        (void)PROF->stopEvent(run->send_proxy);
    if (run->receives)
        (void)PROF->stopEvent(run->recv_proxy);
    (void)PROF->stopEvent(run->coll);
    return !run->failed && run->coll;
}

#endif
