/* See layout_request.h. */
#include "config.h"

#include "commands/layout_request.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void print_value(const char *key, const char *value)
{
    printf("%s=", key);
    for (const unsigned char *c = (const unsigned char *)value; *c; c++)
        if (*c < ' ' || *c > '~' || *c == '%')
            printf("%%%02X", *c);
        else
            putchar(*c);
    putchar('\n');
}

/* request.* of crystal.yaml as options of sbatch; gres_per_node has a key of its own.
 */
static void print_allocation(const struct crystal_conf *conf)
{
    const struct {
        const char *option, *value;
    } texts[] = {
        {"partition", conf->partition}, {"qos", conf->qos},
        {"licenses", conf->licenses},   {"constraint", conf->constraint},
        {"mem", conf->mem_per_node},    {"comment", conf->comment},
    };
    char line[4096];

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (texts[i].value[0]) {
            (void)snprintf(line, sizeof line, "--%s=%s", texts[i].option,
                           texts[i].value);
            print_value("allocation", line);
        }
    if (conf->cpus_per_task)
        printf("allocation=--cpus-per-task=%" PRIi64 "\n", conf->cpus_per_task);
    if (conf->exclusive)
        printf("allocation=--exclusive\n");
}

void layout_request(const struct crystal_layout *l, const struct crystal_conf *conf,
                    const char *dir, const char *run_stages,
                    const char *const notices[2])
{
    char *sandbox = crystal_ranks_format(l->sandbox, l->sandbox_count);
    char *live = crystal_ranks_format(l->live, l->live_count);
    const struct crystal_stage_rules *emulate = &l->stage[CRYSTAL_STAGE_COUNT - 1];

    printf("version=5\nnodes=%u\nassistants=%u\nntasks=%u\nntasks_per_node=%u\n",
           l->sandbox_count / l->ranks_per_node, l->assistant_count, l->sandbox_count,
           l->ranks_per_node);
    if (l->assistant_count && conf->assistants_apart) {
        printf("assistants_place=het\n");
        if (conf->assistants_partition[0])
            print_value("assistants_partition", conf->assistants_partition);
    }
    printf("logical_ranks=%u\nlogical_nodes=%u\nranks_per_node=%u\n", l->lrank_count,
           l->lrank_count / l->ranks_per_node, l->ranks_per_node);
    print_value("sandbox", sandbox ? sandbox : "");
    print_value("live", live ? live : "");
    printf("live_count=%u\niterations=%u\n", l->live_count, l->iterations);
    print_value("job_dir", dir);
    print_value("job_name", l->job_name);
    print_value("stages", run_stages);
    print_value("gres_per_node", conf->gres_per_node);
    printf("store_port=0\n");
    print_value("log", conf->log);
    print_allocation(conf);
    for (int i = 0; i < 2; i++)
        if (notices[i][0])
            print_value("notice", notices[i]);
    print_value("slurm_env", crystal_slurm_view_names[l->slurm_view]);
    for (uint32_t i = 0; i < emulate->wrapper.count; i++)
        print_value("wrapper", emulate->wrapper.v[i]);
    for (uint32_t i = 0; i < emulate->args.count; i++)
        print_value("argument", emulate->args.v[i]);
    free(sandbox);
    free(live);
}
