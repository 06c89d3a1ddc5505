/* See layout_dir.h. */
#include "config.h"

#include "commands/layout_dir.h"

#include "runtime/filehead.h"
#include "runtime/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct writing {
    char *out;
    size_t used, size; /* used = size: it did not fit */
};

static void put(struct writing *w, char c)
{
    if (w->used < w->size)
        w->out[w->used++] = c;
}

/* One component of a path. */
static void put_piece(struct writing *w, const char *piece)
{
    for (; *piece; piece++)
        put(w, *piece == '/' || *piece == '\n' ? '_' : *piece);
}

/* What %c stands for, NULL = nothing of ours. *is_known is cleared where the
 * environment of a job would say it. */
static const char *piece_of(char c, const char *job_name, int *is_known)
{
    const struct passwd *user;
    const char *text;

    switch (c) {
    case 'x':
        return job_name ? job_name : "job";
    case 'u':
        user = getpwuid(geteuid());
        return user ? user->pw_name : "user";
    case 'j':
    case 'A':
        text = c == 'A' ? getenv("SLURM_ARRAY_JOB_ID") : NULL;
        if (!text)
            text = getenv("SLURM_JOB_ID");
        break;
    case 'a':
        text = getenv("SLURM_ARRAY_TASK_ID");
        if (!text && getenv("SLURM_JOB_ID"))
            return "0"; /* of no array */
        break;
    default:
        return NULL;
    }
    *is_known &= text != NULL;
    return text ? text : "0";
}

int layout_dir(const char *template, const char *job_name, char *out, size_t out_bytes,
               int *ret_is_known, struct crystal_error *err)
{
    const char *task = getenv("SLURM_ARRAY_TASK_ID");
    struct writing w = {.out = out, .size = out_bytes};
    char cwd[PATH_MAX];

    *ret_is_known = 1;
    if (template[0] != '/') {
        if (!getcwd(cwd, sizeof cwd))
            return crystal_error_set(err, errno, "--crystal-job-dir: %s",
                                     strerror(errno));
        for (const char *c = cwd; *c; c++)
            put(&w, *c);
        put(&w, '/');
        if (strncmp(template, "./", 2) == 0)
            template += 2;
    }
    if (strstr(template, "%j") || strstr(template, "%a"))
        task = NULL;
    for (const char *c = template; *c; c++) {
        const char *piece = c[0] == '%' ? piece_of(c[1], job_name, ret_is_known) : NULL;

        if (piece) {
            put_piece(&w, piece);
            c++;
        } else {
            put(&w, *c);
        }
    }
    if (task) {
        put(&w, '.');
        put_piece(&w, task);
    }
    if (w.used == w.size)
        return crystal_error_set(err, ENAMETOOLONG, "--crystal-job-dir: path too long");
    out[w.used] = 0;
    return 0;
}

int layout_spill_dir(const char *template, const char *job_name, const char *job_dir,
                     char *out, size_t out_bytes, struct crystal_error *err)
{
    const char *name = strrchr(job_dir, '/');
    int is_known, code = layout_dir(template, job_name, out, out_bytes, &is_known, err);
    size_t used = code ? 0 : strlen(out);

    if (!code &&
        snprintf(out + used, out_bytes - used, "/%s-%016" PRIx64,
                 name ? name + 1 : job_dir,
                 crystal_hash(job_dir, strlen(job_dir))) >= (int)(out_bytes - used))
        code = -ENAMETOOLONG;
    if (code)
        return crystal_error_set(err, ENAMETOOLONG, "spill_dir: path too long");
    return crystal_utf8_is_text(out)
               ? 0
               : crystal_error_set(err, EILSEQ,
                                   "spill_dir: '%s' is not UTF-8, the only text that "
                                   "layout.yaml holds; give another",
                                   out);
}
