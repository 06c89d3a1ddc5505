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

int crystal_target_pci_count(const char *text)
{
    int count = 0, end = 0;
    unsigned part[4];

    do {
        if (sscanf(text, "%4x:%2x:%2x.%1x%n", &part[0], &part[1], &part[2], &part[3],
                   &end) != 4 ||
            (text[end] && text[end] != ',') || (text[end] == ',' && !text[end + 1]))
            return -EINVAL;
        text += end + (text[end] == ',');
        count++;
    } while (*text);
    return count;
}

static void print_text(FILE *out, const char *key, const char *text,
                       void (*print_quoted)(FILE *out, const char *text))
{
    if (!text)
        return;
    (void)fprintf(out, "  %s: ", key);
    print_quoted(out, text);
    (void)fputc('\n', out);
}

void crystal_target_print(const struct crystal_target *target, FILE *out,
                          void (*print_quoted)(FILE *out, const char *text))
{
    (void)fprintf(out,
                  "nccl:\n  version: %u\n  untested: %d\ngpu:\n  buffers: %d\n  "
                  "valueless: %d\nnic:\n  count: %u\n",
                  target->nccl_version, target->nccl_untested, target->gpu_buffers,
                  target->is_valueless, target->nic_count);
    print_text(out, "pci", target->nic_pci, print_quoted);
    print_text(out, "topology", target->topology, print_quoted);
    print_text(out, "backend", target->backend, print_quoted);
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
    if (target->nic_pci) {
        (void)snprintf(text, sizeof text, CRYSTAL_ENV_NIC_PCI "=%s", target->nic_pci);
        add(context, text);
    }
    if (target->topology) {
        (void)snprintf(text, sizeof text, "NCCL_TOPO_FILE=%s", target->topology);
        add(context, text);
    }
    if (target->backend) {
        (void)snprintf(text, sizeof text, CRYSTAL_ENV_NET_BACKEND "=%s",
                       target->backend);
        add(context, text);
    }
}

int crystal_target_copy(const struct crystal_target *target, struct crystal_target *ret)
{
    struct crystal_target copy = *target;

    copy.nic_pci = target->nic_pci ? strdup(target->nic_pci) : NULL;
    copy.topology = target->topology ? strdup(target->topology) : NULL;
    copy.backend = target->backend ? strdup(target->backend) : NULL;
    if ((target->nic_pci && !copy.nic_pci) || (target->topology && !copy.topology) ||
        (target->backend && !copy.backend)) {
        crystal_target_fini(&copy);
        return -ENOMEM;
    }
    *ret = copy;
    return 0;
}

void crystal_target_fini(struct crystal_target *target)
{
    free(target->nic_pci);
    free(target->topology);
    free(target->backend);
    *target = (struct crystal_target){0};
}
