/* scrystal predict --sweep: one run for each combination of values. See
 * predict_sweep.h.
 */
#include "config.h"

#include "commands/predict_sweep.h"

#include "commands/predict_what.h"

#include "runtime/outfile.h"

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

static int sweep_run(struct predict_sweeps *a, const struct crystal_predict *p,
                     const struct crystal_what_if *others, uint64_t base, FILE *csv,
                     struct crystal_error *err)
{
    struct crystal_what_if what = *others;
    struct crystal_prediction *pr;
    int is_change;

    for (uint32_t i = 0; i < a->sweep_count; i++)
        if (predict_what_set(&what, a->sweeps[i].option,
                             a->sweeps[i].values[a->sweeps[i].at], &is_change, err))
            return -EINVAL;
    pr = crystal_predict_run(p, &what, 0, err);
    if (!pr)
        return -EINVAL;
    for (uint32_t i = 0; i < a->sweep_count; i++) {
        printf("%-16s ", a->sweeps[i].values[a->sweeps[i].at]);
        if (csv)
            fprintf(csv, "%s,", a->sweeps[i].values[a->sweeps[i].at]);
    }
    if (pr->stuck_count) {
        printf("%14s\n", "never");
        if (csv)
            fprintf(csv, ",\n");
    } else {
        printf("%14.3f %+9.2f\n", (double)pr->iteration_ns / 1e6,
               predict_percent_more(pr->iteration_ns, base));
        if (csv)
            fprintf(csv, "%" PRIu64 ",%.4f\n", pr->iteration_ns,
                    predict_percent_more(pr->iteration_ns, base));
    }
    crystal_prediction_destroy(pr);
    return 0;
}

/* The next combination; 0 behind the last one. */
static int sweep_next(struct predict_sweeps *a)
{
    for (uint32_t i = a->sweep_count; i-- > 0;) {
        if (++a->sweeps[i].at < a->sweeps[i].count)
            return 1;
        a->sweeps[i].at = 0;
    }
    return 0;
}

int predict_sweep_run(struct predict_sweeps *a, const struct crystal_predict *p,
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
    if (!code)
        printf("%14s %9s\n", "iteration ms", "%");
    if (!code && csv)
        fprintf(csv, "iteration_ns,percent\n");
    if (!code)
        do
            code = sweep_run(a, p, what, base, csv, err);
        while (!code && sweep_next(a));
    return csv ? crystal_outfile_close(&f, code, err) : code;
}

int predict_sweep_check(const struct predict_sweeps *a, const struct crystal_predict *p,
                        const struct crystal_what_if *what, struct crystal_error *err)
{
    int is_change, code = 0;

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
