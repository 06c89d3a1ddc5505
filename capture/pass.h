/* What the pass_*.c files share: the library below, and what is known of its handles.
 */
#ifndef CRYSTAL_PASS_H
#define CRYSTAL_PASS_H

#include "capture/entry.h"
#include "capture/pass_done.h"
#include "capture/pointer_map.h"
#include "capture/recorder.h"

#include <pthread.h>
#include <stdint.h>

/* What we know of the library's handles. */
struct pass_comm {
    uint16_t index;
    uint32_t nranks;
    uint32_t crank;
};

struct pass_stream {
    uint16_t index;
    struct pass_lane *lane;   /* NULL: no ends are recorded */
    struct pass_stream *next; /* of all, for the end */
};

extern struct pass {
    pthread_once_t once;
    int is_open; /* the library is there with all its functions */
    struct {
#define NCCL_API(type, name, proto, args) type(*name) proto;
#include "runtime/nccl_api.def"
#undef NCCL_API
    } nccl;
    struct {
#define STREAM_API(type, name, proto, args) type(*name) proto;
#include "capture/stream_api.def"
#undef STREAM_API
    } host;
    struct pass_done_library done;
    /* under the recorder's lock */
    struct pointer_map comms, streams, events;
    struct pass_stream *all_streams;
} pass;

/* Opens the library at the first call; 0 where it cannot be used, which was said. */
int pass_is_open(void);

/* The recorder's lock, under which the maps are. */
void pass_rec_lock(void);
void pass_rec_unlock(void);
void *pass_map_get(struct pointer_map *map, const void *key);
void pass_map_put(struct pointer_map *map, const void *key, void *value);
void pass_map_drop(struct pointer_map *map, const void *key);

/* All streams; they stay, new ones come in front. */
struct pass_stream *pass_streams(void);
/* Waits a while for the ends of all operations and writes them down. */
void pass_drain(void);
/* The key of a stream; NULL streams have one, too. */
const void *pass_stream_key(ncclStream_t stream);
/* A stream of the library: made known, found, its index in the trace. */
struct pass_stream *pass_stream_add(ncclStream_t stream);
struct pass_stream *pass_stream_get(ncclStream_t stream);
uint16_t pass_stream_index(ncclStream_t stream);

#endif
