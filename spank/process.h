/* Child processes of srun, sbatch and salloc.
 *
 * A child starts with default, unblocked signals (srun blocks them before it loads
 * plugins), no file descriptor above 2 (srun's own pipes are not close-on-exec),
 * standard input from /dev/null, standard output going to standard error (ours belongs
 * to the program), and gets SIGTERM when the process that started it ends in any way.
 */
#ifndef CRYSTAL_SPANK_PROCESS_H
#define CRYSTAL_SPANK_PROCESS_H

#include "runtime/error.h"
#include "spank/argv.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Runs in the child before exec, to change the environment. */
typedef void (*crystal_process_prepare_fn)(void *context);

struct crystal_process_spec {
    const char *path; /* program to exec; searched in PATH where it has no slash */
    const struct crystal_argv *argv;
    crystal_process_prepare_fn prepare; /* may be NULL */
    void *context;
    bool background; /* a process group of its own: the terminal's Ctrl-C passes by */
    const char *log; /* file for its messages, made anew (0600); NULL = our standard
                        error */
};

/* Starts and returns; ret_pid is the caller's to reap. 0 or negative errno. Only this
 * one looks at spec->log. */
int crystal_process_start(const struct crystal_process_spec *spec, pid_t *ret_pid,
                          struct crystal_error *err);
/* Runs to its end. What it prints on standard output comes back (caller frees). The
 * value is the exit code, 128 + signal, or a negative errno. */
int crystal_process_read(const struct crystal_process_spec *spec, char **ret_text,
                         struct crystal_error *err);
/* Runs to its end behind an open line "title" on standard error; what the process
 * prints goes below it, and the line is closed with the time. Signals that this process
 * gets meanwhile go to the child, unless the terminal has sent them there itself. Ends
 * the wait early where the process watch (0 = none) ends first: then watch_ended is set
 * and the child is terminated. The value is as above; a child that ended well although
 * a signal came yields 128 + signal. */
int crystal_process_stage(const struct crystal_process_spec *spec, const char *title,
                          pid_t watch, bool *ret_watch_ended,
                          struct crystal_error *err);
/* Waits at most timeout_ms for a child. True = it has ended, ret_code is set as above.
 */
bool crystal_process_wait(pid_t pid, uint64_t timeout_ms, int *ret_code);
/* SIGTERM, SIGKILL after 5 s; reaps. */
void crystal_process_end(pid_t pid);
/* Default, unblocked signals, as exec of another program expects them. */
void crystal_process_reset_signals(void);
/* From now on signals that would end us are kept for crystal_process_stage and
 * crystal_process_pending_signal. Once per process. */
int crystal_process_watch_signals(struct crystal_error *err);
/* One that has come, taken; 0 = none. */
int crystal_process_pending_signal(void);

uint64_t crystal_process_now_ms(void);

/* The running executable by its own name (as /proc/self/exe it would show as "exe" in
 * ps), out_bytes long; returns out. */
const char *crystal_process_self(char *out, size_t out_bytes);

#endif
