/* The recorder's own thread: takes a turn every 200 ms, sooner where it is asked to.
 * One per process; a forked child has none.
 */
#ifndef CRYSTAL_FLUSHER_H
#define CRYSTAL_FLUSHER_H

/* Once; turn runs on that thread until the process ends. Without a thread there are no
 * turns: nothing is said. */
void flusher_start(void (*turn)(void));
/* The next turn comes at once. Thread-safe. */
void flusher_hurry(void);

#endif
