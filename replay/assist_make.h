/* Makes the payload of what a virtual rank sends, as the plugin says that it is made.
 * Used by the server's thread only.
 */
#ifndef CRYSTAL_ASSIST_MAKE_H
#define CRYSTAL_ASSIST_MAKE_H

#include "replay/assist_message.h"
#include "runtime/error.h"

#include <stdint.h>

struct assist_kept_table;
struct crystal_graph;

/* *ret: message->bytes of payload, the caller frees; NULL: all zeros. source and terms
 * are checked by their own checks only. -EBADMSG with a sentence where they name what
 * is not there, -ENOMEM. */
int assist_make(const struct crystal_graph *graph, struct assist_kept_table *kept,
                const struct crystal_assist_message *message,
                const struct crystal_assist_source *source,
                const struct crystal_assist_term *terms, unsigned char **ret,
                struct crystal_error *err);

#endif
