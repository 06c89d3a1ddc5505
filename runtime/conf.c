/* crystal.yaml through one key table. See conf.h. */
#include "config.h"

#include "runtime/conf.h"

#include "runtime/log.h"
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
    TYPE_SIZE,
    TYPE_PORTS,
    TYPE_LEVEL,
    TYPE_NAMES,
    TYPE_TEXT,
    TYPE_VERSION,
    TYPE_BUFFERS,
    TYPE_NO, /* a flag that is 1 for no */
    TYPE_NICS,
    TYPE_FLAG,
    TYPE_FILE,
    TYPE_PCI,
    TYPE_PLACE /* same or het */
};

static const char *const type_names[] = {"yes or no",
                                         "count",
                                         "bandwidth",
                                         "duration",
                                         "percentage",
                                         "size",
                                         "port range",
                                         "log level",
                                         "list of names",
                                         "text",
                                         "version",
                                         "host or gpu",
                                         "yes or no",
                                         "count from 1 to 32",
                                         "yes or no",
                                         "file",
                                         "list of PCI addresses",
                                         "same or het"};

/* An empty default leaves a number 0: there is no limit, nothing is asked for.
 * The default network is that of an ordinary 10 Gbit/s cluster: slow enough that a
 * machine without a GPU can play the sandbox's own traffic at that speed. */
