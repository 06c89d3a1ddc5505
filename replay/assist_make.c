/* See assist_make.h. The arithmetic is that of net_payload.c: contributions are added
 * in the order of the ring, one after the other.
 */
#include "config.h"

#include "replay/assist_make.h"

#include "replay/assist_kept.h"
#include "runtime/graph.h"
#include "runtime/nccl_abi.h"
#include "runtime/reduce.h"
#include "runtime/wire_form.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int bad(const char *what, struct crystal_error *err)
{
    return crystal_error_set(err, EBADMSG,
                             "a virtual rank's message is made of %s; let one "
                             "installation run everywhere, on one job directory",
                             what);
}

/* What was kept of a real rank's message, into data. */
static int kept_put(struct assist_kept_table *table,
                    const struct crystal_assist_source *source, void *data,
                    struct crystal_error *err)
{
    struct assist_kept *kept = assist_kept_take(table, &source->key);
    int code = 0;

    if (!kept)
        return bad("one that this assistant has not kept", err);
    if (kept->source.data_bytes != source->data_bytes)
        code = bad("one of another size", err);
    else
        crystal_form_unpack((enum crystal_proto)kept->source.proto, kept->data,
                            source->data_bytes, data);
    free(kept);
    return code;
}

/* One contribution; part has room for it. */
static int term_put(const struct crystal_assist_source *s, uint32_t flags,
                    const void *from, void *part, void *data)
{
    const size_t count = s->data_bytes / crystal_dtype_bytes(s->dtype);
    void *to = flags & CRYSTAL_ASSIST_ADDED ? part : data;
    int code = 0;

    if ((flags & CRYSTAL_ASSIST_ADDED) && !(flags & CRYSTAL_ASSIST_SCALED))
        return crystal_reduce(data, from, count, s->dtype, s->redop);
    memcpy(to, from, s->data_bytes);
    if (flags & CRYSTAL_ASSIST_SCALED)
        code = crystal_reduce_scale(to, count, s->dtype,
                                    crystal_reduce_avg_factor(s->dtype, s->nranks));
    if (!code && (flags & CRYSTAL_ASSIST_ADDED))
        code = crystal_reduce(data, part, count, s->dtype, s->redop);
    return code;
}

static int terms_put(const struct crystal_graph *graph,
                     const struct crystal_assist_source *s,
                     const struct crystal_assist_term *terms, void *part, void *data,
                     struct crystal_error *err)
{
    uint64_t body_bytes = 0;
    const unsigned char *body = graph ? crystal_graph_body(graph, &body_bytes) : NULL;

    if (s->term_count && (!body || s->graph != crystal_graph_hash(graph)))
        return bad("contributions of another job.graph", err);
    for (uint32_t i = 0; i < s->term_count; i++) {
        const struct crystal_assist_term *t = &terms[i];

        if (t->at > body_bytes || s->data_bytes > body_bytes - t->at || t->zero ||
            t->flags & ~(uint32_t)(CRYSTAL_ASSIST_ADDED | CRYSTAL_ASSIST_SCALED))
            return bad("what does not lie in job.graph", err);
        if (term_put(s, t->flags, body + t->at, part, data))
            return bad("values that cannot be reduced", err);
    }
    if ((s->flags & CRYSTAL_ASSIST_DIVIDED) &&
        crystal_reduce_finish_avg(data, s->data_bytes / crystal_dtype_bytes(s->dtype),
                                  s->dtype, s->nranks))
        return bad("values that cannot be divided", err);
    return 0;
}

int assist_make(const struct crystal_graph *graph, struct assist_kept_table *kept,
                const struct crystal_assist_message *message,
                const struct crystal_assist_source *s,
                const struct crystal_assist_term *terms, unsigned char **ret,
                struct crystal_error *err)
{
    const enum crystal_proto proto = (enum crystal_proto)s->proto;
    unsigned char *wire, *data, *part;
    int code = 0;

    *ret = NULL;
    if (!message->bytes || (!s->term_count && !(s->flags & CRYSTAL_ASSIST_KEPT) &&
                            (proto == CRYSTAL_PROTO_SIMPLE || !s->data_bytes)))
        return 0;
    wire = calloc(1, message->bytes);
    data = proto == CRYSTAL_PROTO_SIMPLE ? wire : calloc(1, s->data_bytes + 1);
    part = malloc(s->data_bytes + 1);
    if (!wire || !data || !part)
        code = crystal_error_set(err, ENOMEM, "out of memory for a message");
    if (!code && (s->flags & CRYSTAL_ASSIST_KEPT))
        code = kept_put(kept, s, data, err);
    if (!code)
        code = terms_put(graph, s, terms, part, data, err);
    if (!code && data != wire)
        crystal_form_pack(proto, s->step, data, s->data_bytes, wire);
    if (data != wire)
        free(data);
    free(part);
    if (code)
        free(wire);
    else
        *ret = wire;
    return code;
}
