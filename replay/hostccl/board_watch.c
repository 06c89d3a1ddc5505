/* Watching the board. It stays mapped to the end of the process. */
#include "config.h"

#include "replay/hostccl/board_watch.h"

#include "replay/board.h"
#include "replay/hostccl/service.h"
#include "runtime/env.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define PERIOD_NS 100000000U

static struct {
    pthread_mutex_t lock;
    struct crystal_board *board; /* under lock until is_watched */
    bool is_watched;
    bool is_told;         /* the service thread's */
    atomic_bool is_noted; /* the abort, on the roll */
    void (*on_abort)(void);
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* On the roll beside the board. */
static void note(enum crystal_roll_kind kind, uint64_t comm_id, uint32_t crank)
{
    const char *path = getenv(CRYSTAL_ENV_BOARD), *lrank = getenv(CRYSTAL_ENV_LRANK);
    const char *slash = path ? strrchr(path, '/') : NULL;
    char directory[4096], *end;
    unsigned long value = lrank ? strtoul(lrank, &end, 10) : 0;

    if (!slash || !lrank || !*lrank || *end || value >= UINT32_MAX ||
        (size_t)(slash - path) >= sizeof directory)
        return;
    memcpy(directory, path, (size_t)(slash - path));
    directory[slash - path] = 0;
    crystal_roll_write(directory, kind, (uint32_t)value, comm_id, crank);
}

static bool look(struct crystal_error *err)
{
    const struct crystal_board_header *head = crystal_board_header(watch.board);

    if (!atomic_load_explicit(&head->abort_flag, memory_order_acquire))
        return false;
    if (!atomic_exchange(&watch.is_noted, true))
        note(CRYSTAL_ROLL_STOPPED, 0, 0);
    (void)crystal_error_set(err, ECONNABORTED, "the job was stopped: %.*s",
                            (int)sizeof head->abort_text, head->abort_text);
    return true;
}

static void tick(void)
{
    if (watch.is_told || !look(NULL))
        return;
    watch.is_told = true;
    watch.on_abort();
}

int hostccl_board_watch(void (*on_abort)(void), struct crystal_error *err)
{
    const char *path = getenv(CRYSTAL_ENV_BOARD);
    int result = 0;

    pthread_mutex_lock(&watch.lock);
    if (path && *path && !watch.is_watched) {
        watch.on_abort = on_abort;
        watch.board = crystal_board_open(path, err);
        result = watch.board ? hostccl_service_every(PERIOD_NS, tick, err) : -EIO;
        watch.is_watched = !result;
    }
    pthread_mutex_unlock(&watch.lock);
    return result;
}

bool hostccl_board_is_aborted(struct crystal_error *err)
{
    bool is_watched;

    pthread_mutex_lock(&watch.lock);
    is_watched = watch.is_watched;
    pthread_mutex_unlock(&watch.lock);
    return is_watched && look(err);
}

void hostccl_board_note(enum crystal_roll_kind kind, uint64_t comm_id, uint32_t crank)
{
    (void)hostccl_board_is_aborted(NULL); /* then that is why */
    note(kind, comm_id, crank);
}
