/* The agent's watch over the sandbox ranks of its node: a rank that is stopped, one
 * that uses no CPU while others wait for it, processes that claim one rank. What it
 * knows comes from the roll (who is which process, who waits for whom), the board (who
 * of a communicator has not arrived) and /proc. One thread.
 */
#ifndef CRYSTAL_RANK_WATCH_H
#define CRYSTAL_RANK_WATCH_H

#include "replay/board.h"
#include "replay/roll.h"
#include "runtime/error.h"
#include "runtime/layout.h"

#include <stddef.h>

struct crystal_rank_watch;

/* Of this node's share of the layout's sandbox. All borrowed until destroy. NULL: no
 * memory. */
struct crystal_rank_watch *
crystal_rank_watch_create(struct crystal_roll *roll, struct crystal_board *board,
                          const struct crystal_layout *layout,
                          struct crystal_share share);
void crystal_rank_watch_destroy(struct crystal_rank_watch *watch); /* NULL is fine */

/* The process of this rank has ended, joined or not. */
void crystal_rank_watch_ended(struct crystal_rank_watch *watch, uint32_t lrank);
/* To be called often; looks once a second. 0 nothing new; 1 notice is a sentence for
 * the user about a rank that keeps others waiting for 3 s, once until it goes on;
 * negative errno: the stage cannot go on (two processes with one rank, or no CPU used
 * for CRYSTAL_HANG_SECONDS while others wait, by a rank that waits for nobody or, where
 * there is none, by one of those that wait for each other). */
int crystal_rank_watch_look(struct crystal_rank_watch *watch, char *notice,
                            size_t notice_bytes, struct crystal_error *err);

#endif
