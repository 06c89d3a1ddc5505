/* crystal.yaml through one key table. See conf.h. */
#include "config.h"

#include "runtime/conf.h"

#include "runtime/yaml_map.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum type {
    TYPE_BOOL,
    TYPE_COUNT,
    TYPE_BANDWIDTH,
    TYPE_DURATION,
    TYPE_PERCENT,
    TYPE_TEXT,
    TYPE_VERSION,
    TYPE_BUFFERS,
    TYPE_NO, /* a flag that is 1 for no */
    TYPE_NICS,
    TYPE_FLAG,
    TYPE_FILE
};

static const char *const type_names[] = {
    "yes or no", "count",   "bandwidth",   "duration",  "percentage",
    "text",      "version", "host or gpu", "yes or no", "count from 1 to 32",
    "yes or no", "file"};

/* The default network is that of an ordinary 10 Gbit/s cluster: slow enough that a
 * machine without a GPU can play the sandbox's own traffic at that speed. */
static const struct key {
    const char *name;
    enum type type;
    size_t offset;
    const char *default_text;
    const char *doc;
} keys[] = {
    {"enabled", TYPE_BOOL, offsetof(struct crystal_conf, enabled), "yes",
     "whether --crystal- options are accepted on this cluster"},
    {"limits.logical_ranks", TYPE_COUNT,
     offsetof(struct crystal_conf, logical_ranks_max), "1048576",
     "the largest --crystal-logical-ranks that is accepted"},
    {"wire.bandwidth", TYPE_BANDWIDTH, offsetof(struct crystal_conf, wire_bytes_per_s),
     "10Gb/s", "bandwidth of one NIC of the target, 0 for infinitely fast"},
    {"wire.latency", TYPE_DURATION, offsetof(struct crystal_conf, wire_latency_ns),
     "50us", "time that a message travels between two NICs of the target"},
    {"plan.passes", TYPE_COUNT, offsetof(struct crystal_conf, plan_passes), "3",
     "how often plan measures at most: at once, then in the time that it has composed"},
    {"plan.tolerance", TYPE_PERCENT, offsetof(struct crystal_conf, plan_tolerance_ppm),
     "2%", "plan ends when two passes compose iterations that differ by less"},
    {"nccl.version", TYPE_VERSION, offsetof(struct crystal_conf, target.nccl_version),
     "newest",
     "NCCL's version in the sandbox, as 2.28.9; newest is the newest that was tested"},
    {"nccl.untested", TYPE_FLAG, offsetof(struct crystal_conf, target.nccl_untested),
     "no",
     "whether versions are taken whose messages were read from NCCL's sources only"},
    {"gpu.buffers", TYPE_BUFFERS, offsetof(struct crystal_conf, target.gpu_buffers),
     "host", "where NCCL's network buffers are; gpu as with GPU Direct"},
    {"gpu.contents", TYPE_NO, offsetof(struct crystal_conf, target.is_valueless), "yes",
     "whether virtual ranks' floating-point messages have contents; no is for times"},
    {"nic.count", TYPE_NICS, offsetof(struct crystal_conf, target.nic_count), "1",
     "NICs of a node of the target that NCCL sees, crystal0 and so on"},
    {"nic.topology", TYPE_FILE, offsetof(struct crystal_conf, target.topology), "",
     "NCCL's topology file of the target's node, as NCCL_TOPO_FILE; empty: none"},
    {"job_dir", TYPE_TEXT, offsetof(struct crystal_conf, job_dir), "./crystal.%x",
     "where job directories go; %x is the job's name, %u the user"},
    {"request.gres_per_node", TYPE_TEXT, offsetof(struct crystal_conf, gres_per_node),
     "", "what is asked of Slurm for each sandbox node, for example gpu:8"},
};
#define KEY_COUNT (sizeof keys / sizeof keys[0])

