/* A simulator of tests/random_job.h's jobs that is too simple to be wrong.
 *
 * It knows nothing of queues: it goes through the program of every rank again and again
 * from the start, with what is not known yet marked so, until nothing more becomes
 * known. Only then, among the messages that wait for their turn at a side of a NIC, the
 * earliest one gets it, and it begins anew.
 */
#ifndef CRYSTAL_TESTS_SIMULATOR_H
#define CRYSTAL_TESTS_SIMULATOR_H

#include "runtime/timeline.h"
#include "tests/random_job.h"

#define UNKNOWN UINT64_MAX

struct call {
    bool is_described;
    struct crystal_transfer_op op;
    uint64_t arrive[RANKS], end[RANKS];
    /* where it shares NICs: from the last arrival on it goes on as they allow */
    enum { APART, WAITS, MOVES, OVER } state;
    uint64_t alone_end[RANKS], last, alone, left, since, asks, load;
};

/* What a receiver's NIC has taken: pieces of time, as they came. */
struct inlet {
    uint32_t count;
    struct piece {
        uint64_t from, to;
    } pieces[8 * OPS];
};

struct message {
    uint64_t send, recv, bytes, send_end, recv_end;
    uint64_t held;  /* its sender's NIC takes longer for it, because of collectives */
    uint64_t leave; /* the sender's NIC has time for it from then on */
    struct inlet *inlet; /* that it shares with others; NULL: none */
    uint64_t order;
    bool has_turned; /* at its sender's NIC */
    bool has_left;
};

struct simulator {
    const struct job *job;
    struct crystal_program *programs[RANKS];
    uint64_t *gaps[RANKS];
    struct crystal_transfer_wire wire;
    struct call calls[COMMS][SEQS];
    struct message messages[COMMS][RANKS][RANKS][SEQS];
    uint64_t free_from[RANKS]; /* NICs that all messages of a rank share */
    uint64_t line_free[COMMS][RANKS][RANKS];     /* when the message before has left */
    struct inlet inlets[RANKS][ITERATIONS][OPS]; /* by the batch's first message */
    uint64_t arrive[RANKS][ITERATIONS][OPS], end[RANKS][ITERATIONS][OPS];
    uint64_t host_end[RANKS];
    bool is_changed;
    bool are_shared;     /* NICs: one for all messages of a rank */
    bool are_all;        /* and for its collectives */
    bool is_busy[RANKS]; /* its NIC, with messages */
};

static uint64_t latest(uint64_t a, uint64_t b)
{
    return a == UNKNOWN || b == UNKNOWN ? UNKNOWN : a > b ? a : b;
}

static void know(struct simulator *s, uint64_t *place, uint64_t value)
{
    if (*place == value)
        return;
    *place = value;
    s->is_changed = true;
}

/* A rank on its way through its program. */
struct way {
    uint32_t r, it;
    uint64_t host, streams[STREAMS * 2], comms[COMMS], events[OPS];
    uint32_t colls[COMMS], sends[COMMS][RANKS], recvs[COMMS][RANKS];
};

static uint32_t comm_of(const struct simulator *s, uint32_t r, uint32_t local)
{
    for (uint32_t c = 0; c < s->job->comm_count; c++)
        if (s->job->comms[c].local[r] == local)
            return c;
    return 0;
}

static uint32_t crank_of(const struct simulator *s, uint32_t c, uint32_t r)
{
    uint32_t k = 0;

    while (s->job->comms[c].members[k] != r)
        k++;
    return k;
}

static void coll(struct simulator *s, struct way *w, uint32_t i)
{
    const struct crystal_instr *in = &s->programs[w->r]->instrs[i];
    uint32_t c = comm_of(s, w->r, in->local), crank = crank_of(s, c, w->r);
    struct call *call;
    uint64_t at = latest(latest(w->host, w->streams[in->stream]), w->comms[in->local]);

    if (!in->count)
        return; /* NCCL leaves it out */
    call = &s->calls[c][w->colls[in->local]++];
    if (at != UNKNOWN) {
        call->is_described = true;
        call->op = (struct crystal_transfer_op){
            in->func, s->job->comms[c].nranks, in->peer, in->count, 4, 0};
    }
    know(s, &call->arrive[crank], at);
    know(s, &s->arrive[w->r][w->it][i], at);
    know(s, &s->end[w->r][w->it][i], call->end[crank]);
    w->streams[in->stream] = w->comms[in->local] = call->end[crank];
}

