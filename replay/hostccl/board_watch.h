/* The board's abort flag: when the node's service or a peer stops the job, waits that
 * no net plugin sees (for a peer's message, for a ring to close) end as well.
 */
#ifndef CRYSTAL_HOSTCCL_BOARD_WATCH_H
#define CRYSTAL_HOSTCCL_BOARD_WATCH_H

#include "replay/roll.h"
#include "runtime/error.h"

#include <stdbool.h>

/* Looks at the board of CRYSTAL_BOARD ten times a second from now on and calls
 * on_abort, once and from the service's thread, when it is aborted. Without a board, or
 * called again, it does nothing. */
int hostccl_board_watch(void (*on_abort)(void), struct crystal_error *err);

/* Is it aborted? Then err says why. */
bool hostccl_board_is_aborted(struct crystal_error *err);

/* Writes on the roll beside the board, see replay/roll.h; nothing without a board. */
void hostccl_board_note(enum crystal_roll_kind kind, uint64_t comm_id, uint32_t crank);

#endif
