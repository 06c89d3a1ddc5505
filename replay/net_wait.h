/* Functions that libnccl-net-crystal.so exports beside its NCCL plugin objects, so that
 * whoever drives transfers on host memory need not spin. Found with dlsym; absent in
 * other plugins. A thread that has waited once is taken to wait again whenever nothing
 * moves: sockets that it found empty are not asked before its next wait.
 */
#ifndef CRYSTAL_NET_WAIT_H
#define CRYSTAL_NET_WAIT_H

#include <stdint.h>

/* Blocks the calling thread until some transfer of this process may have progressed, at
 * most max_ns. One thread per process waits at a time. With 0 it only forgets what this
 * thread has found not ready, so that tests ask the system again: for a thread that
 * looks again and again, or that waits for the first time after another did. Returns 0.
 */
int crystal_net_wait(uint64_t max_ns);

/* Makes the present or else the next crystal_net_wait return at once. Any thread. A
 * plugin may lack it: callers then wait in short pieces. */
void crystal_net_wake(void);

/* more is true: another isend on the same connection follows the next one of this
 * thread at once, so that both may be written together. Holds until it is told
 * otherwise. */
void crystal_net_more(int more);

typedef int (*crystal_net_wait_fn)(uint64_t max_ns);
typedef void (*crystal_net_wake_fn)(void);
typedef void (*crystal_net_more_fn)(int more);

#endif