static bool is_p2p(const struct crystal_instr *in)
{
    return in->kind == CRYSTAL_OP_SEND || in->kind == CRYSTAL_OP_RECV;
}

static bool is_in_batch(const struct crystal_instr *in,
                        const struct crystal_instr *first)
{
    return is_p2p(in) && in->stream == first->stream && in->local == first->local;
}

/* Its order among the messages of a rank that are sent at once. */
static uint64_t order_of(uint32_t own, uint32_t n, const struct crystal_instr *in,
                         uint32_t i)
{
    return (uint64_t)((in->peer + n - own) % n) << 32 | i;
}

/* What the sender's NIC has to do for the batch before message i. */
static uint64_t before(const struct simulator *s, const struct crystal_instr *instrs,
                       uint32_t begin, uint32_t end, uint32_t i, uint32_t own,
                       uint32_t n)
{
    uint64_t sum = 0;

    for (uint32_t k = begin; k < end; k++)
        if (is_in_batch(&instrs[k], &instrs[begin]) &&
            instrs[k].kind == CRYSTAL_OP_SEND && instrs[k].peer != own &&
            order_of(own, n, &instrs[k], k) < order_of(own, n, &instrs[i], i))
            sum += crystal_transfer_occupy_ns(&s->wire, instrs[k].count * 4);
    return sum;
}

static void batch(struct simulator *s, struct way *w, uint32_t begin, uint32_t end)
{
    const struct crystal_instr *instrs = s->programs[w->r]->instrs, *first;
    uint32_t receives = 0, c, own, n;
    uint64_t at, all;

    first = &instrs[begin];
    c = comm_of(s, w->r, first->local);
    own = crank_of(s, c, w->r);
    n = s->job->comms[c].nranks;
    at = all =
        latest(latest(w->host, w->streams[first->stream]), w->comms[first->local]);
    for (uint32_t i = begin; i < end; i++)
        receives += is_in_batch(&instrs[i], first) && instrs[i].kind == CRYSTAL_OP_RECV;
    for (uint32_t i = begin; i < end; i++) {
        const struct crystal_instr *in = &instrs[i];
        struct message *m;

        if (!is_in_batch(in, first))
            continue;
        if (in->kind == CRYSTAL_OP_SEND) {
            m = &s->messages[c][own][in->peer][w->sends[in->local][in->peer]++];
            know(s, &m->send, at);
            m->bytes = in->count * 4;
            m->order = order_of(own, n, in, i);
            if (at != UNKNOWN && in->peer == own)
                know(s, &m->leave, at);
            else if (at != UNKNOWN && !s->are_shared)
                know(s, &m->leave, at + before(s, instrs, begin, end, i, own, n));
            if (at != UNKNOWN &&
                (in->peer == own || m->bytes <= CRYSTAL_TRANSFER_EAGER_BYTES))
                know(s, &m->send_end, at);
        } else {
            m = &s->messages[c][in->peer][own][w->recvs[in->local][in->peer]++];
            know(s, &m->recv, at);
            if (in->peer != own && s->wire.bytes_per_s)
                m->inlet = s->are_shared  ? &s->inlets[w->r][0][0]
                           : receives > 1 ? &s->inlets[w->r][w->it][begin]
                                          : NULL;
        }
        know(s, &s->arrive[w->r][w->it][i], at);
        know(s, &s->end[w->r][w->it][i],
             in->kind == CRYSTAL_OP_SEND ? m->send_end : m->recv_end);
        all = latest(all, s->end[w->r][w->it][i]);
    }
    w->streams[first->stream] = w->comms[first->local] = all;
}

static void launch(struct simulator *s, struct way *w, uint32_t begin, uint32_t end)
{
    const struct crystal_instr *instrs = s->programs[w->r]->instrs;

    for (uint32_t i = begin; i < end; i++) {
        bool is_first = true;

        if (instrs[i].kind == CRYSTAL_OP_COLL)
            coll(s, w, i);
        for (uint32_t k = begin; k < i && is_p2p(&instrs[i]); k++)
            is_first = is_first &&
                       !(is_p2p(&instrs[k]) && instrs[k].stream == instrs[i].stream &&
                         instrs[k].local == instrs[i].local);
        if (is_p2p(&instrs[i]) && is_first)
            batch(s, w, i, end);
    }
}

