/* Loading the plugins, and how to wait for them. */
#include "config.h"

#include "replay/hostccl/plugin.h"

#include "replay/hostccl/engine.h"
#include "replay/net_wait.h"
#include "runtime/log.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SLEEP_NS   50000U  /* between polls of a plugin that cannot wait */
#define NO_WAKE_NS 200000U /* longest wait where nothing can end it */

static struct {
    pthread_once_t once;
    struct hostccl_plugin plugin;
    struct crystal_error err; /* why there is none */
    crystal_net_wait_fn wait;
    crystal_net_wake_fn wake;
    crystal_net_more_fn more;
    atomic_bool is_loaded;
} loaded = {.once = PTHREAD_ONCE_INIT};

/* log levels of NCCL: 1 version, 2 warning, 3 info, 4 abort, 5 trace */
void hostccl_plugin_log(int level, unsigned long flags, const char *file, int line,
                        const char *format, ...)
{
    char text[1024];
    va_list args;

    (void)flags;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args); /* cut where too long */
    va_end(args);
    if (level == 2)
        crystal_log(CRYSTAL_LOG_WARNING, "net", "%s", text);
    else
        crystal_log(CRYSTAL_LOG_DEBUG, "net", "%s:%d: %s", file ? file : "", line,
                    text);
}

static void plugin_wait(uint64_t max_ns)
{
    struct timespec t = {.tv_nsec = SLEEP_NS};

    if (!loaded.wait) {
        if (max_ns)
            (void)nanosleep(&t, NULL); /* woken early is fine */
        return;
    }
    if (!loaded.wake && max_ns > NO_WAKE_NS)
        max_ns = NO_WAKE_NS;
    (void)loaded.wait(max_ns); /* returns 0 always */
}

static void plugin_wake(void)
{
    if (loaded.wake)
        loaded.wake();
}

static void plugin_more(int more)
{
    if (loaded.more)
        loaded.more(more);
}

static void *open_plugin(const char *name, const char *pattern)
{
    char path[512];
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);

    if (handle || strchr(name, '/'))
        return handle;
    if (snprintf(path, sizeof path, pattern, name) >= (int)sizeof path)
        return NULL;
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void load_profiler(void *net_handle)
{
    const char *name = getenv("NCCL_PROFILER_PLUGIN");
    void *handle = net_handle;

    if (name && strcmp(name, "none") == 0)
        return;
    if (name && *name && strcmp(name, "STATIC_PLUGIN") != 0) {
        handle = open_plugin(name, "libnccl-profiler-%s.so");
        if (!handle) {
            crystal_log(CRYSTAL_LOG_WARNING, "hostccl",
                        "NCCL_PROFILER_PLUGIN: %s, ignoring it", dlerror());
            handle = net_handle;
        }
    }
    loaded.plugin.profiler = dlsym(handle, "ncclProfiler_v5");
}

static void load(void)
{
    const char *name = getenv("NCCL_NET_PLUGIN");
    void *handle;
    void *symbol;

    loaded.plugin.wait = plugin_wait;
    loaded.plugin.wake = plugin_wake;
    loaded.plugin.more = plugin_more;
    if (!name || !*name) {
        (void)crystal_error_set(&loaded.err, ENOENT,
                                "NCCL_NET_PLUGIN is not set; give it the path of "
                                "libnccl-net-crystal.so");
        return;
    }
    handle = open_plugin(name, "libnccl-net-%s.so");
    if (!handle) {
        (void)crystal_error_set(&loaded.err, ENOENT, "NCCL_NET_PLUGIN: %s", dlerror());
        return;
    }
    loaded.plugin.net = dlsym(handle, "ncclNetPlugin_v11");
    if (!loaded.plugin.net) {
        (void)crystal_error_set(&loaded.err, ENOENT,
                                "NCCL_NET_PLUGIN: %s has no ncclNetPlugin_v11", name);
        return;
    }
    symbol = dlsym(handle, "crystal_net_wait");
    memcpy(&loaded.wait, &symbol, sizeof symbol);
    symbol = dlsym(handle, "crystal_net_wake");
    memcpy(&loaded.wake, &symbol, sizeof symbol);
    symbol = dlsym(handle, "crystal_net_more");
    memcpy(&loaded.more, &symbol, sizeof symbol);
    load_profiler(handle);
    /* Registered after the plugin's own exit handlers, so that it runs before them. */
    if (atexit(hostccl_engine_stop)) {
        (void)crystal_error_set(&loaded.err, ENOMEM, "cannot register an exit handler");
        loaded.plugin.net = NULL;
        return;
    }
    atomic_store(&loaded.is_loaded, true);
}

const struct hostccl_plugin *hostccl_plugin_get(struct crystal_error *err)
{
    (void)pthread_once(&loaded.once, load); /* valid arguments */
    if (loaded.plugin.net)
        return &loaded.plugin;
    (void)crystal_error_set(err, loaded.err.code, "%s", loaded.err.text);
    return NULL;
}

const struct hostccl_plugin *hostccl_plugin_loaded(void)
{
    return atomic_load(&loaded.is_loaded) ? &loaded.plugin : NULL;
}
