/* What crystal.yaml says of ranks that do not run while one rank is captured by itself
 * (--crystal-live=LIST): a list of rules, each a text of words NAME=VALUE. The first
 * rule that fits decides; where none fits, what the rank itself has recorded counts,
 * else what the live rank does.
 *
 *   inject:
 *     - comm=default_pg?0* op=allreduce dtype=float32 value=constant:1
 *     - op=broadcast bytes=8-64 site=*train.py:120* value=file:/data/config.bin
 *     - value=replicate
 *
 * What a rule asks for, all of it, each at most once:
 *   comm=GLOB   the communicator's name, as scrystal show prints it
 *   op=NAME     allreduce, broadcast, ..., recv for messages to the live rank
 *   dtype=NAME  float32, int64, ...
 *   bytes=A[-B] size of what the absent rank would put in
 *   from=A[-B]  the absent rank
 *   site=GLOB   where the live rank called, as diagnoses print it
 * and what it gives, which must be there:
 *   value=own          what that rank itself has recorded, else the capture ends
 *   value=replicate    what the live rank puts in
 *   value=constant:X   every element is X
 *   value=file:PATH    the first bytes of a file; PATH is absolute
 */
#ifndef CRYSTAL_INJECT_RULES_H
#define CRYSTAL_INJECT_RULES_H

#include "runtime/error.h"

#include <stdint.h>
#include <stdio.h>

enum crystal_inject_value {
    CRYSTAL_INJECT_OWN,
    CRYSTAL_INJECT_REPLICATE,
    CRYSTAL_INJECT_CONSTANT,
    CRYSTAL_INJECT_FILE
};

struct crystal_inject_rule {
    char *text;        /* as it was written; owned */
    char *comm, *site; /* NULL: any; owned */
    unsigned func;     /* enum crystal_func, 0: any */
    unsigned dtype;    /* CRYSTAL_INJECT_ANY_TYPE: any */
    uint64_t bytes_least, bytes_most;
    uint32_t from_least, from_most;
    enum crystal_inject_value value;
    double constant;
    char *path; /* FILE; owned */
};
#define CRYSTAL_INJECT_ANY_TYPE UINT32_MAX

struct crystal_inject_rules {
    struct crystal_inject_rule *v; /* owned */
    uint32_t count;
    uint32_t site_count; /* those that ask for a call site */
};

/* Adds the rule that text says. -EINVAL: err is a sentence about the word that is
 * wrong, without its place; -ENOMEM. */
int crystal_inject_rules_add(struct crystal_inject_rules *rules, const char *text,
                             struct crystal_error *err);
void crystal_inject_rules_fini(struct crystal_inject_rules *rules);
/* ret must be empty and may be half filled on failure: -ENOMEM. */
int crystal_inject_rules_copy(const struct crystal_inject_rules *from,
                              struct crystal_inject_rules *ret);
/* As YAML, which is read with crystal_inject_rules_add by item "inject[]"; nothing
 * where there are none. */
void crystal_inject_rules_print(const struct crystal_inject_rules *rules, FILE *out,
                                void (*print_quoted)(FILE *out, const char *text));

/* What a rank that does not run is to put in. */
struct crystal_inject_ask {
    const char *comm, *site;
    unsigned func, dtype;
    uint64_t bytes;
    uint32_t from;
};
/* The rule that decides, NULL: none. Borrowed. */
const struct crystal_inject_rule *
crystal_inject_rules_find(const struct crystal_inject_rules *rules,
                          const struct crystal_inject_ask *ask);
/* Fills `bytes` at data: CONSTANT and FILE only. -EINVAL where the file is too short.
 */
int crystal_inject_rule_fill(const struct crystal_inject_rule *rule, unsigned dtype,
                             void *data, uint64_t bytes, struct crystal_error *err);

#endif