static void pass(struct simulator *s, uint32_t r)
{
    const struct crystal_program *p = s->programs[r];
    struct way w = {.r = r};

    for (w.it = 0; w.it < ITERATIONS; w.it++) {
        uint32_t group = UINT32_MAX;

        for (uint32_t i = 0; i < p->instr_count; i++) {
            const struct crystal_instr *in = &p->instrs[i];

            w.host = w.host == UNKNOWN ? UNKNOWN : w.host + s->gaps[r][i];
            switch (in->kind) {
            case CRYSTAL_OP_GROUP:
                if (in->starts_group)
                    group = i + 1;
                else if (group != UINT32_MAX)
                    launch(s, &w, group, i);
                if (!in->starts_group)
                    group = UINT32_MAX;
                break;
            case CRYSTAL_OP_COLL:
            case CRYSTAL_OP_SEND:
            case CRYSTAL_OP_RECV:
                if (group == UINT32_MAX)
                    launch(s, &w, i, i + 1);
                break;
            case CRYSTAL_OP_KERNEL:
                w.streams[in->stream] = latest(w.streams[in->stream], w.host);
                if (w.streams[in->stream] != UNKNOWN)
                    w.streams[in->stream] += in->count;
                break;
            case CRYSTAL_OP_RECORD:
                w.events[in->slot] = w.streams[in->stream];
                break;
            case CRYSTAL_OP_SWAIT:
                if (in->slot != CRYSTAL_PROGRAM_NONE)
                    w.streams[in->stream] = latest(
                        latest(w.streams[in->stream], w.events[in->slot]), w.host);
                break;
            case CRYSTAL_OP_WAIT:
                if (in->slot != CRYSTAL_PROGRAM_NONE)
                    w.host = latest(w.host, w.events[in->slot]);
                break;
            case CRYSTAL_OP_SYNC:
                w.host = latest(w.host, w.streams[in->stream]);
                break;
            default:
                break;
            }
        }
    }
    know(s, &s->host_end[r], w.host);
}

/* The first piece that has not ended at `at`, NULL: none. */
static const struct piece *piece_at(const struct inlet *inlet, uint64_t at)
{
    const struct piece *first = NULL;

    for (uint32_t i = 0; i < inlet->count; i++)
        if (inlet->pieces[i].to > at && (!first || inlet->pieces[i].from < first->from))
            first = &inlet->pieces[i];
    return first;
}

/* Takes what is free from ready on. Returns when it has taken all. */
static uint64_t take(struct inlet *inlet, uint64_t ready, uint64_t occupy)
{
    uint64_t at = ready;

    while (occupy) {
        const struct piece *next = piece_at(inlet, at);
        uint64_t some = occupy;

        if (next && next->from <= at) {
            at = next->to;
            continue;
        }
        if (next && next->from - at < some)
            some = next->from - at;
        if (inlet->count == sizeof inlet->pieces / sizeof inlet->pieces[0]) {
            printf("Bail out! more pieces than expected\n");
            exit(1);
        }
        inlet->pieces[inlet->count++] = (struct piece){at, at + some};
        at += some;
        occupy -= some;
    }
    return at;
}

enum kind { IDLE, END, SENDER, BEGIN, RECEIVER };

/* Who waits for a turn, and for which. */
struct turn {
    bool is_any;
    uint64_t time;
    enum kind kind;
    uint64_t order;
    struct message *message;
    struct call *call;
    uint32_t c, from, to; /* from: of an idle NIC the rank */
};

#define WHOLE (1U << 20)

static uint64_t scaled(uint64_t ns, uint64_t by)
{
    return (uint64_t)((double)ns * (double)by / WHOLE);
}

/* What the collectives under way ask for at a rank's NIC. */
static uint64_t asked(const struct simulator *s, uint32_t r)
{
    uint64_t sum = 0;

    for (uint32_t c = 0; c < s->job->comm_count; c++)
        for (uint32_t seq = 0; seq < SEQS && s->job->comms[c].local[r] != UINT32_MAX;
             seq++)
            if (s->calls[c][seq].state == MOVES)
                sum += s->calls[c][seq].asks;
    return sum;
}