/* Keys that others read: runtime/stage_rules.c and inject_rules.c. */
static const struct crystal_conf_key stage_keys[] = {
    {"stage.{capture,plan,emulate}.env.NAME", "text", "",
     "environment variable NAME of the program in that stage only"},
    {"stage.{capture,plan,emulate}.args", "words", "",
     "more arguments of the program in that stage, a list or a text split at blanks"},
    {"stage.{capture,plan,emulate}.wrapper", "words", "",
     "command that runs the program in that stage, a list or a text split at blanks"},
    {"stage.{capture,plan}.log", "file name", "",
     "where a rank's output goes, %r is the rank (default log/STAGE.%r.log)"},
    {"inject", "list of rules", "",
     "what absent ranks put in while ranks of --crystal-live=LIST are captured"},
};
#define STAGE_KEY_COUNT (sizeof stage_keys / sizeof stage_keys[0])

static int number_prefix(const char *text, double *ret, const char **rest)
{
    char *end;

    if (!isdigit((unsigned char)*text))
        return -EINVAL;
    *ret = strtod(text, &end);
    if (end == text || *ret < 0 || *ret > 1e18)
        return -EINVAL;
    while (*end == ' ')
        end++;
    *rest = end;
    return 0;
}

struct unit {
    const char *name;
    double factor;
};

static int scaled(const char *text, const struct unit *units, uint64_t *ret)
{
    const char *rest;
    double value;

    if (number_prefix(text, &value, &rest))
        return -EINVAL;
    for (; units->name; units++)
        if (strcmp(rest, units->name) == 0) {
            value *= units->factor;
            if (value > 1.8e19)
                return -EINVAL;
            *ret = (uint64_t)(value + 0.5);
            return 0;
        }
    return -EINVAL;
}

int crystal_bandwidth_parse(const char *text, uint64_t *ret_bytes_per_s)
{
    static const struct unit units[] = {
        {"", 1},           {"B/s", 1},        {"kB/s", 1e3},      {"MB/s", 1e6},
        {"GB/s", 1e9},     {"TB/s", 1e12},    {"MiB/s", 1 << 20}, {"GiB/s", 1 << 30},
        {"Mb/s", 1e6 / 8}, {"Gb/s", 1e9 / 8}, {"Tb/s", 1e12 / 8}, {NULL, 0}};

    return scaled(text, units, ret_bytes_per_s);
}

