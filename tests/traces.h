/* Traces that a test has let the recorder write. */
#ifndef CRYSTAL_TESTS_TRACES_H
#define CRYSTAL_TESTS_TRACES_H

#include "runtime/trace.h"

#include <limits.h>
#include <stdio.h>

/* DIRECTORY/LRANK.trace; says why not. */
static inline int trace_read(const char *directory, unsigned lrank,
                             struct crystal_trace *ret)
{
    struct crystal_error err = {0};
    char path[PATH_MAX + 64];
    int code;

    (void)snprintf(path, sizeof path, "%s/%u.trace", directory, lrank);
    code = crystal_trace_read(path, ret, &err);
    if (code)
        printf("# %s\n", err.text);
    return code;
}

/* The end of the operation of that record, or NULL. */
static inline const struct crystal_op *trace_done(const struct crystal_trace *trace,
                                                  uint64_t record)
{
    for (uint64_t i = record; i < trace->op_count; i++)
        if (trace->ops[i].kind == CRYSTAL_OP_DONE && trace->ops[i].peer == record)
            return &trace->ops[i];
    return NULL;
}

static inline unsigned trace_count(const struct crystal_trace *trace,
                                   enum crystal_op_kind kind)
{
    unsigned count = 0;

    for (uint64_t i = 0; i < trace->op_count; i++)
        count += trace->ops[i].kind == kind;
    return count;
}

#endif
