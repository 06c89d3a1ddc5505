/* Finding CUDA's runtime. See cuda_api.h.
 *
 * Under Python the runtime may be loaded for one library only (RTLD_LOCAL); then it is
 * not behind us in the order of look-up, but still found by its name among what is
 * loaded.
 */
#include "config.h"

#include "capture/cuda_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static struct cuda_api api;
static pthread_mutex_t api_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int is_found; /* release: api is complete and stays as it is */

static void *loaded_runtime(void)
{
    static const char *const names[] = {"libcudart.so.13", "libcudart.so.12"};
    void *handle = NULL;

    for (size_t i = 0; !handle && i < sizeof names / sizeof names[0]; i++)
        handle = dlopen(names[i], RTLD_LAZY | RTLD_NOLOAD); /* stays: it is in use */
    return handle;
}

static void *find(void *handle, const char *name)
{
    void *function = dlsym(RTLD_NEXT, name);

    return function || !handle ? function : dlsym(handle, name);
}

/* dlsym's result is data to C; POSIX wants it converted like this. */
#define FIND(name)                                     \
    do {                                               \
        void *function_ = find(handle, #name);         \
                                                       \
        memcpy(&api.name, &function_, sizeof(void *)); \
    } while (0)

static void look(void)
{
    void *handle = loaded_runtime();

    api.is_whole = 1;
#define CUDA_CALL(name, proto, args) \
    FIND(name);                      \
    api.is_whole = api.is_whole && api.name;
#define CUDA_WORK(name, proto, args) FIND(name);
#include "capture/cuda_api.def"
#undef CUDA_CALL
#undef CUDA_WORK
    FIND(cudaLaunchKernelExC);
    FIND(cudaGetErrorString);
}

const struct cuda_api *cuda_api_get(void)
{
    if (atomic_load_explicit(&is_found, memory_order_acquire))
        return &api;
    (void)pthread_mutex_lock(&api_lock); /* a plain mutex */
    if (!atomic_load_explicit(&is_found, memory_order_relaxed)) {
        look();
        if (api.is_whole)
            atomic_store_explicit(&is_found, 1, memory_order_release);
    }
    (void)pthread_mutex_unlock(&api_lock);
    return &api;
}

int cuda_api_is_hidden(void)
{
    void *driver;

    if (cuda_api_get()->is_whole)
        return 0;
    driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver)
        (void)dlclose(driver); /* it stays loaded: it was before */
    return driver != NULL;
}
