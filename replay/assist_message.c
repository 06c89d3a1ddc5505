/* See assist_message.h. */
#include "config.h"

#include "replay/assist_message.h"

#include "runtime/nccl_abi.h"
#include "runtime/reduce.h"
#include "runtime/wire_form.h"

#include <errno.h>
#include <stdbool.h>

static int bad(uint64_t number, struct crystal_error *err)
{
    return crystal_error_set(err, EBADMSG,
                             "message %llu of the real wire is none of this version; "
                             "let one installation run everywhere",
                             (unsigned long long)number);
}

int crystal_assist_check(const struct crystal_assist_message *message, int is_answer,
                         uint64_t number, struct crystal_error *err)
{
    const uint32_t first = is_answer ? CRYSTAL_ASSIST_SENT : CRYSTAL_ASSIST_SEND;

    if (message->magic == CRYSTAL_ASSIST_MAGIC &&
        (message->type == first || message->type == first + 1) &&
        message->number == number && message->bytes <= CRYSTAL_ASSIST_BYTES_MAX)
        return 0;
    return bad(number, err);
}

/* What data_bytes is a number of. */
static uint32_t unit_bytes(const struct crystal_assist_source *s)
{
    return s->term_count && s->dtype < ncclNumTypes ? crystal_dtype_bytes(s->dtype) : 1;
}

int crystal_assist_check_source(const struct crystal_assist_message *message,
                                const struct crystal_assist_source *s,
                                struct crystal_error *err)
{
    const bool is_take = message->type == CRYSTAL_ASSIST_TAKE;
    const uint32_t flags =
        is_take ? CRYSTAL_ASSIST_KEPT
                : CRYSTAL_ASSIST_GIVEN | CRYSTAL_ASSIST_KEPT | CRYSTAL_ASSIST_DIVIDED;
    const bool is_given = s->flags & CRYSTAL_ASSIST_GIVEN;

    if (s->proto < CRYSTAL_PROTO_COUNT && !(s->flags & ~flags) &&
        s->data_bytes <= message->bytes &&
        crystal_form_bytes((enum crystal_proto)s->proto, s->data_bytes) <=
            message->bytes &&
        s->dtype < ncclNumTypes && s->redop < CRYSTAL_REDOP_COUNT && s->nranks &&
        s->term_count <= CRYSTAL_ASSIST_TERMS_MAX &&
        s->data_bytes % unit_bytes(s) == 0 &&
        !((is_take || is_given) && s->term_count) &&
        !(is_given && s->flags != CRYSTAL_ASSIST_GIVEN))
        return 0;
    return bad(message->number, err);
}