static void leave(struct simulator *s, const struct turn *turn)
{
    struct message *m = turn->message;
    uint64_t *line_free = &s->line_free[turn->c][turn->from][turn->to];
    uint64_t alone = crystal_transfer_occupy_ns(&s->wire, m->bytes);
    uint64_t way = s->wire.latency_ns + s->wire.overhead_ns;
    uint64_t start = latest(m->leave, m->recv), end = start, occupy = alone + m->held;

    m->has_left = true;
    if (turn->from != turn->to) {
        start = latest(start, *line_free);
        *line_free = end = start + occupy;
        if (m->inlet) {
            uint64_t asks = asked(s, s->job->comms[turn->c].members[turn->to]);

            end = take(m->inlet, start + way,
                       latest(occupy, alone + scaled(alone, asks))) -
                  way;
        }
        end += way + s->wire.op_overhead_ns;
        if (m->bytes > CRYSTAL_TRANSFER_EAGER_BYTES)
            know(s, &m->send_end,
                 start + m->held + crystal_transfer_send_ns(&s->wire, m->bytes));
    }
    know(s, &m->recv_end, end);
}

static bool is_earlier(const struct simulator *s, const struct turn *a,
                       const struct turn *b)
{
    uint32_t from_a, from_b;

    if (!b->is_any || a->time != b->time)
        return !b->is_any || a->time < b->time;
    if (a->kind != b->kind || a->order != b->order)
        return a->kind != b->kind ? a->kind < b->kind : a->order < b->order;
    if (!a->message)
        return false;
    from_a = s->job->comms[a->c].members[a->from];
    from_b = s->job->comms[b->c].members[b->from];
    return from_a != from_b ? from_a < from_b : a->c < b->c;
}

static void offer(const struct simulator *s, struct turn *first, struct turn turn)
{
    turn.is_any = true;
    if (is_earlier(s, &turn, first))
        *first = turn;
}

/* Every collective under way goes on from now at the speed that all allow. */
static void speeds(struct simulator *s, uint64_t now)
{
    for (uint32_t c = 0; c < s->job->comm_count; c++)
        for (uint32_t seq = 0; seq < SEQS; seq++) {
            struct call *call = &s->calls[c][seq];
            uint64_t load = WHOLE, at = latest(now, call->since);

            if (call->state != MOVES)
                continue;
            for (uint32_t k = 0; k < s->job->comms[c].nranks; k++) {
                uint32_t r = s->job->comms[c].members[k];

                load = latest(load, asked(s, r) + (s->is_busy[r] ? WHOLE : 0));
            }
            if (load == call->load)
                continue;
            call->left -=
                (uint64_t)((double)(at - call->since) * WHOLE / (double)call->load);
            call->since = at;
            call->load = load;
        }
}

static uint64_t end_of(const struct call *call)
{
    return call->since + (call->left * call->load + WHOLE - 1) / WHOLE;
}

static void send_turn(struct simulator *s, const struct turn *turn)
{
    uint32_t r = s->job->comms[turn->c].members[turn->from];
    struct message *m = turn->message;
    uint64_t occupy = crystal_transfer_occupy_ns(&s->wire, m->bytes);

    m->has_turned = true;
    m->held = scaled(occupy, asked(s, r));
    know(s, &m->leave, latest(s->free_from[r], m->send));
    s->free_from[r] = m->leave + occupy + m->held;
    s->is_busy[r] = s->is_busy[r] || (s->are_all && occupy);
}

static void give(struct simulator *s, const struct turn *turn)
{
    struct call *call = turn->call;

    switch (turn->kind) {
    case IDLE:
        s->is_busy[turn->from] = false;
        break;
    case END:
        call->state = OVER;
        for (uint32_t k = 0; k < s->job->comms[turn->c].nranks; k++)
            know(s, &call->end[k],
                 call->alone_end[k] + turn->time - call->last - call->alone);
        break;
    case SENDER:
        send_turn(s, turn);
        break;
    case BEGIN:
        call->state = MOVES;
        call->since = call->last;
        call->left = call->alone;
        call->load = WHOLE;
        break;
    case RECEIVER:
        leave(s, turn);
        break;
    }
    speeds(s, turn->time);
}

static void call_begin(struct simulator *s, uint32_t c, struct call *call)
{
    uint32_t n = s->job->comms[c].nranks;
    struct crystal_transfer_plan plan;
    uint64_t scratch[2 * RANKS], last = 0, end = 0, nic;

    crystal_transfer_plan_init(&plan, &s->wire, &call->op);
    crystal_transfer_plan_ends(&plan, call->arrive, call->alone_end, scratch);
    for (uint32_t k = 0; k < n; k++) {
        last = latest(last, call->arrive[k]);
        end = latest(end, call->alone_end[k]);
    }
    nic = crystal_transfer_plan_nic_ns(&plan);
    if (s->are_all && n > 1 && nic && end > last) {
        call->state = WAITS;
        call->last = last;
        call->alone = end - last;
        call->asks = nic < call->alone ? nic * WHOLE / call->alone : WHOLE;
        return;
    }
    for (uint32_t k = 0; k < n; k++)
        know(s, &call->end[k], call->alone_end[k]);
}

