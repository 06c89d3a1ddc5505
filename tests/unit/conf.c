/* crystal.yaml: units, defaults, and one sentence with its place for each fault. */
#include "config.h"

#include "runtime/conf.h"

#include "tests/check.h"
#include "tests/folders.h"

static struct crystal_error err;

static int read_text(const char *text, struct crystal_conf *conf)
{
    char path[] = "/tmp/crystal-conf-XXXXXX";
    int fd = mkstemp(path), code;

    memset(&err, 0, sizeof err);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        return -1;
    close(fd);
    code = crystal_conf_read(path, conf, &err);
    unlink(path);
    return code;
}

static void units(void)
{
    static const struct {
        const char *text;
        uint64_t want;
    } bandwidths[] = {{"10Gb/s", 1250000000},
                      {"400 Gb/s", 50000000000},
                      {"1.5GB/s", 1500000000},
                      {"1MiB/s", 1048576},
                      {"0", 0},
                      {"12500", 12500}},
      durations[] = {{"5us", 5000}, {"1.5ms", 1500000}, {"2s", 2000000000}, {"7", 7}};
    static const char *const bad[] = {"",   "x",   "5 parsecs", "-1",
                                      "1e", "inf", "0x",        "1GB"};
    uint64_t value;

    for (unsigned i = 0; i < 6; i++) {
        CHECK_EQ(crystal_bandwidth_parse(bandwidths[i].text, &value), 0);
        CHECK_EQ(value, bandwidths[i].want);
    }
    for (unsigned i = 0; i < 4; i++) {
        CHECK_EQ(crystal_duration_parse(durations[i].text, &value), 0);
        CHECK_EQ(value, durations[i].want);
    }
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK(crystal_bandwidth_parse(bad[i], &value) < 0);
}

static void values_over_defaults(void)
{
    struct crystal_conf conf;

    CHECK_EQ(read_text("wire: {bandwidth: 400Gb/s, latency: 3us}\nenabled: no\n"
                       "stage:\n  plan:\n    env: {A: 1}\n    args: -a  b\n"
                       "    log: \"/tmp/%r.log\"\n"
                       "  emulate:\n    env: {B: x y}\n    args: [c d, e]\n"
                       "    wrapper: nice -n 5\n",
                       &conf),
             0);
    CHECK_EQ(conf.wire_bytes_per_s, 50000000000);
    CHECK_EQ(conf.wire_latency_ns, 3000);
    CHECK_EQ(conf.enabled, 0);
    CHECK_EQ(conf.logical_ranks_max, 1048576);
    CHECK_EQ(conf.stage[0].env.count, 0);
    CHECK_EQ(conf.stage[1].env.count, 1);
    CHECK_STR(conf.stage[1].env.v[0], "A=1");
    CHECK_EQ(conf.stage[1].args.count, 2);
    CHECK_STR(conf.stage[1].args.v[1], "b");
    CHECK_STR(conf.stage[1].log, "/tmp/%r.log");
    CHECK_STR(conf.stage[2].env.v[0], "B=x y");
    CHECK_EQ(conf.stage[2].args.count, 2);
    CHECK_STR(conf.stage[2].args.v[0], "c d");
    CHECK_EQ(conf.stage[2].wrapper.count, 3);
    CHECK_STR(conf.stage[2].wrapper.v[2], "5");
    CHECK_STR(conf.job_dir, "./crystal.%x");
    crystal_conf_fini(&conf);
}

static void a_cluster(void)
{
    struct crystal_conf conf;

    CHECK_EQ(read_text("allow: {groups: [ml, \"two words\"], accounts: \"a, b\"}\n"
                       "limits: {sandbox_nodes: 4, job_dir_bytes: 1.5 GiB,\n"
                       "  pinned_bytes: 64GB}\n"
                       "spill_dir: /scratch/%u\nassistants: {max: 3, partition: cpus, "
                       "place: het}\n"
                       "port_range: 40000-40999\nlog: debug\n"
                       "capture: {iteration_range: \"step *\"}\n"
                       "request: {partition: gpu, cpus_per_task: 12, exclusive: yes,\n"
                       "  mem_per_node: 64G, comment: us}\n",
                       &conf),
             0);
    CHECK_EQ(conf.allow_groups.count, 3);
    CHECK_STR(conf.allow_groups.v[0], "ml");
    CHECK_EQ(conf.allow_accounts.count, 2);
    CHECK_STR(conf.allow_accounts.v[1], "b");
    CHECK_EQ(conf.allow_partitions.count, 0);
    CHECK_EQ(conf.sandbox_nodes_max, 4);
    CHECK_EQ(conf.assistants_max, 3);
    CHECK_EQ(conf.assistants_apart, 1);
    CHECK_STR(conf.assistants_partition, "cpus");
    CHECK_EQ(conf.job_dir_bytes_max, 3ULL << 29);
    CHECK_EQ(conf.pinned_bytes_max, 64000000000);
    CHECK_STR(conf.spill_dir, "/scratch/%u");
    CHECK_EQ(conf.nvlink_nodes, 1);
    CHECK_EQ(conf.port_first, 40000);
    CHECK_EQ(conf.port_last, 40999);
    CHECK_STR(conf.log, "debug");
    CHECK_STR(conf.iteration_range, "step *");
    CHECK_STR(conf.partition, "gpu");
    CHECK_STR(conf.qos, "");
    CHECK_EQ(conf.cpus_per_task, 12);
    CHECK_EQ(conf.exclusive, 1);
    CHECK_STR(conf.mem_per_node, "64G");
    CHECK_STR(conf.comment, "us");
    crystal_conf_fini(&conf);
}

