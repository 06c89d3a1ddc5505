/* scrystal predict --sweep: one run for each combination of values. See
 * predict_sweep.h.
 */
#include "config.h"

#include "commands/predict_sweep.h"

#include "commands/predict_what.h"

#include "runtime/outfile.h"
#include "runtime/parallel.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int predict_sweep_add(struct predict_sweeps *a, const char *text,
                      struct crystal_error *err)
{
    struct predict_sweep *s = &a->sweeps[a->sweep_count];
    struct crystal_what_if trial;
    char *at;
    int is_change;

    if (a->sweep_count == PREDICT_SWEEPS_MAX || !strchr(text, '='))
        return crystal_error_set(err, EINVAL,
                                 "--sweep=%s: at most %d of OPTION=VALUE,VALUE...",
                                 text, PREDICT_SWEEPS_MAX);
    s->text = strdup(text);
    if (!s->text)
        return crystal_error_set(err, ENOMEM, "out of memory");
    a->sweep_count++;
    s->option = s->text;
    at = strchr(s->text, '=');
    *at++ = 0;
    for (uint32_t i = 0; i + 1 < a->sweep_count; i++)
        if (strcmp(a->sweeps[i].option, s->option) == 0 &&
            !predict_what_adds(s->option))
            return crystal_error_set(err, EINVAL,
                                     "--sweep=%s: is given twice; name all values in "
                                     "one --sweep",
                                     s->option);
    for (char *rest = at, *value; (value = strsep(&rest, ","));) {
        if (s->count == PREDICT_SWEEP_VALUES_MAX)
            return crystal_error_set(err, EINVAL, "--sweep=%s: more than %d values",
                                     text, PREDICT_SWEEP_VALUES_MAX);
        crystal_what_if_init(&trial);
        if (predict_what_set(&trial, s->option, value, &is_change, err))
            return -EINVAL;
        s->values[s->count++] = value;
    }
    return 0;
}

/* Combinations are numbered, the last option's values fastest. */
static uint64_t combination_count(const struct predict_sweeps *a)
{
    uint64_t count = 1;

    for (uint32_t i = 0; i < a->sweep_count; i++)
        count *= a->sweeps[i].count; /* 64 values of 8 options fit */
    return count;
}

static const char *value_of(const struct predict_sweeps *a, uint64_t combination,
                            uint32_t sweep)
{
    for (uint32_t i = a->sweep_count; --i > sweep;)
        combination /= a->sweeps[i].count;
    return a->sweeps[sweep].values[combination % a->sweeps[sweep].count];
}

/* Some combinations that follow each other, run side by side. */
struct batch {
    const struct predict_sweeps *sweeps;
    const struct crystal_predict *p;
    const struct crystal_what_if *others;
    uint64_t first;
    struct outcome {
        uint64_t ns; /* 0: it never ends */
        struct crystal_error err;
    } outcomes[PREDICT_THREADS_MAX];
};

static int batch_run(void *context, uint32_t first, uint32_t end)
{
    struct batch *b = context;
    const struct predict_sweeps *a = b->sweeps;
    int code = 0;

    for (uint32_t k = first; !code && k < end; k++) {
        struct crystal_what_if what = *b->others;
        struct outcome *o = &b->outcomes[k];
        struct crystal_prediction *pr;
        int is_change;

        for (uint32_t i = 0; !code && i < a->sweep_count; i++)
            code = predict_what_set(&what, a->sweeps[i].option,
                                    value_of(a, b->first + k, i), &is_change, &o->err);
        pr = code ? NULL : crystal_predict_run(b->p, &what, 0, &o->err);
        if (!pr)
            return -EINVAL;
        o->ns = pr->stuck_count ? 0 : pr->iteration_ns;
        crystal_prediction_destroy(pr);
    }
    return code;
}

