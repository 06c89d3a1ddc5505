/* See assist_message.h. */
#include "config.h"

#include "replay/assist_message.h"

#include <errno.h>

int crystal_assist_check(const struct crystal_assist_message *message, int is_answer,
                         uint64_t number, struct crystal_error *err)
{
    const uint32_t first = is_answer ? CRYSTAL_ASSIST_SENT : CRYSTAL_ASSIST_SEND;

    if (message->magic == CRYSTAL_ASSIST_MAGIC &&
        (message->type == first || message->type == first + 1) &&
        message->number == number && message->bytes <= CRYSTAL_ASSIST_BYTES_MAX)
        return 0;
    return crystal_error_set(err, EBADMSG,
                             "message %llu of the real wire is none of this version; "
                             "let one installation run everywhere",
                             (unsigned long long)number);
}
