/* An emulated step, from the srun that the user typed inside an allocation:
 * coordinator, capture, plan and agents are job steps started by child sruns, then this
 * process becomes the program's own srun.
 */
#ifndef CRYSTAL_SPANK_STEPS_H
#define CRYSTAL_SPANK_STEPS_H

#include "runtime/error.h"
#include "spank/argv.h"
#include "spank/request.h"
#include "spank/srun_line.h"

#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

/* How the program's srun, the same process after exec, knows its helper steps and the
 * salloc around it: pids "coordinator,agent,assistants,salloc". */
#define CRYSTAL_STEPS_ENV "CRYSTAL_STEPS"

struct crystal_steps_pids {
    int coord, agent, assist, salloc; /* 0 = there is none */
};
/* Reads the value of CRYSTAL_STEPS_ENV; all 0 where it is NULL or malformed. */
struct crystal_steps_pids crystal_steps_pids_parse(const char *text);

/* What a step started here is for: values of --crystal-stage. */
#define CRYSTAL_STEP_COORD   "coord"
#define CRYSTAL_STEP_CAPTURE "capture"
#define CRYSTAL_STEP_PLAN    "plan"
#define CRYSTAL_STEP_AGENT   "agent"
#define CRYSTAL_STEP_ASSIST  "assist"
#define CRYSTAL_STEP_PROGRAM "emulate"

struct crystal_steps {
    const char *scrystal;                  /* absolute path; borrowed, as all below */
    const struct crystal_argv *self;       /* our own command line */
    int program;                           /* index of the program in it */
    const struct crystal_srun_line *line;  /* the options before it */
    const struct crystal_request *request; /* what is to run */
    const char *job_id;
    const char *job_nodes;   /* all of the job's, with commas; NULL = unknown */
    const char *nodes;       /* those of the sandbox, request->node_count of them; the
                                same */
    const char *more_nodes;  /* of the second component, where it is one; the same */
    const char *assistants;  /* request->assistant_count others; NULL = none */
    bool is_apart;           /* these are the job's second component */
    pid_t salloc;            /* that we put around this srun; 0 = none */
    uint32_t cpus_per_node;  /* least of the allocation; 0 = unknown */
    uint32_t assistant_cpus; /* the same of an assistant's node */
    bool in_container;       /* another plugin may change what tasks see */
    bool with_gres;          /* the allocation has the request's gres */
};

/* Runs the stages. Returns an exit code where this process is to end with it (a stage
 * failed, a signal came, or there is no program step to run); does not return where
 * the program's srun was exec'd. Every sentence has been printed. */
int crystal_steps_run(const struct crystal_steps *steps);

/* After the program: tells the coordinator to finish and waits for the helper steps,
 * 30 s at most, then ends them (scrystal as in
 * plugstack.conf, may be NULL); names the report where one was written since
 * start_time (seconds since 1970). Returns the exit code that srun is to end with where
 * the agents know better than it, else 0; *ret_always: whatever srun's own is, else
 * only where that is 0. */
int crystal_steps_finish(const char *scrystal, const char *job_dir,
                         const struct crystal_steps_pids *pids, time_t start_time,
                         bool *ret_always);

#endif
