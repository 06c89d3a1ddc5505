/* See partition.h. */
#include "config.h"

#include "spank/partition.h"

#include "spank/ask.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "gpu:8", "gpu:h100:8(S:0-1)", several joined by commas: all GPUs of a node. */
static uint32_t count_gpus(const char *gres)
{
    uint32_t total = 0;

    while (*gres) {
        size_t bytes = strcspn(gres, ",("), colon = bytes;

        while (colon > 0 && gres[colon - 1] != ':')
            colon--;
        if (strncmp(gres, "gpu:", 4) == 0 && colon > 0) {
            unsigned long count = strtoul(gres + colon, NULL, 10);

            if (count <= 4096)
                total += (uint32_t)count;
        }
        gres += bytes;
        if (*gres == '(')
            gres += strcspn(gres, ")");
        gres += strcspn(gres, ",");
        gres += *gres == ',';
    }
    return total;
}

/* "16+" -> 16; 0 = no number */
static uint32_t leading_number(const char *text)
{
    unsigned long value = text ? strtoul(text, NULL, 10) : 0;

    return value <= UINT32_MAX ? (uint32_t)value : 0;
}

/* "1-4", or "4" where it is both; "1-infinite" -> 0 */
static uint32_t most_nodes(const char *size)
{
    const char *dash = size ? strchr(size, '-') : NULL;

    return leading_number(dash ? dash + 1 : size);
}

static void more(uint32_t *most, uint32_t value)
{
    *most = value > *most ? value : *most;
}

/* "main*|1-infinite|16|4|gpu:8(S:0-1)": a kind of nodes of one partition. */
static void take_line(char *line, const char *wanted, struct crystal_partition *ret)
{
    char *rest = line, *name = strsep(&rest, "|"), *size = strsep(&rest, "|");
    const char *cpus = strsep(&rest, "|"), *nodes = strsep(&rest, "|");
    size_t bytes = strlen(name);
    bool is_default = bytes > 0 && name[bytes - 1] == '*';

    if (is_default)
        name[bytes - 1] = '\0';
    if (!rest || (wanted ? strcmp(name, wanted) != 0 : !is_default))
        return;
    if (!ret->name)
        ret->name = strdup(name);
    ret->min_nodes = leading_number(size);
    ret->max_nodes = most_nodes(size);
    ret->node_count += leading_number(nodes);
    more(&ret->cpus_per_node, leading_number(cpus));
    more(&ret->gpus_per_node, count_gpus(rest));
}

void crystal_partition_ask(const char *name, const char *cluster,
                           struct crystal_partition *ret)
{
    static const char *const words[] = {"--noheader", "--format=%P|%s|%c|%D|%G", NULL};
    char *text, *rest, *line;

    memset(ret, 0, sizeof *ret);
    text = rest = crystal_ask_slurm("sinfo", cluster, words);
    while ((line = strsep(&rest, "\n")))
        take_line(line, name, ret);
    free(text);
}

uint32_t crystal_partition_ask_total(const char *name, const char *cluster)
{
    static const char field[] = " TotalNodes=";
    const char *const words[] = {"--oneliner", "show", "partition", name, NULL};
    char *text = crystal_ask_slurm("scontrol", cluster, words), *found;
    uint32_t total;

    found = text ? strstr(text, field) : NULL;
    total = found ? leading_number(found + strlen(field)) : 0;
    free(text);
    return total;
}

void crystal_partition_fini(struct crystal_partition *partition)
{
    free(partition->name);
    memset(partition, 0, sizeof *partition);
}

const char *crystal_partition_from_environment(void)
{
    static const char *const names[] = {"SLURM_PARTITION", "SBATCH_PARTITION",
                                        "SALLOC_PARTITION"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (getenv(names[i]))
            return getenv(names[i]);
    return NULL;
}
