/* What crystal.yaml changes for one stage without spoiling the fingerprint: environment
 * and arguments of the program, a wrapper around it, where its output goes. Kept in
 * layout.yaml, so that a stage does the same by hand and under Slurm.
 *
 *   stage:
 *     plan:
 *       env:
 *         NAME: value
 *       args: [--profile, "two words"]   # or one text, split at blanks
 *       wrapper: nice -n 5
 *       log: log/plan.%r.log             # capture and plan; %r is the rank
 */
#ifndef CRYSTAL_STAGE_RULES_H
#define CRYSTAL_STAGE_RULES_H

#include <stdint.h>
#include <stdio.h>

enum { CRYSTAL_STAGE_COUNT = 3 }; /* capture, plan, emulate */
extern const char *const crystal_stage_names[CRYSTAL_STAGE_COUNT];

/* Strings that end with NULL; owned. v is NULL while there are none. */
struct crystal_words {
    char **v;
    uint32_t count;
};
/* 0 or -ENOMEM; word is copied. */
int crystal_words_add(struct crystal_words *words, const char *word);
/* Adds the words of text, which any bytes of apart part. 0 or -ENOMEM. */
int crystal_words_split(struct crystal_words *words, const char *text,
                        const char *apart);
void crystal_words_fini(struct crystal_words *words);

struct crystal_stage_rules {
    struct crystal_words env;     /* NAME=VALUE, added last */
    struct crystal_words args;    /* behind the program's own */
    struct crystal_words wrapper; /* in front of the program */
    char *log;                    /* NULL: log/STAGE.%r.log; owned */
};

/* Takes an item of a YAML file, for example key "stage.plan.args[]". 0; -ENOENT: no key
 * of ours; -EINVAL: the value is none; -ENOMEM. */
int crystal_stage_rules_set(struct crystal_stage_rules rules[CRYSTAL_STAGE_COUNT],
                            const char *key, const char *value);
/* The same as YAML, which crystal_stage_rules_set understands; nothing where there are
 * none. print_quoted writes a text in double quotes. */
void crystal_stage_rules_print(
    const struct crystal_stage_rules rules[CRYSTAL_STAGE_COUNT], FILE *out,
    void (*print_quoted)(FILE *out, const char *text));
/* 0 or -ENOMEM; ret must be empty and may be half filled on failure. */
int crystal_stage_rules_copy(const struct crystal_stage_rules from[CRYSTAL_STAGE_COUNT],
                             struct crystal_stage_rules ret[CRYSTAL_STAGE_COUNT]);
void crystal_stage_rules_fini(struct crystal_stage_rules rules[CRYSTAL_STAGE_COUNT]);

#endif
