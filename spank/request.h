/* What `scrystal layout --request` says about an emulated job: the shape of the
 * allocation and of each step. A frozen seam, version 5: key=value lines on standard
 * output, values percent-encoded; unknown keys are ignored.
 */
#ifndef CRYSTAL_SPANK_REQUEST_H
#define CRYSTAL_SPANK_REQUEST_H

#include "runtime/error.h"
#include "spank/argv.h"

#include <stdbool.h>
#include <stdint.h>

#define CRYSTAL_REQUEST_VERSION 5

enum crystal_stage_bit {
    CRYSTAL_STAGE_BIT_CAPTURE = 1,
    CRYSTAL_STAGE_BIT_PLAN = 2,
    CRYSTAL_STAGE_BIT_EMULATE = 4,
};

struct crystal_request {
    uint32_t node_count;       /* physical sandbox nodes */
    uint32_t assistant_count;  /* nodes of emulate beside these; 0 = the wire is
                                  modelled */
    bool is_apart;             /* these are a component of their own of the job ... */
    char *assistant_partition; /* ... from here; NULL = as the sandbox; owned */
    uint32_t task_count;       /* = sandbox ranks */
    uint32_t tasks_per_node;
    uint32_t logical_rank_count;
    uint32_t logical_node_count;
    uint32_t ranks_per_node;
    uint32_t live_count;
    uint32_t iterations;            /* 0 = not said */
    uint32_t store_port;            /* 0 = any */
    unsigned stages;                /* CRYSTAL_STAGE_BIT_*, those to run now */
    char *sandbox;                  /* rank list in task order; owned */
    char *job_dir;                  /* absolute; owned */
    char *job_name;                 /* owned */
    char *gres_per_node;            /* may be empty; owned */
    char *log;                      /* level of job steps; may be NULL; owned */
    struct crystal_argv allocation; /* options such as --partition=gpu, for a command
                                       line that does not say the same */
    struct crystal_argv notices;
    char *slurm_env;               /* as --crystal-slurm-env; NULL = logical; owned */
    struct crystal_argv wrapper;   /* in front of the emulated program */
    struct crystal_argv arguments; /* behind its own */
};

/* 0, or -EPROTO and a sentence. ret is filled on success only. */
int crystal_request_parse(const char *text, struct crystal_request *ret,
                          struct crystal_error *err);
void crystal_request_fini(struct crystal_request *request);

/* Ranks of a list such as "0-7,16": how many; 0 = malformed. */
uint32_t crystal_rank_list_count(const char *list);
/* The index-th of them, UINT32_MAX = there is none. */
uint32_t crystal_rank_list_at(const char *list, uint32_t index);

#endif