int crystal_duration_parse(const char *text, uint64_t *ret_ns)
{
    static const struct unit units[] = {{"", 1},     {"ns", 1},  {"us", 1e3},
                                        {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};

    return scaled(text, units, ret_ns);
}

static int set_flag(const char *text, int yes_is_zero, int *ret)
{
    const int is_yes = strcmp(text, "yes") == 0 || strcmp(text, "true") == 0;

    if (!is_yes && strcmp(text, "no") != 0 && strcmp(text, "false") != 0)
        return -EINVAL;
    *ret = is_yes != yes_is_zero;
    return 0;
}

static int set_nics(const char *text, uint32_t *ret)
{
    static const struct unit units[] = {{"", 1}, {NULL, 0}};
    uint64_t value;

    if (strchr(text, '.') || scaled(text, units, &value) || value == 0 ||
        value > CRYSTAL_NICS_MAX)
        return -EINVAL;
    *ret = (uint32_t)value;
    return 0;
}

static int set_value(struct crystal_conf *conf, const struct key *key, const char *text)
{
    void *field = (char *)conf + key->offset;

    switch (key->type) {
    case TYPE_BOOL:
        if (strcmp(text, "yes") == 0 || strcmp(text, "true") == 0)
            *(int64_t *)field = 1;
        else if (strcmp(text, "no") == 0 || strcmp(text, "false") == 0)
            *(int64_t *)field = 0;
        else
            return -EINVAL;
        return 0;
    case TYPE_COUNT: {
        static const struct unit units[] = {{"", 1}, {NULL, 0}};
        uint64_t value;

        if (strchr(text, '.') || scaled(text, units, &value) || value == 0 ||
            value > INT64_MAX)
            return -EINVAL;
        *(int64_t *)field = (int64_t)value;
        return 0;
    }
    case TYPE_PERCENT: {
        static const struct unit units[] = {{"", 1e4}, {"%", 1e4}, {NULL, 0}};

        return scaled(text, units, field);
    }
    case TYPE_BANDWIDTH:
        return crystal_bandwidth_parse(text, field);
    case TYPE_DURATION:
        return crystal_duration_parse(text, field);
    case TYPE_VERSION:
        return crystal_target_version_parse(text, field);
    case TYPE_BUFFERS:
        if (strcmp(text, "host") != 0 && strcmp(text, "gpu") != 0)
            return -EINVAL;
        *(int *)field = *text == 'g';
        return 0;
    case TYPE_NO:
    case TYPE_FLAG:
        return set_flag(text, key->type == TYPE_NO, field);
    case TYPE_NICS:
        return set_nics(text, field);
    case TYPE_FILE:
        if (!*text) {
            free(*(char **)field);
            *(char **)field = NULL;
            return 0;
        }
        /* fallthrough */
    case TYPE_TEXT: {
        char *copy = strdup(text);

        if (!copy)
            return -ENOMEM;
        free(*(char **)field);
        *(char **)field = copy;
        return 0;
    }
    }
    return -EINVAL;
}

static int apply_inject(struct crystal_conf *conf, const struct crystal_yaml_item *item,
                        const char *path, struct crystal_error *err)
{
    int code = crystal_inject_rules_add(&conf->inject, item->value, err);

    if (code)
        crystal_error_prefix(err, "%s:%u:%u: inject", path, item->line, item->column);
    return code;
}

static int apply(struct crystal_conf *conf, const struct crystal_yaml_item *item,
                 const char *path, struct crystal_error *err)
{
    int code;

    if (strcmp(item->key, "inject[]") == 0)
        return apply_inject(conf, item, path, err);
    code = crystal_stage_rules_set(conf->stage, item->key, item->value);

    if (code == -EINVAL)
        return crystal_error_set(
            err, EINVAL, "%s:%u:%u: %s: '%s' is no %s", path, item->line, item->column,
            item->key, item->value,
            strstr(item->key, ".log") ? "file name with %r for the rank" : "setting");
    for (size_t i = 0; code == -ENOENT && i < KEY_COUNT; i++)
        if (strcmp(keys[i].name, item->key) == 0) {
            code = set_value(conf, &keys[i], item->value);
            if (code == -EINVAL)
                return crystal_error_set(err, EINVAL, "%s:%u:%u: %s: '%s' is no %s",
                                         path, item->line, item->column, item->key,
                                         item->value, type_names[keys[i].type]);
        }
    if (code == -ENOENT)
        return crystal_error_set(err, EINVAL,
                                 "%s:%u:%u: unknown key '%s'; "
                                 "scrystal doctor --keys lists them",
                                 path, item->line, item->column, item->key);
    if (code)
        return crystal_error_set(err, -code, "%s: out of memory", path);
    return 0;
}

int crystal_conf_read(const char *path, struct crystal_conf *ret,
                      struct crystal_error *err)
{
    struct crystal_conf conf = {0};
    struct crystal_yaml_map map = {0};
    int code = 0;

    for (size_t i = 0; i < KEY_COUNT && !code; i++)
        if (set_value(&conf, &keys[i], keys[i].default_text))
            code = crystal_error_set(err, ENOMEM, "configuration: out of memory");
    if (!code && path)
        code = crystal_yaml_read(path, &map, err);
    for (size_t i = 0; i < map.item_count && !code; i++)
        code = apply(&conf, &map.items[i], path, err);
    crystal_yaml_fini(&map);
    if (code) {
        crystal_conf_fini(&conf);
        return code;
    }
    *ret = conf;
    return 0;
}

void crystal_conf_fini(struct crystal_conf *conf)
{
    crystal_stage_rules_fini(conf->stage);
    crystal_inject_rules_fini(&conf->inject);
    free(conf->job_dir);
    free(conf->gres_per_node);
    crystal_target_fini(&conf->target);
    memset(conf, 0, sizeof *conf);
}

const struct crystal_conf_key *crystal_conf_keys(void)
{
    static struct crystal_conf_key rows[KEY_COUNT + STAGE_KEY_COUNT + 1];

    for (size_t i = 0; i < KEY_COUNT; i++)
        rows[i] = (struct crystal_conf_key){keys[i].name, type_names[keys[i].type],
                                            keys[i].default_text, keys[i].doc};
    memcpy(rows + KEY_COUNT, stage_keys, sizeof stage_keys);
    return rows;
}