static void print_row(const struct predict_sweeps *a, uint64_t combination, uint64_t ns,
                      uint64_t base, FILE *csv)
{
    for (uint32_t i = 0; i < a->sweep_count; i++) {
        printf("%-16s ", value_of(a, combination, i));
        if (csv)
            fprintf(csv, "%s,", value_of(a, combination, i));
    }
    if (!ns) {
        printf("%14s\n", "never");
        if (csv)
            fprintf(csv, ",\n");
        return;
    }
    printf("%14.3f %+9.2f\n", (double)ns / 1e6, predict_percent_more(ns, base));
    if (csv)
        fprintf(csv, "%" PRIu64 ",%.4f\n", ns, predict_percent_more(ns, base));
}

/* Rows come in order, however many run side by side. */
static int rows(const struct predict_sweeps *a, const struct crystal_predict *p,
                const struct crystal_what_if *what, uint64_t base, FILE *csv,
                struct crystal_error *err)
{
    uint64_t count = combination_count(a);
    uint32_t threads =
        a->threads < PREDICT_THREADS_MAX ? a->threads : PREDICT_THREADS_MAX;
    struct batch b = {.sweeps = a, .p = p, .others = what};
    int code = 0;

    for (; !code && b.first < count; b.first += threads) {
        uint32_t size =
            count - b.first < threads ? (uint32_t)(count - b.first) : threads;

        code = crystal_parallel(threads, size, 1, batch_run, &b);
        for (uint32_t k = 0; code && k < size; k++)
            if (b.outcomes[k].err.code) {
                *err = b.outcomes[k].err;
                return code;
            }
        for (uint32_t k = 0; !code && k < size; k++)
            print_row(a, b.first + k, b.outcomes[k].ns, base, csv);
    }
    return code ? crystal_error_set(err, -code, "%s", strerror(-code)) : 0;
}

int predict_sweep_run(const struct predict_sweeps *a, const struct crystal_predict *p,
                      const struct crystal_what_if *what, const char *csv_path,
                      struct crystal_error *err)
{
    struct crystal_outfile f = {.stream = NULL};
    uint64_t base;
    FILE *csv;
    int code = 0;

    if (csv_path)
        code = crystal_outfile_open(&f, csv_path, CRYSTAL_OUTFILE_SHOWN, err);
    if (code)
        return code;
    csv = f.stream;
    code = predict_base_ns(p, what, &base, err);
    for (uint32_t i = 0; !code && i < a->sweep_count; i++) {
        printf("%-16s ", a->sweeps[i].option);
        if (csv)
            fprintf(csv, "%s,", a->sweeps[i].option);
    }
    if (!code) {
        printf("%14s %9s\n", "iteration ms", "%");
        if (csv)
            fprintf(csv, "iteration_ns,percent\n");
        code = rows(a, p, what, base, csv, err);
    }
    return csv ? crystal_outfile_close(&f, code, err) : code;
}

int predict_sweep_check(const struct predict_sweeps *a, const struct crystal_predict *p,
                        const struct crystal_what_if *what, struct crystal_error *err)
{
    int is_change, code = 0;

    if (combination_count(a) > PREDICT_COMBINATIONS_MAX)
        return crystal_error_set(
            err, EINVAL, "--sweep: %" PRIu64 " combinations of values, at most %u",
            combination_count(a), PREDICT_COMBINATIONS_MAX);
    for (uint32_t i = 0; !code && i < a->sweep_count; i++)
        for (uint32_t k = 0; !code && k < a->sweeps[i].count; k++) {
            struct crystal_what_if trial = *what;

            code = predict_what_set(&trial, a->sweeps[i].option, a->sweeps[i].values[k],
                                    &is_change, err);
            if (!code)
                code = crystal_what_if_check(&trial, p, err);
        }
    return code;
}

void predict_sweep_fini(struct predict_sweeps *a)
{
    for (uint32_t i = 0; i < a->sweep_count; i++)
        free(a->sweeps[i].text);
}
