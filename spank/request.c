/* Reads the answer of `scrystal layout --request`. */
#include "config.h"

#include "spank/request.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT_MAX = 1 << 24 }; /* ranks, nodes and ports alike */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Decodes %XX in place; a zero byte or a bad escape is an error. */
static int decode(char *text)
{
    char *out = text;

    for (const char *in = text; *in; in++) {
        int high, low;

        if (*in != '%') {
            *out++ = *in;
            continue;
        }
        high = hex_digit(in[1]);
        low = high < 0 ? -1 : hex_digit(in[2]);
        if (low < 0 || (high == 0 && low == 0))
            return -EPROTO;
        *out++ = (char)(high * 16 + low);
        in += 2;
    }
    *out = '\0';
    return 0;
}

/* Decimal digits up to limit; moves *text behind them. */
static int parse_number(const char **text, uint32_t limit, uint32_t *ret)
{
    uint32_t value = 0;
    const char *c = *text;

    for (; *c >= '0' && *c <= '9'; c++) {
        value = value * 10 + (uint32_t)(*c - '0');
        if (value > limit)
            return -ERANGE;
    }
    if (c == *text)
        return -EINVAL;
    *text = c;
    *ret = value;
    return 0;
}

static int parse_count(const char *text, uint32_t *ret)
{
    int rc = parse_number(&text, COUNT_MAX, ret);

    return rc == 0 && *text ? -EINVAL : rc;
}

/* One "A" or "A-B" and the comma behind it. */
static int next_range(const char **list, uint32_t *ret_first, uint32_t *ret_count)
{
    uint32_t first, last;

    if (parse_number(list, COUNT_MAX, &first) < 0)
        return -EINVAL;
    last = first;
    if (**list == '-') {
        ++*list;
        if (parse_number(list, COUNT_MAX, &last) < 0 || last < first)
            return -EINVAL;
    }
    if (**list == ',' && (*list)[1])
        ++*list;
    else if (**list)
        return -EINVAL;
    *ret_first = first;
    *ret_count = last - first + 1;
    return 0;
}

uint32_t crystal_rank_list_count(const char *list)
{
    uint32_t total = 0;

    while (*list) {
        uint32_t first, count;

        if (next_range(&list, &first, &count) < 0 || count > COUNT_MAX - total)
            return 0;
        total += count;
    }
    return total;
}

uint32_t crystal_rank_list_at(const char *list, uint32_t index)
{
    while (*list) {
        uint32_t first, count;

        if (next_range(&list, &first, &count) < 0)
            return UINT32_MAX;
        if (index < count)
            return first + index;
        index -= count;
    }
    return UINT32_MAX;
}

static int parse_stages(const char *text, unsigned *ret)
{
    static const struct {
        const char *name;
        unsigned bit;
    } stages[] = {
        {"capture", CRYSTAL_STAGE_BIT_CAPTURE},
        {"plan", CRYSTAL_STAGE_BIT_PLAN},
        {"emulate", CRYSTAL_STAGE_BIT_EMULATE},
    };
    unsigned set = 0;

    while (*text) {
        size_t bytes = strcspn(text, ","), i;

        for (i = 0; i < 3; i++)
            if (strlen(stages[i].name) == bytes &&
                strncmp(stages[i].name, text, bytes) == 0)
                break;
        if (i == 3)
            return -EINVAL;
        set |= stages[i].bit;
        text += bytes + (text[bytes] == ',');
    }
    *ret = set;
    return 0;
}

static int take_text(const char *value, char **ret)
{
    char *copy = strdup(value);

    if (!copy)
        return -ENOMEM;
    free(*ret);
    *ret = copy;
    return 0;
}

/* The list or the count of live ranks. */
static int parse_live(const char *value, uint32_t *ret)
{
    if (parse_count(value, ret) == 0 && *ret > 0)
        return 0;
    *ret = crystal_rank_list_count(value);
    return *ret ? 0 : -EINVAL;
}

