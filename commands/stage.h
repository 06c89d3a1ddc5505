/* What capture, plan and emulate have in common: the job directory and its layout, the
 * connection to the coordinator, the ranks as child processes, and the one sentence
 * when something fails. Used by `scrystal agent` and by the stages' own commands.
 */
#ifndef CRYSTAL_STAGE_H
#define CRYSTAL_STAGE_H

#include "replay/node.h"
#include "runtime/coord_client.h"
#include "runtime/error.h"
#include "runtime/jobdir.h"
#include "runtime/launch.h"
#include "runtime/layout.h"

#include <limits.h>
#include <stddef.h>

enum stage_kind { STAGE_CAPTURE = 1, STAGE_PLAN = 2, STAGE_EMULATE = 3 };

/* Settings for a rank's environment; grows, owns its strings. */
struct stage_env {
    char **entries; /* NULL-terminated once one was added */
    size_t count;
    int failed; /* out of memory */
};

struct stage {
    enum stage_kind kind;
    uint32_t node, node_count; /* this agent's node of the step; sandbox nodes in it */
    uint32_t assistant_count;  /* in emulate, behind those; else 0 */
    struct crystal_share own;  /* what of layout.sandbox runs here; from begin */
    const char *name;          /* "capture", ...: also the component of messages */
    char **program;            /* argv, borrowed; NULL: none here */
    struct crystal_words line; /* the same with wrapper and arguments of the stage */
    struct crystal_jobdir *dir;
    struct crystal_layout layout;
    char job_dir[PATH_MAX];
    char coord_file[PATH_MAX];
    char token_file[PATH_MAX];
    char master_addr[256];
    char master_port[16];
    struct crystal_client *client;
    struct crystal_launch *launch;
    struct crystal_node *service; /* plan, emulate: what hosts the virtual ranks; NULL
                                     while there is none; borrowed */
    struct stage_env env;         /* the same for all ranks of this node */
    /* outcome */
    int stop_signal; /* this process was asked to stop */
    int was_told;    /* the coordinator has the sentence already ... */
    int coord_found; /* ... and it is its own */
    int has_told;    /* it has the sentence from us */
    int code;        /* exit code of the rank that began, 0 = none failed */
    struct crystal_launch_end *ends; /* of its ranks, as they came; owned */
    uint32_t end_count;
};

const char *stage_name(enum stage_kind kind);
/* 0 and the kind, or -EINVAL. */
int stage_kind_parse(const char *text, enum stage_kind *ret);

/* Opens the job directory, reads its layout. program NULL: the layout's, if any. */
int stage_open(struct stage *stage, enum stage_kind kind, const char *job_dir,
               char **program, struct crystal_error *err);
/* Connects to the coordinator and begins the stage there. node: of this agent, of
 * all_count, assistants counted. */
int stage_begin(struct stage *stage, uint32_t node, uint32_t all_count,
                struct crystal_error *err);
/* Reads from stage->coord_file where the ranks find the store. begin has done it. */
int stage_find_store(struct stage *stage, struct crystal_error *err);
/* Are the libraries that ranks load in any stage installed here? The sentence says
 * which is not. */
int stage_check_libraries(struct crystal_error *err);
/* Ends what still runs and frees everything. */
void stage_close(struct stage *stage);

/* Path of a file in the job directory. */
int stage_path(const struct stage *stage, char out[PATH_MAX], struct crystal_error *err,
               const char *format, ...) __attribute__((format(printf, 4, 5)));

