/* The program's srun looks after the agents' srun, its child: a program that loses its
 * agents is ended, as its ranks would wait for each other for ever.
 */
#ifndef CRYSTAL_SPANK_AGENT_WATCH_H
#define CRYSTAL_SPANK_AGENT_WATCH_H

#include <sys/types.h>

/* Starts a thread that waits for the end of agent (0: there is none) without reaping
 * it. Where that is none of its own or of the job's, and the program goes on for some
 * seconds, it says so and this process gets SIGTERM. Once per process. */
void crystal_agent_watch_begin(pid_t agent);
/* The program has ended; before the agents are told to. */
void crystal_agent_watch_end(void);

#endif