static int set_key(struct crystal_request *r, const char *key, const char *value)
{
    static const struct {
        const char *key;
        size_t offset;
    } counts[] = {
        {"nodes", offsetof(struct crystal_request, node_count)},
        {"assistants", offsetof(struct crystal_request, assistant_count)},
        {"ntasks", offsetof(struct crystal_request, task_count)},
        {"ntasks_per_node", offsetof(struct crystal_request, tasks_per_node)},
        {"logical_ranks", offsetof(struct crystal_request, logical_rank_count)},
        {"logical_nodes", offsetof(struct crystal_request, logical_node_count)},
        {"ranks_per_node", offsetof(struct crystal_request, ranks_per_node)},
        {"iterations", offsetof(struct crystal_request, iterations)},
        {"store_port", offsetof(struct crystal_request, store_port)},
    };

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (strcmp(counts[i].key, key) == 0)
            return parse_count(value, (uint32_t *)((char *)r + counts[i].offset));
    if (strcmp(key, "live") == 0)
        return parse_live(value, &r->live_count);
    if (strcmp(key, "stages") == 0)
        return parse_stages(value, &r->stages);
    if (strcmp(key, "assistants_place") == 0) {
        r->is_apart = strcmp(value, "het") == 0;
        return r->is_apart || strcmp(value, "same") == 0 ? 0 : -EINVAL;
    }
    if (strcmp(key, "assistants_partition") == 0)
        return take_text(value, &r->assistant_partition);
    if (strcmp(key, "sandbox") == 0)
        return take_text(value, &r->sandbox);
    if (strcmp(key, "job_dir") == 0)
        return take_text(value, &r->job_dir);
    if (strcmp(key, "job_name") == 0)
        return take_text(value, &r->job_name);
    if (strcmp(key, "log") == 0)
        return take_text(value, &r->log);
    if (strcmp(key, "gres_per_node") == 0)
        return take_text(value, &r->gres_per_node);
    if (strcmp(key, "slurm_env") == 0)
        return take_text(value, &r->slurm_env);
    if (strcmp(key, "notice") == 0)
        crystal_argv_add(&r->notices, "%s", value);
    else if (strcmp(key, "allocation") == 0)
        crystal_argv_add(&r->allocation, "%s", value);
    else if (strcmp(key, "wrapper") == 0)
        crystal_argv_add(&r->wrapper, "%s", value);
    else if (strcmp(key, "argument") == 0)
        crystal_argv_add(&r->arguments, "%s", value);
    return 0;
}

/* What every later line of code relies on. */
static int check(struct crystal_request *r, uint32_t version, struct crystal_error *err)
{
    if (version != CRYSTAL_REQUEST_VERSION)
        return crystal_error_set(err, EPROTO,
                                 "scrystal layout answers in version %u, this plugin "
                                 "reads version %d; install both from one release",
                                 version, CRYSTAL_REQUEST_VERSION);
    if (!r->node_count || !r->task_count || !r->tasks_per_node ||
        !r->logical_rank_count || !r->logical_node_count || !r->ranks_per_node ||
        !r->sandbox || !r->job_dir || r->job_dir[0] != '/' || !r->job_name ||
        crystal_rank_list_count(r->sandbox) != r->task_count)
        return crystal_error_set(err, EPROTO,
                                 "scrystal layout's answer is incomplete; install "
                                 "plugin and command from one release");
    if (!r->gres_per_node && take_text("", &r->gres_per_node) < 0)
        return crystal_error_set(err, ENOMEM, "out of memory");
    if (r->notices.failed || r->allocation.failed || r->wrapper.failed ||
        r->arguments.failed)
        return crystal_error_set(err, ENOMEM, "out of memory");
    return 0;
}

int crystal_request_parse(const char *text, struct crystal_request *ret,
                          struct crystal_error *err)
{
    struct crystal_request r = {0};
    char *copy = strdup(text), *rest = copy, *line;
    uint32_t version = 0;
    int rc = copy ? 0 : crystal_error_set(err, ENOMEM, "out of memory");

    while (rc == 0 && (line = strsep(&rest, "\n"))) {
        char *value = strchr(line, '=');

        if (!*line)
            continue;
        if (value)
            *value++ = '\0';
        if (!value || decode(value) < 0 ||
            (strcmp(line, "version") == 0 ? parse_count(value, &version)
                                          : set_key(&r, line, value)) < 0)
            rc = crystal_error_set(err, EPROTO,
                                   "scrystal layout's answer is not understood at "
                                   "'%s'; install plugin and command from one release",
                                   line);
    }
    if (rc == 0)
        rc = check(&r, version, err);
    free(copy);
    if (rc < 0)
        crystal_request_fini(&r);
    else
        *ret = r;
    return rc;
}

void crystal_request_fini(struct crystal_request *request)
{
    free(request->sandbox);
    free(request->assistant_partition);
    free(request->job_dir);
    free(request->job_name);
    free(request->gres_per_node);
    free(request->log);
    crystal_argv_fini(&request->allocation);
    crystal_argv_fini(&request->notices);
    free(request->slurm_env);
    crystal_argv_fini(&request->wrapper);
    crystal_argv_fini(&request->arguments);
    memset(request, 0, sizeof *request);
}
