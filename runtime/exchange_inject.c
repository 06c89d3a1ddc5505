/* Capture of one rank by itself: everybody else's part is injected. See exchange.h.
 *
 * A rank that was captured before contributes what it kept of the operation with the
 * same number. Another one contributes what the live rank does: so reductions, gathers
 * and all-to-alls have the right shape and sane values, and a broadcast leaves the live
 * rank's buffer as it is. Messages and scatters of which nothing is known are zeros,
 * said once. Rules in crystal.yaml (inject_rules.h) come before all that.
 */
#include "config.h"

#include "runtime/exchange_state.h"
#include "runtime/inject.h"
#include "runtime/inject_rules.h"
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

/* A contribution of `bytes` that a rule makes, in *ret with a reference. */
static int made(const struct crystal_inject_rule *rule, unsigned dtype, uint64_t bytes,
                struct crystal_slice *ret, struct crystal_error *err)
{
    *ret = zeros(bytes);
    if (!ret->blob)
        return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    return crystal_inject_rule_fill(rule, dtype, ret->blob->data, bytes, err);
}

/* The rule for what `from` puts in. site: room for where the live rank called. */
static const struct crystal_inject_rule *rule_of(const struct crystal_exchange *x,
                                                 const struct op *own, uint32_t from,
                                                 uint64_t bytes, char *site)
{
    struct crystal_inject_ask ask = {.comm = own->comm->name,
                                     .site = "",
                                     .func = own->head.func,
                                     .dtype = own->head.dtype,
                                     .bytes = bytes,
                                     .from = from};

    if (!bytes || !x->layout->inject.count)
        return NULL;
    if (!*site && x->layout->inject.site_count)
        (void)crystal_exchange_site(x, own->ticket->lrank, own->head.call_site, site);
    ask.site = site;
    return crystal_inject_rules_find(&x->layout->inject, &ask);
}

/* A rule asks for what the rank itself has recorded, and that is not there. */
static int not_recorded(const struct crystal_inject_rule *rule, const struct op *own,
                        uint32_t lrank, struct crystal_error *err)
{
    return crystal_error_set(
        err, ENODATA,
        "'%s' of inject: in crystal.yaml wants what rank %" PRIu32
        " recorded of a %s on '%s', which it has not; put it before the live rank in "
        "--crystal-live, or give another value=",
        rule->text, lrank, crystal_func_name(own->head.func), own->comm->name);
}

/* What member c puts in, with a reference. */
static int part_of(struct crystal_exchange *x, const struct op *own, uint32_t c,
                   char *site, struct crystal_slice *ret, struct crystal_error *err)
{
    const struct comm *m = own->comm;
    const struct crystal_inject_rule *rule;
    uint64_t need =
        c == m->live[own->slot].crank ? 0 : needed(&own->head, m->nranks, c);

    rule = rule_of(x, own, m->members[c], need, site);
    *ret = (struct crystal_slice){0};
    if (rule &&
        (rule->value == CRYSTAL_INJECT_CONSTANT || rule->value == CRYSTAL_INJECT_FILE))
        return made(rule, own->head.dtype, need, ret, err);
    if (need && (!rule || rule->value == CRYSTAL_INJECT_OWN))
        *ret = crystal_inject_coll(x->inject, m->members[c], m->name, own->seq, need);
    if (ret->blob)
        return 0;
    if (rule && rule->value == CRYSTAL_INJECT_OWN)
        return not_recorded(rule, own, m->members[c], err);
    if (need > own->send.bytes) {
        tell(x, crystal_func_name(own->head.func), m->members[c], m);
        *ret = zeros(need);
        return ret->blob ? 0
                         : crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    }
    *ret = own->send;
    (void)crystal_blob_ref(ret->blob);
    return 0;
}

int crystal_exchange_inject_parts(struct crystal_exchange *x, struct comm *m,
                                  const struct op *own, struct crystal_part *parts,
                                  struct crystal_error *err)
{
    char site[CALL_SITE_BYTES] = "";

    for (uint32_t c = 0; c < m->nranks; c++) {
        struct crystal_slice send;
        int code = part_of(x, own, c, site, &send, err);

        if (code) {
            crystal_blob_unref(send.blob);
            return code;
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
    const struct crystal_inject_rule *rule;
    char site[CALL_SITE_BYTES] = "";
    struct crystal_slice data = {0};
    uint64_t seq;

    if (!m->received)
        m->received = calloc(m->nranks, sizeof *m->received);
    if (!m->received)
        return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    seq = m->received[op->head.peer]++;
    rule = rule_of(x, op, from, op->head.recv_bytes, site);
    if (rule && rule->value != CRYSTAL_INJECT_OWN) {
        int code;

        if (rule->value == CRYSTAL_INJECT_REPLICATE)
            return crystal_error_set(err, EINVAL,
                                     "'%s' of inject: in crystal.yaml would replicate "
                                     "what the live rank puts "
                                     "into a message that it receives; give the rule "
                                     "an op= or another value=",
                                     rule->text);
        code = made(rule, op->head.dtype, op->head.recv_bytes, &data, err);
        if (code) {
            crystal_blob_unref(data.blob);
            return code;
        }
    } else {
        data = crystal_inject_send(x->inject, from, m->name, m->live[op->slot].crank,
                                   seq, op->head.recv_bytes);
    }
    if (!data.blob && rule)
        return not_recorded(rule, op, from, err);
    if (!data.blob && op->head.recv_bytes) {
        tell(x, "message", from, m);
        data = zeros(op->head.recv_bytes);
        if (!data.blob)
            return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    }
    crystal_exchange_done(x, op, data);
    return 0;
}
