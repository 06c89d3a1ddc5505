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