/* As where all keys of a section are comments. */
static void empty_sections(void)
{
    struct crystal_conf conf;

    CHECK_EQ(read_text("limits:\nwire: {}\nallow: {groups: []}\ninject: []\n"
                       "stage:\n  plan:\n    env:\n    args: []\n  emulate:\n",
                       &conf),
             0);
    CHECK_EQ(conf.allow_groups.count, 0);
    CHECK_EQ(conf.logical_ranks_max, 1048576);
    crystal_conf_fini(&conf);
    CHECK_EQ(read_text("stage:\n", &conf), 0);
    crystal_conf_fini(&conf);
}

static void faults(void)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"wier: 1\n", ":1:7: unknown key 'wier'"},
        {"wire:\n  latency: 5m\n", ":2:12: wire.latency: '5m' is no duration"},
        {"wire:\n  bandwidth: fast\n", "'fast' is no bandwidth"},
        {"enabled: maybe\n", "'maybe' is no yes or no"},
        {"limits: {logical_ranks: 0}\n", "'0' is no count"},
        {"limits: {logical_ranks: 1.5}\n", "'1.5' is no count"},
        {"limits: {logical_ranks: \"\"}\n", "'' is no count"},
        {"limits: {job_dir_bytes: 3 parsecs}\n", "'3 parsecs' is no size"},
        {"port_range: 5\n", "'5' is no port range"},
        {"port_range: 9-8\n", "'9-8' is no port range"},
        {"port_range: 60000-70000\n", "'60000-70000' is no port range"},
        {"port_range: 0-10\n", "'0-10' is no port range"},
        {"assistants: {place: near}\n", "assistants.place: 'near' is no same or het"},
        {"assistants:\n  partition: cpu\n",
         ": assistants.partition: only nodes of their own component come from another "
         "partition; set assistants.place: het too, or leave it out"},
        {"assistants: {max: few}\n", "assistants.max: 'few' is no count"},
        {"assistants: {min: 2}\n", "unknown key 'assistants.min'"},
        {"nvlink: {nodes: 0}\n", "nvlink.nodes: '0' is no count"},
        {"limits: {pinned_bytes: much}\n", "'much' is no size"},
        {"log: loud\n", "'loud' is no log level"},
        {"request: {partition: [a]}\n", "unknown key 'request.partition[]'"},
        {"stage: {train: {env: {A: 1}}}\n", "unknown key 'stage.train.env.A'"},
        {"stage: {emulate: {log: a.%r}}\n", "unknown key 'stage.emulate.log'"},
        {"stage: {plan: {log: one}}\n",
         ":1:21: stage.plan.log: 'one' is no file name with %r for the rank"},
        {"stage: {plan: {env: {A: \"1\\n2\"}}}\n", "is no setting"},
        {"stage: {plan: {wrapper: {a: b}}}\n", "unknown key 'stage.plan.wrapper.a'"},
        {"inject:\n  - op=allreduce\n", ":2:5: inject: value= is missing"},
        {"inject:\n  - value=own\n  - ops=recv value=own\n",
         ":3:5: inject: 'ops' is none of comm=, op=, dtype=, bytes=, from=, site= and "
         "value="},
        {"inject: [op=send value=own]\n",
         ":1:10: inject: op: 'send' is no collective, and not recv"},
        {"inject: [dtype=float value=own]\n", "dtype: 'float' is no type of NCCL's"},
        {"inject: [bytes=9-8 value=own]\n", "bytes: '9-8' is no number A or range A-B"},
        {"inject: [from=99999999999 value=own]\n", "from: '99999999999' is no number"},
        {"inject: [value=own value=own]\n", "value= stands there twice"},
        {"inject: [\"value=constant:1x\"]\n",
         "'constant:1x' is none of own, replicate, constant:NUMBER and file:/PATH"},
        {"inject: [\"value=constant:inf\"]\n", "'constant:inf' is none of"},
        {"inject: [\"value=file:a\"]\n", "'file:a' is none of"},
        {"inject:\n  - {op: recv}\n", ":2:5:"},
        {"inject: value=own\n", ":1:9: unknown key 'inject'"},
        {"limits: {logical_ranks: []}\n",
         ":1:26: limits.logical_ranks: '' is no count"},
        {"wire: {latency: {}}\n", "wire.latency: '' is no duration"},
        {"wier: {}\n", "unknown key 'wier'"},
        {"stage: {train: }\n", "unknown key 'stage.train'"},
        {"stage: {plan: x}\n", "unknown key 'stage.plan'"},
        {"a: [\n", ":2:1:"},
    };
    struct crystal_conf conf;

    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK(read_text(cases[i].text, &conf) < 0);
        CHECK_HAS(crystal_error_text(&err), cases[i].want);
    }
}