static void calls_end(struct simulator *s, uint32_t c, struct turn *first)
{
    for (uint32_t seq = 0; seq < SEQS; seq++) {
        struct call *call = &s->calls[c][seq];
        bool is_whole = call->is_described;

        for (uint32_t k = 0; k < s->job->comms[c].nranks; k++)
            is_whole = is_whole && call->arrive[k] != UNKNOWN;
        if (is_whole && call->state == APART)
            call_begin(s, c, call);
        if (call->state == WAITS)
            offer(s, first,
                  (struct turn){.time = call->last,
                                .kind = BEGIN,
                                .order = c,
                                .call = call,
                                .c = c});
        if (call->state == MOVES)
            offer(s, first,
                  (struct turn){.time = end_of(call),
                                .kind = END,
                                .order = c,
                                .call = call,
                                .c = c});
    }
}

/* Messages that need no turn end; of those that do, the earliest is told. */
static void messages_end(struct simulator *s, uint32_t c, struct turn *first)
{
    uint32_t n = s->job->comms[c].nranks;

    for (uint32_t i = 0; i < n * n * SEQS; i++) {
        uint32_t from = i / SEQS / n, to = i / SEQS % n;
        struct message *m = &s->messages[c][from][to][i % SEQS];
        struct turn turn = {.kind = RECEIVER,
                            .order = m->order,
                            .message = m,
                            .c = c,
                            .from = from,
                            .to = to};

        if (m->has_left || m->send == UNKNOWN)
            continue;
        turn.time = latest(m->send, m->recv);
        if (m->leave == UNKNOWN) {
            turn.kind = SENDER;
            turn.time = m->send;
        } else if (m->recv == UNKNOWN) {
            continue;
        } else if (!m->inlet) {
            leave(s, &turn);
        }
        if (!m->has_left)
            offer(s, first, turn);
    }
}

static void nics_idle(struct simulator *s, struct turn *first)
{
    for (uint32_t r = 0; r < s->job->n; r++)
        if (s->is_busy[r])
            offer(s, first,
                  (struct turn){.time = s->free_from[r],
                                .kind = IDLE,
                                .order = (uint64_t)2 * r,
                                .from = r});
}

static void simulate(struct simulator *s)
{
    memset(s->calls, 0, sizeof s->calls);
    for (uint32_t c = 0; c < COMMS; c++)
        for (uint32_t q = 0; q < SEQS; q++) {
            memset(s->calls[c][q].arrive, 0xff, sizeof s->calls[c][q].arrive);
            memset(s->calls[c][q].end, 0xff, sizeof s->calls[c][q].end);
        }
    memset(s->messages, 0, sizeof s->messages);
    for (uint32_t i = 0; i < COMMS * RANKS * RANKS * SEQS; i++) {
        struct message *m = &s->messages[0][0][0][0] + i;

        m->send = m->recv = m->send_end = m->recv_end = m->leave = UNKNOWN;
    }
    memset(s->free_from, 0, sizeof s->free_from);
    memset(s->is_busy, 0, sizeof s->is_busy);
    memset(s->line_free, 0, sizeof s->line_free);
    for (uint32_t i = 0; i < RANKS * ITERATIONS * OPS; i++)
        (&s->inlets[0][0][0] + i)->count = 0;
    memset(s->arrive, 0xff, sizeof s->arrive);
    memset(s->end, 0xff, sizeof s->end);
    memset(s->host_end, 0xff, sizeof s->host_end);
    do {
        struct turn first;

        do {
            first = (struct turn){0};
            s->is_changed = false;
            for (uint32_t r = 0; r < s->job->n; r++)
                pass(s, r);
            for (uint32_t c = 0; c < s->job->comm_count; c++) {
                calls_end(s, c, &first);
                messages_end(s, c, &first);
            }
            nics_idle(s, &first);
        } while (s->is_changed);
        if (first.is_any) {
            give(s, &first);
            s->is_changed = true;
        }
    } while (s->is_changed);
}

#endif
