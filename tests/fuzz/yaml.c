/* The YAML reader takes any bytes. */
#include "config.h"

#include "runtime/yaml_map.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct crystal_yaml_map map;
    struct crystal_error err = {0};

    if (crystal_yaml_parse("fuzz", (const char *)data, size, &map, &err) == 0)
        crystal_yaml_fini(&map);
    return 0;
}