static size_t read_source(const char *name, char *text, size_t text_bytes)
{
    const char *source = source_folder();
    char path[512];
    size_t got = 0;
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", source, name);
    file = fopen(path, "r");
    if (file) {
        got = fread(text, 1, text_bytes - 1, file);
        fclose(file);
    }
    text[got] = 0;
    return got;
}

/* The manual page names every key, in order, with its sentence. */
static void manual_page_is_the_table(void)
{
    static char text[65536];
    const char *at = text;

    CHECK(read_source("doc/man/crystal.yaml.5", text, sizeof text) > 0);
    for (const struct crystal_conf_key *key = crystal_conf_keys(); key->name && at;
         key++) {
        at = strstr(at, key->name);
        CHECK(at != NULL);
        at = at ? strstr(at, key->doc) : NULL;
        CHECK(at != NULL);
    }
}

/* The example file that is installed holds every key with its default and doc. */
static void example_file_is_the_table(void)
{
    static char text[65536];
    const char *source = source_folder();
    char path[512], line[1024];
    struct crystal_conf defaults, example;

    snprintf(path, sizeof path, "%s/etc/crystal.yaml", source);
    CHECK_EQ(crystal_conf_read(NULL, &defaults, &err), 0);
    CHECK_EQ(crystal_conf_read(path, &example, &err), 0);
    CHECK_EQ(example.enabled, defaults.enabled);
    CHECK_EQ(example.logical_ranks_max, defaults.logical_ranks_max);
    CHECK_EQ(example.wire_bytes_per_s, defaults.wire_bytes_per_s);
    CHECK_EQ(example.wire_latency_ns, defaults.wire_latency_ns);
    CHECK_EQ(example.plan_passes, defaults.plan_passes);
    CHECK_EQ(example.plan_tolerance_ppm, defaults.plan_tolerance_ppm);
    CHECK_EQ(defaults.plan_tolerance_ppm, 20000);
    CHECK_STR(example.job_dir, defaults.job_dir);
    CHECK_STR(example.spill_dir, defaults.spill_dir);
    CHECK_EQ(example.pinned_bytes_max, 0);
    CHECK_EQ(example.nvlink_nodes, defaults.nvlink_nodes);
    CHECK_STR(example.gres_per_node, defaults.gres_per_node);
    CHECK_EQ(example.sandbox_nodes_max, 0);
    CHECK_EQ(example.job_dir_bytes_max, 0);
    CHECK_EQ(example.port_first, 0);
    CHECK_EQ(example.allow_groups.count, 0);
    CHECK_STR(example.log, defaults.log);
    CHECK_STR(example.iteration_range, "");
    CHECK_STR(defaults.iteration_range, "");
    CHECK_STR(example.partition, "");
    CHECK_EQ(example.cpus_per_task, 0);
    CHECK_EQ(example.exclusive, 0);
    CHECK(read_source("etc/crystal.yaml", text, sizeof text) > 0);
    for (const struct crystal_conf_key *key = crystal_conf_keys(); key->name; key++) {
        snprintf(line, sizeof line, "# %s", key->doc);
        CHECK_HAS(text, line);
    }
    crystal_conf_fini(&defaults);
    crystal_conf_fini(&example);
}

int main(void)
{
    check_begin();
    CHECK_RUN(units);
    CHECK_RUN(values_over_defaults);
    CHECK_RUN(a_cluster);
    CHECK_RUN(empty_sections);
    CHECK_RUN(faults);
    CHECK_RUN(example_file_is_the_table);
    CHECK_RUN(manual_page_is_the_table);
    return check_end();
}