void stage_env_add(struct stage_env *env, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void stage_env_fini(struct stage_env *env);
/* Adds what every rank of the node gets in this stage but the libraries and the board:
 * job, coordinator, store. */
void stage_env_common(struct stage *stage);
/* Each of these ranks gets its part of limits.pinned_bytes. */
void stage_env_pinned(struct stage *stage, uint32_t rank_count);
/* Of these names and values, those that the environment does not have already. */
void stage_env_defaults(struct stage_env *env, const char *const (*settings)[2],
                        size_t count);
/* Whether this node has NVIDIA's driver, so that programs may use a GPU. */
int stage_has_device(void);
/* Lets library, libcrystal-nccl.so, stand before the NCCL and the CUDA runtime of
 * programs, which need nothing else in their environment. 0 on a node without a device,
 * where nothing is added, else 1. */
int stage_env_device(struct stage *stage, const char *library);
/* Where the layout names an NVTX range, lets the recorder hear of it; a tool that the
 * user has put behind NVTX stays there. Returns that one's path, NULL where there is
 * none or no range is named. */
const char *stage_env_range(struct stage *stage, const char *library);
/* One rank of those that a stage starts here. */
struct stage_rank {
    uint32_t lrank;
    uint32_t index, count; /* the index-th of count */
};
/* What only this rank gets: its numbers; those of Slurm are physical where the user
 * asked for it. */
void stage_env_rank(const struct stage *stage, const struct stage_rank *rank,
                    struct stage_env *env);
/* What crystal.yaml sets for this stage; comes last. */
void stage_env_rules(const struct stage *stage, struct stage_env *env);

/* Removes files of an earlier run of the stage, DIR/sub/ *suffix. */
int stage_sweep(const struct stage *stage, const char *sub, const char *suffix,
                struct crystal_error *err);

/* What crystal.yaml says of this stage; borrowed. */
const struct crystal_stage_rules *stage_rules(const struct stage *stage);
/* Where the output of a rank goes in capture and plan, see runtime/stage_rules.h. */
int stage_log_path(const struct stage *stage, uint32_t lrank, char out[PATH_MAX],
                   struct crystal_error *err);

/* Starts the program, with what crystal.yaml puts around it, as each of lranks.
 * with_logs: output to stage_log_path instead of ours. */
int stage_start_ranks(struct stage *stage, const uint32_t *lranks, uint32_t count,
                      int with_logs, struct crystal_error *err);
/* Called between waits; nonzero ends the stage with the sentence in err. */
typedef int (*stage_check_fn)(void *context, struct crystal_error *err);
/* Waits for the started ranks. A rank that fails, a coordinator that stops the stage, a
 * failing check or a signal ends the others. Afterwards no rank runs. */
int stage_wait_ranks(struct stage *stage, stage_check_fn check, void *context,
                     struct crystal_error *err);
/* Whether the coordinator has ended the stage: 0 well, -ECANCELED with its sentence,
 * which stage_failed then leaves to whoever found it; -ETIMEDOUT it goes on. */
int stage_stopped(struct stage *stage, struct crystal_error *err);
/* The node's service has failed (service_code, sentence in err), or a rank (0): which
 * of them began it? The code, and its sentence in err. Waits a while for what shows it.
 */
int stage_explain(struct stage *stage, int service_code, struct crystal_error *err);
/* Waits so long, no ranks of ours running; -EINTR where a signal stops us. */
int stage_pause(struct stage *stage, int ms, struct crystal_error *err);
/* Waits without ranks of our own until the coordinator ends the job: 0. */
int stage_wait_job(struct stage *stage, stage_check_fn check, void *context,
                   struct crystal_error *err);

/* Tells the coordinator the sentence, if it has none yet. */
void stage_tell(struct stage *stage, const struct crystal_error *err);
/* Prints the sentence, tells the coordinator, gives the exit code. */
int stage_failed(struct stage *stage, const struct crystal_error *err);

/* The stages themselves; the value is the exit code. */
int stage_capture(struct stage *stage);
int stage_plan(struct stage *stage);
int stage_emulate(struct stage *stage, uint32_t node);
/* Emulate on an assistant node (replay/assistant.h). */
int stage_assist(struct stage *stage);

/* --- by hand, without Slurm: coordinator and agent in one command --- */

/* `scrystal coord --job DIR` as a child, up and ready; node: with --node=NODE, else
 * NULL. It ends with this process, or when the launch is destroyed. NULL on failure. */
struct crystal_launch *stage_coord_start(const char *job_dir, const char *node,
                                         struct crystal_error *err);
/* Tells it that the job is over and waits for its end. */
int stage_coord_finish(struct crystal_launch *coord, const char *job_dir,
                       struct crystal_error *err);
/* Assistants of emulate, behind node_count sandbox nodes, on this machine, once the
 * coordinator is up. They end by themselves with the stage; end waits for that (NULL is
 * fine). NULL on failure. */
struct crystal_launch *stage_assistants_start(const char *job_dir, uint32_t node_count,
                                              uint32_t count,
                                              struct crystal_error *err);
void stage_assistants_end(struct crystal_launch *assistants);
/* The whole command: options, coordinator, stage. */
int stage_by_hand(enum stage_kind kind, int argc, char **argv);

#endif
