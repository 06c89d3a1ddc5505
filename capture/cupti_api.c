/* Finding CUPTI. See cupti_api.h. */
#include "config.h"

#include "capture/cupti_api.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

static void *open_first(const char *const *names, size_t count, int flags)
{
    void *handle = NULL;

    for (size_t i = 0; !handle && i < count; i++)
        handle = dlopen(names[i], RTLD_LAZY | flags);
    return handle;
}

#define FIND(handle, name)                              \
    do {                                                \
        void *function_ = dlsym(handle, #name);         \
                                                        \
        if (!function_)                                 \
            missing = #name;                            \
        memcpy(&ret->name, &function_, sizeof(void *)); \
    } while (0) /* dlsym's result is data to C */

int cupti_api_open(struct cupti_api *ret, struct crystal_error *err)
{
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12"};
    const char *missing = NULL;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    void *cupti = open_first(names, 2, RTLD_NOLOAD);

    if (!driver)
        return crystal_error_set(err, ENODEV, "libcuda.so.1 is not loaded");
    if (!cupti)
        cupti = open_first(names, 2, 0);
    if (!cupti)
        return crystal_error_set(err, ENOENT, "libcupti.so is not there");
    FIND(cupti, cuptiSubscribe);
    FIND(cupti, cuptiUnsubscribe);
    FIND(cupti, cuptiEnableCallback);
    FIND(cupti, cuptiActivityRegisterCallbacks);
    FIND(cupti, cuptiActivityEnable);
    FIND(cupti, cuptiActivityGetNextRecord);
    FIND(cupti, cuptiActivityGetNumDroppedRecords);
    FIND(cupti, cuptiActivityFlushAll);
    FIND(cupti, cuptiGetStreamIdEx);
    FIND(driver, cuDriverGetVersion);
    FIND(driver, cuCtxGetCurrent);
    return missing ? crystal_error_set(err, ENOENT, "%s is not there", missing) : 0;
}
