/* The target's machine as NCCL sees it. See target.h. */
#include "config.h"

#include "runtime/target.h"

#include "runtime/env.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERSION_PARTS 3

int crystal_target_version_parse(const char *text, uint32_t *ret)
{
    unsigned part[VERSION_PARTS];
    int end = 0;

    if (strcmp(text, "newest") == 0) {
        *ret = 0;
        return 0;
    }
    if (sscanf(text, "%2u.%2u.%2u%n", &part[0], &part[1], &part[2], &end) !=
            VERSION_PARTS ||
        text[end] || part[0] < 2)
        return -EINVAL;
    *ret = part[0] * 10000 + part[1] * 100 + part[2]; /* NCCL_VERSION of nccl.h */
    return 0;
}

void crystal_target_print(const struct crystal_target *target, FILE *out,
                          void (*print_quoted)(FILE *out, const char *text))
{
    (void)fprintf(out,
                  "nccl:\n  version: %u\n  untested: %d\ngpu:\n  buffers: %d\n  "
                  "valueless: %d\nnic:\n  count: %u\n",
                  target->nccl_version, target->nccl_untested, target->gpu_buffers,
                  target->is_valueless, target->nic_count);
    if (target->topology) {
        (void)fprintf(out, "  topology: ");
        print_quoted(out, target->topology);
        (void)fputc('\n', out);
    }
}

/* A layout of an older version has none of these. */
static int number(const struct crystal_yaml_map *map, const char *key,
                  unsigned long least, unsigned long most, uint32_t *ret,
                  const char *path, struct crystal_error *err)
{
    const struct crystal_yaml_item *item = crystal_yaml_get(map, key);
    const char *text;
    unsigned long value;
    char *end;

    if (!item)
        return 0;
    text = item->value;
    errno = 0;
    value = strtoul(text, &end, 10);
    if (end == text || *end || errno || *text == '-' || value < least || value > most)
        return crystal_error_set(err, EINVAL,
                                 "%s: %s: '%s' is no number from %lu to %lu", path, key,
                                 text, least, most);
    *ret = (uint32_t)value;
    return 0;
}

int crystal_target_read(const struct crystal_yaml_map *map, const char *path,
                        struct crystal_target *ret, struct crystal_error *err)
{
    uint32_t version = 0, untested = 0, buffers = 0, valueless = 0, nics = 1;
    const struct crystal_yaml_item *topology = crystal_yaml_get(map, "nic.topology");
    char *copy = NULL;

    if (number(map, "nccl.version", 0, INT_MAX, &version, path, err) ||
        number(map, "nccl.untested", 0, 1, &untested, path, err) ||
        number(map, "gpu.buffers", 0, 1, &buffers, path, err) ||
        number(map, "gpu.valueless", 0, 1, &valueless, path, err) ||
        number(map, "nic.count", 1, CRYSTAL_NICS_MAX, &nics, path, err))
        return -EINVAL;
    if (topology && !(copy = strdup(topology->value)))
        return crystal_error_set(err, ENOMEM, "%s: out of memory", path);
    *ret = (struct crystal_target){.nccl_version = version,
                                   .nccl_untested = (int)untested,
                                   .gpu_buffers = (int)buffers,
                                   .is_valueless = (int)valueless,
                                   .nic_count = nics,
                                   .topology = copy};
    return 0;
}

void crystal_target_each_env(const struct crystal_target *target,
                             void (*add)(void *context, const char *assignment),
                             void *context)
{
    char text[PATH_MAX + 64];

    if (target->gpu_buffers) {
        add(context, CRYSTAL_ENV_BUFFERS "=gpu");
        add(context, "NCCL_NET_GDR_LEVEL=SYS"); /* our NICs are far from every GPU */
    }
    if (target->is_valueless)
        add(context, CRYSTAL_ENV_VALUES "=off");
    if (target->nic_count > 1) {
        (void)snprintf(text, sizeof text, CRYSTAL_ENV_NICS "=%u", target->nic_count);
        add(context, text);
    }
    if (target->topology) {
        (void)snprintf(text, sizeof text, "NCCL_TOPO_FILE=%s", target->topology);
        add(context, text);
    }
}

int crystal_target_copy(const struct crystal_target *target, struct crystal_target *ret)
{
    char *topology = target->topology ? strdup(target->topology) : NULL;

    if (target->topology && !topology)
        return -ENOMEM;
    *ret = *target;
    ret->topology = topology;
    return 0;
}

void crystal_target_fini(struct crystal_target *target)
{
    free(target->topology);
    *target = (struct crystal_target){0};
}
