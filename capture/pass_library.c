/* The library below the recorder in plan, and what is known of its handles. See pass.h.
 */
#include "config.h"

#include "capture/pass.h"

#include "runtime/env.h"
#include "runtime/log.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pass pass = {.once = PTHREAD_ONCE_INIT};

static void *find(void *handle, const char *name, const char **ret_missing)
{
    void *function = dlsym(handle, name);

    if (!function && !*ret_missing)
        *ret_missing = name;
    return function;
}

static void pass_open(void)
{
    const char *path = getenv(CRYSTAL_ENV_PASS_LIBRARY), *missing = NULL;
    struct crystal_error err = {0};
    void *handle, *function;

    if (recorder_get()->broken[0]) { /* a plan that records nothing is none */
        (void)crystal_error_set(&err, EINVAL, "%s", recorder_get()->broken);
        goto err;
    }
    if (!path || path[0] != '/') {
        (void)crystal_error_set(&err, EINVAL,
                                "recorder: %s='%s' is no absolute path of a library",
                                CRYSTAL_ENV_PASS_LIBRARY, path ? path : "");
        goto err;
    }
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        (void)crystal_error_set(&err, ENOENT, "recorder: %s", dlerror());
        goto err;
    }
    /* dlsym's result is data to C; POSIX wants it converted like this */
#define NCCL_API(type, name, proto, args)            \
    function = find(handle, "nccl" #name, &missing); \
    memcpy(&pass.nccl.name, &function, sizeof function);
#include "runtime/nccl_api.def"
#undef NCCL_API
#define STREAM_API(type, name, proto, args)              \
    function = find(handle, "crystal_" #name, &missing); \
    memcpy(&pass.host.name, &function, sizeof function);
#include "capture/stream_api.def"
#undef STREAM_API
    if (missing) {
        (void)crystal_error_set(&err, ENOSYS, "recorder: %s lacks %s", path, missing);
        goto err;
    }
    pass.done.event_create = pass.host.event_create;
    pass.done.event_record = pass.host.event_record;
    pass.done.event_synchronize = pass.host.event_synchronize;
    pass.done.event_destroy = pass.host.event_destroy;
    pass.is_open = 1;
    return;

err:
    recorder_fail(&err);
    crystal_log(CRYSTAL_LOG_ERROR, "pass", "%s", err.text);
}

int pass_is_open(void)
{
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
