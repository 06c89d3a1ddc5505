/* Threads of our own inside somebody's process. */
#ifndef CRYSTAL_THREAD_H
#define CRYSTAL_THREAD_H

#include <pthread.h>

/* Starts a thread that takes no signal: those are for the program's or the agent's own
 * threads. With ret NULL it is detached, else the caller joins it. 0 or a positive
 * errno. */
int crystal_thread_start(pthread_t *ret, void *(*run)(void *), void *argument);

#endif
