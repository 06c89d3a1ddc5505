/* See nodes.h. */
#include "config.h"

#include "spank/nodes.h"

#include "spank/ask.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_BYTES_MAX = 1 << 20 };

static bool is_among(const struct crystal_argv *nodes, const char *name, size_t bytes)
{
    for (int i = 0; i < nodes->count; i++)
        if (strlen(nodes->v[i]) == bytes && strncmp(nodes->v[i], name, bytes) == 0)
            return true;
    return false;
}

/* Adds the names of "n1,n2" that are not there yet and not among without. */
static void add_names(const char *names, const struct crystal_argv *without,
                      struct crystal_argv *out)
{
    while (names && *names) {
        size_t bytes = strcspn(names, ",");

        if (bytes && !is_among(out, names, bytes) && !is_among(without, names, bytes))
            crystal_argv_add(out, "%.*s", (int)bytes, names);
        names += bytes + (names[bytes] == ',');
    }
}

/* A node list, or a file of them where it has a slash, as -w, -x and -F take both. */
static int add_list(const char *option, const char *list, bool is_file,
                    const struct crystal_argv *without, struct crystal_argv *out,
                    struct crystal_error *err)
{
    char *text = NULL, *names;
    FILE *file;
    size_t got;

    if (is_file || strchr(list, '/')) {
        file = fopen(list, "re");
        text = file ? calloc(1, FILE_BYTES_MAX) : NULL;
        if (!text) {
            int code = errno;

            if (file)
                fclose(file);
            return crystal_error_set(err, code, "--%s: %s: %s", option, list,
                                     strerror(code));
        }
        got = fread(text, 1, FILE_BYTES_MAX - 1, file);
        fclose(file); /* read-only */
        while (got > 0 && strchr(" \t\r\n,", text[got - 1]))
            text[--got] = '\0';
        for (char *c = text; *c; c++)
            if (strchr(" \t\r\n", *c))
                *c = ',';
        list = text;
    }
    names = crystal_ask_hostnames(list);
    free(text);
    if (!names)
        return crystal_error_set(err, EINVAL, "--%s: '%.200s' names no nodes", option,
                                 list == text ? "the file" : list);
    add_names(names, without, out);
    free(names);
    return 0;
}

static int add_excluded(const struct crystal_srun_line *line, struct crystal_argv *out,
                        struct crystal_error *err)
{
    static const struct crystal_argv none;
    const char *list = crystal_srun_line_get(line, "exclude");

    return list ? add_list("exclude", list, false, &none, out, err) : 0;
}

/* Of --nodelist and --nodefile the last one counts: ours comes behind the user's. */
static int add_named(const struct crystal_srun_line *line,
                     const struct crystal_argv *without, struct crystal_argv *out,
                     struct crystal_error *err)
{
    bool is_file;
    const char *list =
        crystal_srun_line_get_last(line, "nodelist", "nodefile", &is_file);

    if (!list)
        return 0;
    return add_list(is_file ? "nodefile" : "nodelist", list, is_file, without, out,
                    err);
}

int crystal_nodes_named(const struct crystal_srun_line *line, struct crystal_argv *ret,
                        struct crystal_error *err)
{
    struct crystal_argv without = {0};
    int rc = add_excluded(line, &without, err);

    if (rc == 0)
        rc = add_named(line, &without, ret, err);
    crystal_argv_fini(&without);
    return rc;
}

char *crystal_nodes_join(const struct crystal_argv *nodes, uint32_t count)
{
    size_t bytes = 1, used = 0;
    char *text;

    for (uint32_t i = 0; i < count; i++)
        bytes += strlen(nodes->v[i]) + 1;
    text = malloc(bytes);
    if (!text)
        return NULL;
    text[0] = '\0';
    for (uint32_t i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? "," : "",
                                 nodes->v[i]);
    return text;
}

/* Every one of nodes is among the job's. */
static int check_members(const struct crystal_argv *nodes, const char *job_nodes,
                         struct crystal_error *err)
{
    static const struct crystal_argv none;
    struct crystal_argv all = {0};
    int rc = 0;

    add_names(job_nodes, &none, &all);
    for (int i = 0; i < nodes->count && rc == 0; i++)
        if (!is_among(&all, nodes->v[i], strlen(nodes->v[i])))
            rc = crystal_error_set(err, EINVAL,
                                   "node '%s' is none of the job's (%.200s); name one "
                                   "of these or none",
                                   nodes->v[i], job_nodes);
    crystal_argv_fini(&all);
    return rc;
}

int crystal_nodes_choose(const struct crystal_srun_line *line, const char *job_nodes,
                         uint32_t count, char **ret, struct crystal_error *err)
{
    struct crystal_argv without = {0}, nodes = {0};
    int rc = add_excluded(line, &without, err);

    if (rc == 0)
        rc = add_named(line, &without, &nodes, err);
    if (rc == 0)
        rc = check_members(&nodes, job_nodes, err);
    if (rc == 0) {
        add_names(job_nodes, &without, &nodes);
        if (nodes.failed || without.failed)
            rc = crystal_error_set(err, ENOMEM, "out of memory");
        else if ((uint32_t)nodes.count < count)
            rc = crystal_error_set(err, EINVAL,
                                   "--exclude leaves %d of the job's nodes, the "
                                   "sandbox needs %u; exclude fewer",
                                   nodes.count, count);
    }
    if (rc == 0 && !(*ret = crystal_nodes_join(&nodes, count)))
        rc = crystal_error_set(err, ENOMEM, "out of memory");
    crystal_argv_fini(&without);
    crystal_argv_fini(&nodes);
    return rc;
}
