/* What the calling thread waits for between two rounds of test().
 *
 * test(), accept() and connect() note on the calling thread what would let them get
 * further: a file descriptor, a point in time, or a change on the board (which is
 * polled). crystal_net_wait blocks until one of them happens and forgets them. So a
 * thread that has tested all its requests since the last wait misses nothing.
 * The notes are the calling thread's own. Another thread gets one out of its wait with
 * crystal_net_wake (replay/net_wait.h).
 */
#ifndef CRYSTAL_WAIT_LIST_H
#define CRYSTAL_WAIT_LIST_H

#include <poll.h>
#include <stdint.h>

/* How often the board is looked at. */
#define CRYSTAL_WAIT_POLL_NS 100000U

void crystal_wait_fd(int fd, short events);
void crystal_wait_until(uint64_t at_ns); /* CLOCK_MONOTONIC */
void crystal_wait_board(void);

#endif
