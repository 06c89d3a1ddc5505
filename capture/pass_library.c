/* The library below the recorder in plan, and what is known of its handles. See pass.h.
 */
#include "config.h"

#include "capture/pass.h"
#include "capture/pass_cuda.h"
#include "capture/work.h"

#include "runtime/env.h"
#include "runtime/log.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pass pass = {.once = PTHREAD_ONCE_INIT};

#define OWN_NCCL "libnccl.so.2"

static void *find(void *handle, const char *name, const char **ret_missing)
{
    void *function = dlsym(handle, name);

    if (!function && !*ret_missing)
        *ret_missing = name;
    return function;
}

/* dlsym's result is data to C; POSIX wants it converted like this. What is missing is
 * NULL; returns the first such name. */
static const char *find_nccl(void *handle)
{
    const char *missing = NULL;
    void *function;

#define NCCL_API(type, name, proto, args)            \
    function = find(handle, "nccl" #name, &missing); \
    memcpy(&pass.nccl.name, &function, sizeof function);
#include "runtime/nccl_api.def"
#undef NCCL_API
    return missing;
}

static const char *find_streams(void *handle)
{
    const char *missing = NULL;
    void *function;

#define STREAM_API(type, name, proto, args)              \
    function = find(handle, "crystal_" #name, &missing); \
    memcpy(&pass.host.name, &function, sizeof function);
#include "capture/stream_api.def"
#undef STREAM_API
    function = dlsym(handle, "crystal_event_time"); /* optional */
    memcpy(&pass.done.event_time, &function, sizeof function);
    return missing;
}

/* The library of host memory. */
static int open_library(const char *path, struct crystal_error *err)
{
    const char *missing;
    void *handle;

    if (!path || path[0] != '/')
        return crystal_error_set(err, EINVAL,
                                 "recorder: %s='%s' is no absolute path of a library",
                                 CRYSTAL_ENV_PASS_LIBRARY, path ? path : "");
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return crystal_error_set(err, ENOENT, "recorder: %s", dlerror());
    missing = find_nccl(handle);
    if (!missing)
        missing = find_streams(handle);
    if (missing)
        return crystal_error_set(err, ENOSYS, "recorder: %s lacks %s", path, missing);
    return 0;
}

/* The NCCL that the program has loaded, of any version: it calls only what that has. */
static int open_own(struct crystal_error *err)
{
    void *handle = dlopen(OWN_NCCL, RTLD_NOW | RTLD_NOLOAD); /* stays: it is in use */

    if (!handle)
        return crystal_error_set(
            err, ENOENT,
            "recorder: the program makes NCCL calls, but has no " OWN_NCCL
            " loaded; is NCCL linked statically?");
    (void)find_nccl(handle);
    if (!pass.nccl.CommInitRankConfig || !pass.nccl.GroupEnd)
        return crystal_error_set(err, ENOSYS,
                                 "recorder: " OWN_NCCL " is no NCCL of 2.14 "
                                 "or later");
    return pass_cuda_open(err);
}

struct pass_stream *pass_streams(void)
{
    struct pass_stream *s;

    pass_rec_lock();
    s = pass.all_streams;
    pass_rec_unlock();
    return s;
}

static void settle(int is_last)
{
    if (!is_last)
        pass_cuda_renew();
    for (struct pass_stream *s = pass_streams(); s; s = s->next)
        if (s->lane)
            (void)pass_lane_settle(s->lane);
}

static void pass_open(void)
{
    const char *on_device = getenv(CRYSTAL_ENV_PASS_DEVICE);
    struct crystal_error err = {0};
    int code;

    if (recorder_get()->broken[0]) /* a plan that records nothing is none */
        code = crystal_error_set(&err, EINVAL, "%s", recorder_get()->broken);
    else if (on_device && *on_device && !entry_is_host_memory())
        code = open_own(&err);
    else
        code = open_library(getenv(CRYSTAL_ENV_PASS_LIBRARY), &err);
    if (code) {
        recorder_fail(&err);
        crystal_log(CRYSTAL_LOG_ERROR, "pass", "%s", err.text);
        return;
    }
    recorder_hooks(recorder_get(), NULL, settle);
    pass.done.event_create = pass.host.event_create;
    pass.done.event_record = pass.host.event_record;
    pass.done.event_synchronize = pass.host.event_synchronize;
    pass.done.event_destroy = pass.host.event_destroy;
    __atomic_store_n(&pass.is_open, 1, __ATOMIC_RELEASE);
}

int pass_is_open(void)
{
    if (!__atomic_load_n(&pass.is_open, __ATOMIC_ACQUIRE))
        (void)pthread_once(&pass.once, pass_open); /* valid arguments */
    return pass.is_open;
}

/* --- what we know of handles --- */

void pass_rec_lock(void)
{
    (void)pthread_mutex_lock(&recorder_get()->lock); /* a plain mutex */
}

void pass_rec_unlock(void)
{
    (void)pthread_mutex_unlock(&recorder_get()->lock);
}

void *pass_map_get(struct pointer_map *map, const void *key)
{
    void *value;

    pass_rec_lock();
    value = pointer_map_get(map, key);
    pass_rec_unlock();
    return value;
}

/* Takes ownership of value; a handle that cannot be kept is simply unknown. */
void pass_map_put(struct pointer_map *map, const void *key, void *value)
{
    int code;

    pass_rec_lock();
    code = pointer_map_put(map, key, value);
    pass_rec_unlock();
    if (code)
        free(value);
}

void pass_map_drop(struct pointer_map *map, const void *key)
{
    void *value;

    pass_rec_lock();
    value = pointer_map_take(map, key);
    pass_rec_unlock();
    free(value);
}

/* Streams keep their entries: their lanes run on. The null stream's key is ours. */
const void *pass_stream_key(ncclStream_t stream)
{
    static const char null_key;

    return stream ? stream : &null_key;
}

struct pass_stream *pass_stream_add(ncclStream_t stream)
{
    struct pass_stream *s = calloc(1, sizeof *s);
    struct crystal_error err = {0};
    int code;

    if (!s)
        return NULL;
    if (stream)
        s->index = recorder_stream_next(recorder_get());
    work_stream(stream, s->index); /* where the device's work is recorded */
    s->lane = pass_lane_create(&pass.done, stream, &err);
    if (!s->lane)
        crystal_log(CRYSTAL_LOG_WARNING, "pass",
                    "%s, recording stream %u without the ends of its operations",
                    err.text, s->index);
    pass_rec_lock();
    code = pointer_map_put(&pass.streams, pass_stream_key(stream), s);
    s->next = pass.all_streams;
    pass.all_streams = s;
    pass_rec_unlock();
    return code ? NULL : s;
}

struct pass_stream *pass_stream_get(ncclStream_t stream)
{
    struct pass_stream *s = pass_map_get(&pass.streams, pass_stream_key(stream));

    return s ? s : pass_stream_add(stream);
}

uint16_t pass_stream_index(ncclStream_t stream)
{
    struct pass_stream *s = pass_stream_get(stream);

    return s ? s->index : UINT16_MAX;
}