static const struct key {
    const char *name;
    enum type type;
    size_t offset;
    const char *default_text;
    const char *doc;
} keys[] = {
#define FIELD(name) offsetof(struct crystal_conf, name)
    {"enabled", TYPE_BOOL, FIELD(enabled), "yes",
     "whether --crystal- options are accepted on this cluster"},
    {"allow.groups", TYPE_NAMES, FIELD(allow_groups), "",
     "Unix groups whose members may emulate; empty: everybody"},
    {"allow.accounts", TYPE_NAMES, FIELD(allow_accounts), "",
     "Slurm accounts whose jobs may emulate; empty: all"},
    {"allow.partitions", TYPE_NAMES, FIELD(allow_partitions), "",
     "partitions whose jobs may emulate; empty: all"},
    {"limits.logical_ranks", TYPE_COUNT, FIELD(logical_ranks_max), "1048576",
     "the largest --crystal-logical-ranks that is accepted"},
    {"limits.sandbox_nodes", TYPE_COUNT, FIELD(sandbox_nodes_max), "",
     "the most sandbox nodes that one job may have; empty: no limit"},
    {"limits.job_dir_bytes", TYPE_SIZE, FIELD(job_dir_bytes_max), "",
     "the most that a job directory may hold when a stage begins; empty: no limit"},
    {"limits.pinned_bytes", TYPE_SIZE, FIELD(pinned_bytes_max), "",
     "the most host memory that Crystal may lock for the ranks of a node; empty: no "
     "limit"},
    {"wire.bandwidth", TYPE_BANDWIDTH, FIELD(wire_bytes_per_s), "10Gb/s",
     "bandwidth of one NIC of the target, 0 for infinitely fast"},
    {"wire.latency", TYPE_DURATION, FIELD(wire_latency_ns), "50us",
     "time that a message travels between two NICs of the target"},
    {"capture.iteration_range", TYPE_TEXT, FIELD(iteration_range), "",
     "the NVTX range that every iteration begins with, as step or step*; empty: "
     "iterations are found by what repeats"},
    {"plan.passes", TYPE_COUNT, FIELD(plan_passes), "4",
     "how often plan measures at most: at once, then in the time that it has composed"},
    {"plan.tolerance", TYPE_PERCENT, FIELD(plan_tolerance_ppm), "2%",
     "plan ends when two passes compose iterations that differ by less"},
    {"nccl.version", TYPE_VERSION, FIELD(target.nccl_version), "newest",
     "NCCL's version in the sandbox, as 2.28.9; newest is the newest that was tested"},
    {"nccl.untested", TYPE_FLAG, FIELD(target.nccl_untested), "no",
     "whether versions are taken whose messages were read from NCCL's sources only"},
    {"gpu.buffers", TYPE_BUFFERS, FIELD(target.gpu_buffers), "host",
     "where NCCL's network buffers are; gpu as with GPU Direct"},
    {"gpu.contents", TYPE_NO, FIELD(target.is_valueless), "yes",
     "whether virtual ranks' floating-point messages have contents; no is for times"},
    {"nic.count", TYPE_NICS, FIELD(target.nic_count), "1",
     "NICs of a node of the target that NCCL sees, crystal0 and so on"},
    {"nic.pci", TYPE_PCI, offsetof(struct crystal_conf, target.nic_pci), "",
     "where these are in the sandbox's machine, as 0000:18:00.0,...; empty: far from "
     "it"},
    {"nic.topology", TYPE_FILE, FIELD(target.topology), "",
     "NCCL's topology file of the target's node, as NCCL_TOPO_FILE; empty: none"},
    {"nic.backend", TYPE_FILE, offsetof(struct crystal_conf, target.backend), "",
     "another NCCL net plugin for connections between sandbox ranks; empty: TCP"},
    {"nvlink.nodes", TYPE_COUNT, FIELD(nvlink_nodes), "1",
     "nodes of the target that one NVLink domain spans; more than 1 is not yet"},
    {"job_dir", TYPE_TEXT, FIELD(job_dir), "./crystal.%x",
     "where job directories go; %x is the job's name, %u the user, %j the job's "
     "number, "
     "%A and %a the array's and the task's"},
    {"spill_dir", TYPE_TEXT, FIELD(spill_dir), "",
     "where capture puts contents of messages, as job_dir, for all nodes of a job; "
     "empty: "
     "job_dir"},
    {"port_range", TYPE_PORTS, FIELD(port_first), "",
     "ports that coordinator, store and agents listen at, as 40000-40999; empty: any"},
    {"log", TYPE_LEVEL, FIELD(log), "warning",
     "what job steps tell at least: error, warning, info, debug or trace; CRYSTAL_LOG "
     "wins"},
    {"assistants.place", TYPE_PLACE, FIELD(assistants_apart), "same",
     "how assistant nodes are asked for: same, as nodes like the sandbox's; het, as a "
     "component of their own of a heterogeneous job, without GPUs"},
    {"assistants.partition", TYPE_TEXT, FIELD(assistants_partition), "",
     "the partition that the component of place: het comes from; empty: the job's"},
    {"assistants.max", TYPE_COUNT, FIELD(assistants_max), "",
     "the most assistant nodes that one job may have; empty: no limit"},
    {"request.partition", TYPE_TEXT, FIELD(partition), "",
     "partition of emulated jobs whose command line names none"},
    {"request.qos", TYPE_TEXT, FIELD(qos), "", "the same for --qos"},
    {"request.licenses", TYPE_TEXT, FIELD(licenses), "", "the same for --licenses"},
    {"request.constraint", TYPE_TEXT, FIELD(constraint), "",
     "the same for --constraint"},
    {"request.gres_per_node", TYPE_TEXT, FIELD(gres_per_node), "",
     "what is asked of Slurm for each sandbox node, for example gpu:8"},
    {"request.cpus_per_task", TYPE_COUNT, FIELD(cpus_per_task), "",
     "CPUs of each sandbox rank where the command line does not say"},
    {"request.mem_per_node", TYPE_TEXT, FIELD(mem_per_node), "",
     "memory of each sandbox node where the command line does not say, as 64G"},
    {"request.exclusive", TYPE_BOOL, FIELD(exclusive), "no",
     "whether emulated jobs get whole nodes for themselves"},
    {"request.comment", TYPE_TEXT, FIELD(comment), "",
     "stands in front of the comment that an emulated job gets"},
#undef FIELD
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

static int set_flag(const char *text, int yes_is_zero, int *ret)
{
    const int is_yes = strcmp(text, "yes") == 0 || strcmp(text, "true") == 0;

    if (!is_yes && strcmp(text, "no") != 0 && strcmp(text, "false") != 0)
        return -EINVAL;
    *ret = is_yes != yes_is_zero;
    return 0;
}

static int set_bool(int64_t *field, const char *text)
{
    if (strcmp(text, "yes") == 0 || strcmp(text, "true") == 0)
        *field = 1;
    else if (strcmp(text, "no") == 0 || strcmp(text, "false") == 0)
        *field = 0;
    else
        return -EINVAL;
    return 0;
}

static int set_count(int64_t *field, const char *text)
{
    static const struct crystal_unit units[] = {{"", 1}, {NULL, 0}};
    uint64_t value;

    if (strchr(text, '.') || crystal_scaled_parse(text, units, &value) || value == 0 ||
        value > INT64_MAX)
        return -EINVAL;
    *field = (int64_t)value;
    return 0;
}

static int set_nics(uint32_t *field, const char *text)
{
    int64_t value;

    if (set_count(&value, text) || value > CRYSTAL_NICS_MAX)
        return -EINVAL;
    *field = (uint32_t)value;
    return 0;
}

/* "40000-40999" into two fields, the second behind the first */
static int set_ports(int64_t *field, const char *text)
{
    unsigned first, last;
    int end = 0;

    if (sscanf(text, "%5u-%5u%n", &first, &last, &end) != 2 || text[end] ||
        !isdigit((unsigned char)*text) || first == 0 || last < first || last > 65535)
        return -EINVAL;
    field[0] = first;
    field[1] = last;
    return 0;
}

static int set_buffers(int *field, const char *text)
{
    if (strcmp(text, "host") != 0 && strcmp(text, "gpu") != 0)
        return -EINVAL;
    *field = *text == 'g';
    return 0;
}

static int set_text(char **field, const char *text)
{
    char *copy = strdup(text);

    if (!copy)
        return -ENOMEM;
    free(*field);
    *field = copy;
    return 0;
}

static int set_level(char **field, const char *text)
{
    enum crystal_log_level level;

    return crystal_log_level_parse(text, &level) ? -EINVAL : set_text(field, text);
}

static int set_percent(uint64_t *field, const char *text)
{
    static const struct crystal_unit units[] = {{"", 1e4}, {"%", 1e4}, {NULL, 0}};

    return crystal_scaled_parse(text, units, field);
}

static int set_value(struct crystal_conf *conf, const struct key *key, const char *text)
{
    void *field = (char *)conf + key->offset;

    switch (key->type) {
    case TYPE_BOOL:
        return set_bool(field, text);
    case TYPE_COUNT:
        return set_count(field, text);
    case TYPE_PERCENT:
        return set_percent(field, text);
    case TYPE_BANDWIDTH:
        return crystal_bandwidth_parse(text, field);
    case TYPE_DURATION:
        return crystal_duration_parse(text, field);
    case TYPE_VERSION:
        return crystal_target_version_parse(text, field);
    case TYPE_BUFFERS:
        return set_buffers(field, text);
    case TYPE_NO:
    case TYPE_FLAG:
        return set_flag(text, key->type == TYPE_NO, field);
    case TYPE_NICS:
        return set_nics(field, text);
    case TYPE_SIZE:
        return crystal_size_parse(text, field);
    case TYPE_PORTS:
        return set_ports(field, text);
    case TYPE_LEVEL:
        return set_level(field, text);
    case TYPE_NAMES:
        return crystal_words_split(field, text, " \t,");
    case TYPE_PCI:
        if (*text && crystal_target_pci_count(text) < 0)
            return -EINVAL;
        /* fallthrough */
    case TYPE_FILE:
    case TYPE_TEXT:
        return set_text(field, text);
    case TYPE_PLACE:
        *(int64_t *)field = strcmp(text, "het") == 0;
        return *(int64_t *)field || strcmp(text, "same") == 0 ? 0 : -EINVAL;
    }
    return -EINVAL;
}

static int set_default(struct crystal_conf *conf, const struct key *key)
{
    if (!key->default_text[0] && key->type != TYPE_TEXT)
        return 0;
    return set_value(conf, key, key->default_text);
}

/* The key of an item; each name of a list comes as an item "key[]". */
static int is_key(const struct key *key, const char *name)
{
    size_t bytes = strlen(key->name);

    return strncmp(key->name, name, bytes) == 0 &&
           (!name[bytes] ||
            (key->type == TYPE_NAMES && strcmp(name + bytes, "[]") == 0));
}

/* 1 for a section without keys, or inject without rules: all are comments, say. */
static int is_nothing(const struct crystal_yaml_item *item)
{
    const size_t bytes = strlen(item->key);
    int is_section = strcmp(item->key, "inject") == 0;

    for (size_t i = 0; i < KEY_COUNT; i++)
        is_section |=
            strncmp(keys[i].name, item->key, bytes) == 0 && keys[i].name[bytes] == '.';
    return is_section && !item->value[0];
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

    if (is_nothing(item))
        return 0;
    if (strcmp(item->key, "inject[]") == 0)
        return apply_inject(conf, item, path, err);
    code = crystal_stage_rules_set(conf->stage, item->key, item->value);

    if (code == -EINVAL)
        return crystal_error_set(
            err, EINVAL, "%s:%u:%u: %s: '%s' is no %s", path, item->line, item->column,
            item->key, item->value,
            strstr(item->key, ".log") ? "file name with %r for the rank" : "setting");
    for (size_t i = 0; code == -ENOENT && i < KEY_COUNT; i++)
        if (is_key(&keys[i], item->key)) {
            int is_empty = !item->value[0] && !keys[i].default_text[0];

            code = is_empty ? 0 : set_value(conf, &keys[i], item->value);
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
        if (set_default(&conf, &keys[i]))
            code = crystal_error_set(err, ENOMEM, "configuration: out of memory");
    if (!code && path)
        code = crystal_yaml_read(path, &map, err);
    for (size_t i = 0; i < map.item_count && !code; i++)
        code = apply(&conf, &map.items[i], path, err);
    crystal_yaml_fini(&map);
    if (!code && conf.assistants_partition[0] && !conf.assistants_apart)
        code = crystal_error_set(err, EINVAL,
                                 "%s: assistants.partition: only nodes of their own "
                                 "component come from another partition; set "
                                 "assistants.place: het too, or leave it out",
                                 path);
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
    for (size_t i = 0; i < KEY_COUNT; i++) {
        void *field = (char *)conf + keys[i].offset;

        if (keys[i].type == TYPE_TEXT || keys[i].type == TYPE_LEVEL)
            free(*(char **)field);
        else if (keys[i].type == TYPE_NAMES)
            crystal_words_fini(field);
    }
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
