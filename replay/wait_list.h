/* What the calling thread waits for between two rounds of test().
 *
 * test(), accept() and connect() note on the calling thread what would let them get
 * further: a file descriptor, a point in time, or a change on the board (which is
 * polled). crystal_net_wait blocks until one of them happens; then it forgets the times
 * and the board, and of the descriptors those that are ready. So a thread that has
 * tested all its requests since the last wait misses nothing, and a descriptor that is
 * still noted is known not to be ready. The notes are the calling thread's own. Another
 * thread gets one out of its wait with crystal_net_wake (replay/net_wait.h).
 */
#ifndef CRYSTAL_WAIT_LIST_H
#define CRYSTAL_WAIT_LIST_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

/* How often the board is looked at. */
#define CRYSTAL_WAIT_POLL_NS 100000U

void crystal_wait_fd(int fd, short events);
/* Is it noted, in a thread that waits? Then trying it again before the next wait is of
 * no use. */
bool crystal_wait_is_noted(int fd, short events);
void crystal_wait_forget(int fd); /* it is closed */
/* Whether this thread is taken to sleep when nothing moves: it has before. */
bool crystal_wait_sleeps(void);
/* What crystal_net_more said on this thread. */
bool crystal_wait_is_more(void);
void crystal_wait_until(uint64_t at_ns); /* CLOCK_MONOTONIC */
void crystal_wait_board(void);

#endif
