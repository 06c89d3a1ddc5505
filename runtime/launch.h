/* Ranks of one node as child processes: started, watched, and never left behind.
 *
 * Each rank leads a process group of its own. When the launching process dies, however
 * it dies, its ranks are killed by the kernel, and what they started by a guard process
 * that waits for just that (runtime/guard.h). Use from one thread, the one that lives
 * longest; SIGCHLD, SIGINT, SIGTERM and SIGHUP are blocked in it from create on (and so
 * in threads that it starts later).
 */
#ifndef CRYSTAL_LAUNCH_H
#define CRYSTAL_LAUNCH_H

#include "runtime/error.h"

#include <stdint.h>
#include <sys/types.h>

struct crystal_launch;

struct crystal_launch_rank {
    uint32_t lrank;
    char *const *argv;    /* found through PATH; NULL-terminated; borrowed */
    char *const *env;     /* "NAME=VALUE" over the own environment, NULL-terminated;
                             borrowed; NULL = none */
    const char *log_path; /* gets standard output and error (0600); NULL = inherited */
    int keeps_stdin;      /* else standard input is /dev/null */
    int death_signal;     /* it gets when the launching process dies; 0 = SIGKILL */
};

/* How a rank ended. */
struct crystal_launch_end {
    uint32_t lrank;
    int code;   /* exit code; 128 + signal where a signal ended it */
    int signal; /* 0 = it exited */
};

/* Starts the guard. NULL on failure. */
struct crystal_launch *crystal_launch_create(struct crystal_error *err);
/* The directory, which has no others in it, is removed with its files should this
 * process be killed. As often as it is called, for the last one only; NULL = none. */
void crystal_launch_keep_clean(struct crystal_launch *l, const char *directory);
/* Starts a rank; a program that cannot be run is an error here. */
int crystal_launch_start(struct crystal_launch *l,
                         const struct crystal_launch_rank *rank,
                         struct crystal_error *err);
/* The process of a rank that was started; 0 where nothing of it is left. */
pid_t crystal_launch_pid(const struct crystal_launch *l, uint32_t lrank);
/* Ranks that have not ended. */
uint32_t crystal_launch_running(const struct crystal_launch *l);
/* Waits at most timeout_ms. 1 = a rank ended, *ret says how, in the order of their ends
 * (Linux 5.3 and later); 0 = nothing happened; -EINTR = signal *ret_signal asks this
 * process to stop. */
int crystal_launch_wait(struct crystal_launch *l, int timeout_ms,
                        struct crystal_launch_end *ret, int *ret_signal);
/* Ends all process groups: SIGTERM, after grace_ms SIGKILL. Returns when none is left.
 */
void crystal_launch_stop(struct crystal_launch *l, int grace_ms);
/* Stops what still runs and ends the guard. NULL is fine. */
void crystal_launch_destroy(struct crystal_launch *l);

/* "ended with code 1" or "was ended by signal 11 (Segmentation fault)". */
void crystal_launch_end_text(const struct crystal_launch_end *end, char *out,
                             size_t out_bytes);

#endif
