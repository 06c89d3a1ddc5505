/* trace.json: one run for Perfetto (or chrome://tracing), in the Trace Event format: a
 * process for each sandbox rank, a thread for its iterations, for each communicator and
 * for each peer and way of its messages, a slice from arrival to end of each call, a
 * flow from the rank that came last, or from the sender, to those that waited for it.
 */
#include "config.h"

#include "replay/report_internal.h"

#include "runtime/nccl_names.h"

#include <inttypes.h>

/* 0 are the iterations. A rank may send to itself. */
static uint32_t thread_of(const struct rp_event *e)
{
    return 2 * e->track + (e->kind == CRYSTAL_OP_RECV);
}

static double us(uint64_t ns)
{
    return (double)ns / 1e3;
}

static void name_thread(const struct report *r, FILE *out, const struct rp_event *e)
{
    char text[128];

    if (e->peer == UINT32_MAX)
        (void)snprintf(text, sizeof text, "%s", r->names[e->comm]);
    else
        (void)snprintf(text, sizeof text, "%s, %s rank %u", r->names[e->comm],
                       e->kind == CRYSTAL_OP_SEND ? "to" : "from", e->peer);
    fprintf(out,
            ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,\"tid\":%u,"
            "\"args\":{\"name\":",
            r->layout.sandbox[e->rank], thread_of(e));
    rp_json_text(out, text);
    fprintf(out, "}}");
}

static void print_names(const struct report *r, FILE *out)
{
    const struct rp_event *list = r->events.list;

    for (uint32_t i = 0; i < r->layout.sandbox_count; i++)
        fprintf(out,
                ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,\"args\":"
                "{\"name\":\"rank %u\"}},\n"
                "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":%u,\"args\":"
                "{\"sort_index\":%u}},\n"
                "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,\"tid\":0,\"args\":"
                "{\"name\":\"iterations\"}}",
                r->layout.sandbox[i], r->layout.sandbox[i], r->layout.sandbox[i], i,
                r->layout.sandbox[i]);
    /* sorted by communicator, way, number, rank: the first number names all threads */
    for (size_t i = 0; i < r->events.count; i++)
        if (list[i].seq == 0)
            name_thread(r, out, &list[i]);
}

static void print_call(const struct report *r, FILE *out, uint64_t zero_ns,
                       const struct rp_event *e)
{
    fprintf(out,
            ",\n{\"ph\":\"X\",\"cat\":\"communication\",\"name\":\"%s\",\"pid\":%u,"
            "\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"bytes\":%" PRIu64
            ",\"iteration\":%u,\"called_us\":%.3f,\"waited_for_virtual_us\":%.3f",
            crystal_func_name(e->func), r->layout.sandbox[e->rank], thread_of(e),
            us(e->arrive_ns - zero_ns), us(e->end_ns - e->arrive_ns), e->bytes,
            e->iteration, us(e->api_ns - zero_ns), us(e->virtual_ns));
    if (e->plan_ns)
        fprintf(out, ",\"plan_us\":%.3f", us(e->plan_ns));
    if (e->peer != UINT32_MAX)
        fprintf(out, ",\"peer\":%u", e->peer);
    fprintf(out, "}}");
}

/* Both ends lie inside their slices. */
static void print_flow(const struct report *r, FILE *out, uint64_t zero_ns, size_t at)
{
    const struct rp_event *to = &r->events.list[at];
    const struct rp_event *from = &r->events.list[to->waits_for];

    if (to->end_ns <= from->arrive_ns)
        return;
    fprintf(out,
            ",\n{\"ph\":\"s\",\"cat\":\"waits\",\"name\":\"waits for\",\"id\":%zu,"
            "\"pid\":%u,\"tid\":%u,\"ts\":%.3f},\n"
            "{\"ph\":\"f\",\"bp\":\"e\",\"cat\":\"waits\",\"name\":\"waits for\","
            "\"id\":%zu,\"pid\":%u,\"tid\":%u,\"ts\":%.3f}",
            at, r->layout.sandbox[from->rank], thread_of(from),
            us(from->arrive_ns - zero_ns), at, r->layout.sandbox[to->rank],
            thread_of(to), us(to->end_ns - zero_ns));
}

void rp_print_trace(const struct report *r, FILE *out)
{
    const struct rp_events *e = &r->events;
    uint64_t zero_ns = UINT64_MAX;

    for (size_t i = 0; i < e->mark_count; i++)
        if (e->marks[i].begin_ns < zero_ns)
            zero_ns = e->marks[i].begin_ns;
    for (size_t i = 0; i < e->count; i++)
        if (e->list[i].api_ns < zero_ns)
            zero_ns = e->list[i].api_ns;
    fprintf(out, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"job\":");
    rp_json_text(out, r->layout.job_name);
    fprintf(out, ",\"run\":");
    rp_json_text(out, r->run);
    fprintf(out, ",\"calls_left_out\":%" PRIu64 "},\"traceEvents\":[", e->left_out);
    fprintf(out, "\n{\"ph\":\"M\",\"name\":\"trace\",\"pid\":0}");
    print_names(r, out);
    for (size_t i = 0; i < e->mark_count; i++)
        fprintf(out,
                ",\n{\"ph\":\"X\",\"cat\":\"iteration\",\"name\":\"iteration %u\","
                "\"pid\":%u,\"tid\":0,\"ts\":%.3f,\"dur\":%.3f}",
                e->marks[i].iteration, r->layout.sandbox[e->marks[i].rank],
                us(e->marks[i].begin_ns - zero_ns),
                us(e->marks[i].end_ns - e->marks[i].begin_ns));
    for (size_t i = 0; i < e->count; i++)
        print_call(r, out, zero_ns, &e->list[i]);
    for (size_t i = 0; i < e->count; i++)
        if (e->list[i].waits_for != UINT32_MAX)
            print_flow(r, out, zero_ns, i);
    fprintf(out, "\n]}\n");
}
