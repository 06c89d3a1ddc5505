/* The target's sections of layout.yaml; apart from target.c, which needs no YAML. */
#include "config.h"

#include "runtime/target.h"

#include "runtime/yaml_map.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

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

/* NULL where it is not there. */
static int words(const struct crystal_yaml_map *map, const char *key, char **ret,
                 const char *path, struct crystal_error *err)
{
    const struct crystal_yaml_item *item = crystal_yaml_get(map, key);

    *ret = item ? strdup(item->value) : NULL;
    return item && !*ret ? crystal_error_set(err, ENOMEM, "%s: out of memory", path)
                         : 0;
}

int crystal_target_read(const struct crystal_yaml_map *map, const char *path,
                        struct crystal_target *ret, struct crystal_error *err)
{
    uint32_t version = 0, untested = 0, buffers = 0, valueless = 0, nics = 1;
    struct crystal_target target = {0};

    if (number(map, "nccl.version", 0, INT_MAX, &version, path, err) ||
        number(map, "nccl.untested", 0, 1, &untested, path, err) ||
        number(map, "gpu.buffers", 0, 1, &buffers, path, err) ||
        number(map, "gpu.valueless", 0, 1, &valueless, path, err) ||
        number(map, "nic.count", 1, CRYSTAL_NICS_MAX, &nics, path, err))
        return -EINVAL;
    target = (struct crystal_target){.nccl_version = version,
                                     .nccl_untested = (int)untested,
                                     .gpu_buffers = (int)buffers,
                                     .is_valueless = (int)valueless,
                                     .nic_count = nics};
    if (words(map, "nic.pci", &target.nic_pci, path, err) ||
        words(map, "nic.topology", &target.topology, path, err) ||
        words(map, "nic.backend", &target.backend, path, err)) {
        crystal_target_fini(&target);
        return -ENOMEM;
    }
    *ret = target;
    return 0;
}
