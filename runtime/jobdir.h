/* The job directory: where one emulated job keeps its files, mode 0700.
 *
 *   layout.yaml       layout: which ranks there are, which run
 *
 *   lock              held (flock) by the coordinator while the job is in use
 *
 *   claim             layout: words of whose layout it is (runtime/claim.h)
 *
 *   coord             host=, port=, store_port=, pid= and claim= lines of the running
 *                     coordinator (0600)
 *
 *   token             64 hexadecimal digits (0600)
 *
 *   coord.K, token.K  the same of the coordinator that node K has for itself in plan on
 *                     several nodes
 *
 *   ranks/R.trace     capture: one per live rank R (runtime/trace.h)
 *
 *   ranks/R.payload   capture: what R contributed, where it is kept
 *
 *   ranks/R.sites     capture: where R's program called, a line each: an address in
 *                     hexadecimal, a blank, what the program's language says of it
 *
 *   comms.tab         capture: the coordinator's table of communicators, a line each:
 *                     name<TAB>nranks<TAB>members, a rank list "0-7,16" in crank order
 *                     (a list that is not ascending names each rank)
 *
 *   diagnosis.txt     capture that failed by what its ranks did: what each does
 *
 *   job.graph         graph
 *
 *   plan/R.trace      plan: slices, recorded with real durations
 *   plan/R.run        ... how their collectives were done (replay/run_record.h)
 *   plan/progress     while it has not ended: which pass (commands/plan_progress.h)
 *   plan/T.done       ... the slice of target node T has been measured in that pass
 *
 *   job.profile       plan: durations and composed iteration times
 *
 *   runs/NNN/R.run    emulate: one per sandbox rank (replay/run_record.h)
 *
 *   runs/NNN/run.yaml emulate: wire, counters of the board, exit codes
 *   runs/NNN/run.K.yaml ... of sandbox nodes K = 1, 2, ... where there are several
 *   runs/NNN/assistant.K.yaml emulate: what the nodes K behind them have moved
 *
 *   agent.K.env       emulate: settings for the program's ranks on sandbox node K
 *   agent.K.spank     under Slurm: the node loads crystal.so
 *   agent.K.ends      under Slurm: how its tasks have ended (spank/task.h)
 *   agent.K.code      under Slurm: "CODE OWN", what srun is to end with; OWN 1: it is
 *                     the code of the rank that began
 *
 *   report.txt, report.json, report.html, trace.json
 *
 *   log/              what stages and captured programs print
 */
#ifndef CRYSTAL_JOBDIR_H
#define CRYSTAL_JOBDIR_H

#include "runtime/error.h"

#include <limits.h>
#include <stddef.h>

struct crystal_jobdir;

/* -EINVAL where path has a line break, of which agent.K.env, one setting a line, can
 * hold none; what stands in front of the sentence. crystal_jobdir_open asks it. */
int crystal_jobdir_check_name(const char *what, const char *path,
                              struct crystal_error *err);
/* A directory that is ours alone: made (0700) where create is set, not another user's,
 * not writable by others. ret is its absolute path; what stands in front of it in the
 * sentence. */
int crystal_jobdir_private(const char *what, const char *path, int create,
                           char ret[PATH_MAX], struct crystal_error *err);
/* Opens directory path, making it (0700) where create is set. A directory of another
 * user, or one that others can write, is refused. NULL on failure. */
struct crystal_jobdir *crystal_jobdir_open(const char *path, int create,
                                           struct crystal_error *err);
void crystal_jobdir_close(struct crystal_jobdir *dir);
/* Absolute path, borrowed until close. */
const char *crystal_jobdir_path(const struct crystal_jobdir *dir);
/* Takes the lock; -EBUSY with the holder's pid and host in the sentence. Held until
 * close or the process's end. */
int crystal_jobdir_lock(struct crystal_jobdir *dir, struct crystal_error *err);
/* "path/format" into out; -ENAMETOOLONG where it does not fit. */
int crystal_jobdir_file(const struct crystal_jobdir *dir, char *out, size_t out_bytes,
                        struct crystal_error *err, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* mkdir of a subdirectory (0700), fine where it exists. */
int crystal_jobdir_mkdir(const struct crystal_jobdir *dir, const char *name,
                         struct crystal_error *err);

#endif
