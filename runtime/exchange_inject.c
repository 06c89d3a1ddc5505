/* Capture of one rank by itself: everybody else's part is injected. See exchange.h.
 *
 * A rank that was captured before contributes what it kept of the operation with the
 * same number. Another one contributes what the live rank does: so reductions, gathers
 * and all-to-alls have the right shape and sane values, and a broadcast leaves the live
 * rank's buffer as it is. Messages and scatters of which nothing is known are zeros,
 * said once.
 */
#include "config.h"

#include "runtime/exchange_state.h"
#include "runtime/inject.h"
#include "runtime/nccl_names.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void crystal_exchange_inject(struct crystal_exchange *x,
                             const struct crystal_inject *inject)
{
    x->inject = inject;
    x->replica = (struct crystal_replica){1, 1};
}

static void tell(struct crystal_exchange *x, const char *what, uint32_t lrank,
                 const struct comm *m)
{
    char text[CRYSTAL_ERROR_TEXT_BYTES];

    if (x->inject_told || !x->hooks.notice)
        return;
    x->inject_told = 1;
    (void)snprintf(text, sizeof text,
                   "nothing is known of a %s of rank %" PRIu32
                   " on '%s' yet, using zeros; capture rank %" PRIu32 " first",
                   what, lrank, m->name, lrank);
    x->hooks.notice(x->hooks.context, text);
}

static struct crystal_slice zeros(uint64_t bytes)
{
    struct crystal_blob *blob = crystal_blob_create(bytes);

    if (!blob)
        return (struct crystal_slice){0};
    if (bytes)
        memset(blob->data, 0, bytes);
    return (struct crystal_slice){blob, blob->data, bytes};
}

/* What a member must have put in, at least: the root's part where there is one. */
static uint64_t needed(const struct crystal_msg_op *head, uint32_t nranks,
                       uint32_t crank)
{
    uint64_t unit = head->count * crystal_dtype_bytes(head->dtype);

    switch (head->func) {
    case CRYSTAL_FUNC_BROADCAST:
        return crank == head->peer ? unit : 0;
    case CRYSTAL_FUNC_SCATTER:
        return crank == head->peer ? nranks * unit : 0;
    case CRYSTAL_FUNC_REDUCESCATTER:
    case CRYSTAL_FUNC_ALLTOALL:
        return nranks * unit;
    default:
        return unit;
    }
}

int crystal_exchange_inject_parts(struct crystal_exchange *x, struct comm *m,
                                  const struct op *own, struct crystal_part *parts,
                                  struct crystal_error *err)
{
    for (uint32_t c = 0; c < m->nranks; c++) {
        uint64_t need = needed(&own->head, m->nranks, c);
        struct crystal_slice send = {0};

        if (c == m->live[own->slot].crank)
            need = 0;
        if (need)
            send =
                crystal_inject_coll(x->inject, m->members[c], m->name, own->seq, need);
        if (!send.blob && need > own->send.bytes) {
            tell(x, crystal_func_name(own->head.func), m->members[c], m);
            send = zeros(need);
            if (!send.blob)
                return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
        }
        if (!send.blob) {
            send = own->send;
            (void)crystal_blob_ref(send.blob);
        }
        parts[c] = (struct crystal_part){.send = send,
                                         .scalar = own->head.scalar,
                                         .times = 1,
                                         .lrank = m->members[c]};
    }
    return 0;
}

int crystal_exchange_inject_receive(struct crystal_exchange *x, struct op *op,
                                    struct crystal_error *err)
{
    struct comm *m = op->comm;
    const uint32_t from = m->members[op->head.peer];
    struct crystal_slice data;

    if (!m->received)
        m->received = calloc(m->nranks, sizeof *m->received);
    if (!m->received)
        return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    data = crystal_inject_send(x->inject, from, m->name, m->live[op->slot].crank,
                               m->received[op->head.peer]++, op->head.recv_bytes);
    if (!data.blob && op->head.recv_bytes) {
        tell(x, "message", from, m);
        data = zeros(op->head.recv_bytes);
        if (!data.blob)
            return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    }
    crystal_exchange_done(x, op, data);
    return 0;
}
