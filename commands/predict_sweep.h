/* scrystal predict --sweep: what-ifs with several values, all combinations run. */
#ifndef CRYSTAL_PREDICT_SWEEP_H
#define CRYSTAL_PREDICT_SWEEP_H

#include "runtime/predict_run.h"

#define PREDICT_SWEEPS_MAX       8
#define PREDICT_SWEEP_VALUES_MAX 64
#define PREDICT_COMBINATIONS_MAX 65536U
#define PREDICT_THREADS_MAX      64U

struct predict_sweep {
    const char *option;
    char *values[PREDICT_SWEEP_VALUES_MAX]; /* of text */
    uint32_t count;
    char *text; /* owned */
};
struct predict_sweeps {
    struct predict_sweep sweeps[PREDICT_SWEEPS_MAX];
    uint32_t sweep_count;
    uint32_t threads; /* runs side by side, each with a timeline of its own */
};

/* text: OPTION=VALUE,VALUE... */
int predict_sweep_add(struct predict_sweeps *a, const char *text,
                      struct crystal_error *err);
/* Fits every value the graph, with what is changed besides? */
int predict_sweep_check(const struct predict_sweeps *a, const struct crystal_predict *p,
                        const struct crystal_what_if *what, struct crystal_error *err);
/* Prints the table, and writes it to csv_path where that is not NULL. */
int predict_sweep_run(const struct predict_sweeps *a, const struct crystal_predict *p,
                      const struct crystal_what_if *what, const char *csv_path,
                      struct crystal_error *err);
void predict_sweep_fini(struct predict_sweeps *a);

/* predict.c: the iteration without what is changed, in ns; 0 where it never ends. */
int predict_base_ns(const struct crystal_predict *p, const struct crystal_what_if *what,
                    uint64_t *ret_ns, struct crystal_error *err);
double predict_percent_more(uint64_t ns, uint64_t than_ns);

#endif
