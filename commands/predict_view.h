/* What scrystal predict shows of a prediction: tables, drawings. */
#ifndef CRYSTAL_PREDICT_VIEW_H
#define CRYSTAL_PREDICT_VIEW_H

#include "runtime/predict_run.h"

#include <stdio.h>

/* How all ranks spend the iteration, and each list's ranks in the mean. */
struct crystal_predict_totals {
    struct crystal_rank_stat *ranks; /* by lrank; owned */
    struct crystal_rank_stat *lists; /* mean of each representative's ranks; owned */
};
int crystal_predict_totals_init(struct crystal_predict_totals *t,
                                const struct crystal_prediction *pr, uint32_t threads,
                                struct crystal_error *err);
void crystal_predict_totals_fini(struct crystal_predict_totals *t);

void crystal_predict_print_totals(FILE *out, const struct crystal_prediction *pr,
                                  const struct crystal_predict_totals *t);
void crystal_predict_print_path(FILE *out, const struct crystal_prediction *pr,
                                const struct crystal_path *path);
/* One line for each list, one column for each hundredth of the iteration. */
void crystal_predict_draw_text(FILE *out, const struct crystal_prediction *pr,
                               const struct crystal_path *path);
/* what: what is changed, in words that need no quoting; empty: nothing. */
void crystal_predict_draw_svg(FILE *out, const struct crystal_prediction *pr,
                              const struct crystal_path *path,
                              const struct crystal_predict_totals *t, const char *what);

/* Lists share rows where there are many. */
#define CRYSTAL_PREDICT_ROWS_MAX 64U
uint32_t crystal_predict_row_count(const struct crystal_prediction *pr);
uint32_t crystal_predict_row_of(const struct crystal_prediction *pr, uint32_t lrank);

/* The dominant kind on the path for each of column_count equal times and each row, row
 * by row; -1: none. Caller frees; NULL where there is no memory. */
int8_t *crystal_predict_grid(const struct crystal_prediction *pr,
                             const struct crystal_path *path, uint32_t column_count);

#endif
