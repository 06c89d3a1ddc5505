/* The what-ifs of scrystal predict: from the text of an option, and in words. */
#ifndef CRYSTAL_PREDICT_WHAT_H
#define CRYSTAL_PREDICT_WHAT_H

#include "runtime/predict_run.h"

#include <stdio.h>

/* Sets what option name (without dashes) says. *ret_is_change becomes 1 where the
 * iteration is another one by it: by all but jitter. */
int predict_what_set(struct crystal_what_if *w, const char *name, const char *text,
                     int *ret_is_change, struct crystal_error *err);

/* Does the option add to what it was given before (slow ranks, dead ranks, slow links)?
 * Others replace it. */
int predict_what_adds(const char *name);

/* A line for each change. */
void predict_what_print(FILE *out, const struct crystal_predict *p,
                        const struct crystal_what_if *w);

#endif
