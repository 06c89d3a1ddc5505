/* The receiving side of a NIC. See ingress.h for the rule. */
#include "config.h"

#include "runtime/ingress.h"

#include <string.h>

/* Puts a span at i; the oldest one goes where there is no room. */
static void span_insert(struct crystal_ingress *in, uint32_t i, uint64_t from_ns,
                        uint64_t to_ns)
{
    if (in->count == CRYSTAL_INGRESS_SPANS) {
        if (i == 0)
            return; /* older than all that is known */
        memmove(&in->spans[0], &in->spans[1],
                (CRYSTAL_INGRESS_SPANS - 1) * sizeof in->spans[0]);
        in->count--;
        i--;
    }
    memmove(&in->spans[i + 1], &in->spans[i], (in->count - i) * sizeof in->spans[0]);
    in->spans[i] = (struct crystal_ingress_span){from_ns, to_ns};
    in->count++;
}

uint64_t crystal_ingress_take(struct crystal_ingress *in, uint64_t ready_ns,
                              uint64_t occupy_ns)
{
    uint64_t at_ns = ready_ns, from_ns = ready_ns;
    uint32_t first, last;

    if (!occupy_ns)
        return ready_ns;
    for (first = in->count; first > 0 && in->spans[first - 1].to_ns >= ready_ns;)
        first--;
    /* all gaps from ready_ns to the end are filled: one span in place of many */
    for (last = first; last < in->count; last++) {
        const struct crystal_ingress_span *s = &in->spans[last];

        if (s->from_ns > at_ns + occupy_ns)
            break;
        if (s->from_ns > at_ns)
            occupy_ns -= s->from_ns - at_ns;
        else if (last == first)
            from_ns = s->from_ns;
        at_ns = s->to_ns > at_ns ? s->to_ns : at_ns;
        if (!occupy_ns) { /* it ended where this one begins */
            at_ns = s->from_ns;
            break;
        }
    }
    at_ns += occupy_ns;
    if (last < in->count && in->spans[last].from_ns == at_ns) {
        uint64_t to_ns = in->spans[last].to_ns;

        memmove(&in->spans[first], &in->spans[last + 1],
                (in->count - last - 1) * sizeof in->spans[0]);
        in->count -= last + 1 - first;
        span_insert(in, first, from_ns, to_ns);
    } else {
        memmove(&in->spans[first], &in->spans[last],
                (in->count - last) * sizeof in->spans[0]);
        in->count -= last - first;
        span_insert(in, first, from_ns, at_ns);
    }
    return at_ns;
}
