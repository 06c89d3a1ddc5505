/* One of the copies of NVTX in a process, as far as tests use it: the places of its
 * functions, empty before a tool is loaded, and the way in which it loads one.
 */
#ifndef CRYSTAL_TESTS_NVTX_CLIENT_H
#define CRYSTAL_TESTS_NVTX_CLIENT_H

#include "capture/nvtx_abi.h"

#include <dlfcn.h>
#include <stdlib.h>

#define NVTX_CORE_COUNT  16
#define NVTX_CORE2_COUNT 16

static nvtx_function nvtx_core[NVTX_CORE_COUNT], nvtx_core2[NVTX_CORE2_COUNT];
/* Modules have so many functions; of older headers fewer. */
static unsigned nvtx_core2_count = NVTX_CORE2_COUNT;

static inline int nvtx_get_functions(int module, nvtx_function ***ret_places,
                                     unsigned *ret_count)
{
    static nvtx_function *core[NVTX_CORE_COUNT], *core2[NVTX_CORE2_COUNT];

    for (unsigned i = 1; i < NVTX_CORE_COUNT; i++)
        core[i] = &nvtx_core[i];
    for (unsigned i = 1; i < NVTX_CORE2_COUNT; i++)
        core2[i] = &nvtx_core2[i];
    *ret_places = module == NVTX_MODULE_CORE ? core : core2;
    *ret_count = module == NVTX_MODULE_CORE ? NVTX_CORE_COUNT : nvtx_core2_count;
    return module == NVTX_MODULE_CORE || module == NVTX_MODULE_CORE2;
}

static inline const void *nvtx_table_of(uint32_t table)
{
    static const struct nvtx_callbacks callbacks = {sizeof callbacks,
                                                    nvtx_get_functions};

    return table == NVTX_TABLE_CALLBACKS ? &callbacks : NULL;
}

/* As at the first call: 1 where a tool is there. */
static inline int nvtx_load(void)
{
    const char *path = getenv(NVTX_ENV_INJECTION);
    void *handle = path ? dlopen(path, RTLD_LAZY) : NULL;
    int (*begin)(nvtx_get_table *) = NULL;

    if (handle)
        *(void **)&begin = dlsym(handle, "InitializeInjectionNvtx2");
    return begin && begin(nvtx_table_of);
}

static inline int nvtx_push(const char *message)
{
    int (*push)(const char *) = (int (*)(const char *))nvtx_core[NVTX_RANGE_PUSH_A];

    return push ? push(message) : NVTX_NO_LEVELS;
}

#endif
