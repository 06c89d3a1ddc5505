/* From options as the user typed them to a layout, with every rule checked. */
#ifndef CRYSTAL_LAYOUT_MAKE_H
#define CRYSTAL_LAYOUT_MAKE_H

#include "runtime/conf.h"
#include "runtime/error.h"
#include "runtime/layout.h"

#include <stddef.h>

/* The options' texts; NULL = not given. Borrowed. */
struct crystal_layout_options {
    const char *logical_ranks;
    const char *ranks_per_node;
    const char *gpus_per_node; /* the partition's, default of ranks_per_node */
    const char *sandbox;
    const char *parallel;
    const char *live;
    const char *iterations;
    const char *payload;
    const char *wire;
    const char *assistants;
    const char *slurm_env;
    const char *job_name;
    char **program; /* argv, NULL-terminated, may be NULL */
};

/* Fills *ret (caller: crystal_layout_fini) and writes what the user should know into
 * notice (may be empty; at most notice_bytes). Each fault is one sentence that names
 * the option as the user gave it. */
int crystal_layout_make(const struct crystal_layout_options *options,
                        const struct crystal_conf *conf, struct crystal_layout *ret,
                        char *notice, size_t notice_bytes, struct crystal_error *err);

#endif
