/* Two buffers: callers fill one under a short lock, the writer's thread takes it every
 * 200 ms (at once when half full) and appends it to the block file. A child of a fork
 * has no such thread and must not write its parent's file: it only counts losses.
 */
#include "config.h"

#include "replay/run_writer.h"

#include "runtime/blockfile.h"
#include "runtime/log.h"
#include "runtime/thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RUN_BUFFER   4096
#define RUN_FLUSH_NS 200000000L

static const struct crystal_blockfile_kind run_kind = CRYSTAL_RUN_KIND;

struct crystal_run_writer {
    pthread_mutex_t lock; /* filled, filled_count, lost */
    pthread_cond_t some;
    pthread_mutex_t file_lock; /* taken before lock: taken, file */
    struct crystal_block_writer *file;
    pid_t pid;
    int told; /* a failed write was logged */
    uint64_t lost;
    uint32_t filled_count;
    struct crystal_run_record filled[RUN_BUFFER];
    struct crystal_run_record taken[RUN_BUFFER];
};

static struct crystal_run_writer *at_exit_writer; /* set once, before any thread */

int crystal_run_flush(struct crystal_run_writer *w, struct crystal_error *err)
{
    uint32_t count;
    int code;

    (void)pthread_mutex_lock(&w->file_lock);
    (void)pthread_mutex_lock(&w->lock);
    count = w->filled_count;
    memcpy(w->taken, w->filled, count * sizeof *w->taken);
    w->filled_count = 0;
    (void)pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 0; i < count; i++)
        crystal_block_append(w->file, &w->taken[i]);
    code = crystal_block_flush(w->file, err);
    (void)pthread_mutex_unlock(&w->file_lock);
    return code;
}

static void *run_main(void *argument)
{
    struct crystal_run_writer *w = argument;
    struct crystal_error err = {0};

    for (;;) {
        struct timespec pause = {0, RUN_FLUSH_NS};

        (void)pthread_mutex_lock(&w->lock);
        while (!w->filled_count)
            (void)pthread_cond_wait(&w->some, &w->lock);
        (void)pthread_mutex_unlock(&w->lock);
        (void)nanosleep(&pause, NULL); /* gather; shorter is fine */
        if (crystal_run_flush(w, &err) && !w->told) {
            w->told = 1;
            crystal_log(CRYSTAL_LOG_ERROR, "net", "%s", crystal_error_text(&err));
        }
    }
    return NULL;
}

/* exit() and the end of main; a process that ends by _exit or a signal has at most the
 * last 200 ms unwritten. */
__attribute__((destructor)) static void run_at_exit(void)
{
    struct crystal_run_writer *w = at_exit_writer;

    if (w && w->pid == getpid())
        (void)crystal_run_flush(w, NULL); /* nobody left to tell */
}

static int thread_start(struct crystal_run_writer *w, struct crystal_error *err)
{
    int code = crystal_thread_start(NULL, run_main, w);

    return code ? crystal_error_set(err, code, "run record: cannot start a thread: %s",
                                    strerror(code))
                : 0;
}

struct crystal_run_writer *crystal_run_writer_create(const char *directory,
                                                     uint32_t lrank,
                                                     uint64_t fingerprint,
                                                     struct crystal_error *err)
{
    struct crystal_run_writer *w = calloc(1, sizeof *w);
    char path[4096];

    if (!w) {
        (void)crystal_error_set(err, ENOMEM, "run record: out of memory");
        return NULL;
    }
    if (snprintf(path, sizeof path, "%s/%u.run", directory, lrank) >=
        (int)sizeof path) {
        (void)crystal_error_set(err, ENAMETOOLONG, "run record: path '%s' is too long",
                                directory);
        goto err_free;
    }
    w->pid = getpid();
    (void)pthread_mutex_init(&w->lock, NULL); /* these three cannot fail on Linux */
    (void)pthread_mutex_init(&w->file_lock, NULL);
    (void)pthread_cond_init(&w->some, NULL);
    w->file = crystal_block_create(path, &run_kind, lrank, fingerprint, err);
    if (!w->file)
        goto err_free;
    if (thread_start(w, err))
        goto err_close;
    at_exit_writer = w;
    return w;

err_close:
    (void)crystal_block_close(w->file, NULL); /* the error is already known */
err_free:
    free(w);
    return NULL;
}

void crystal_run_append(struct crystal_run_writer *w,
                        const struct crystal_run_record *record)
{
    (void)pthread_mutex_lock(&w->lock);
    if (w->filled_count == RUN_BUFFER) {
        w->lost++;
    } else {
        w->filled[w->filled_count++] = *record;
        if (w->filled_count == 1)
            (void)pthread_cond_signal(&w->some);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

uint64_t crystal_run_lost(struct crystal_run_writer *w)
{
    uint64_t lost;

    (void)pthread_mutex_lock(&w->lock);
    lost = w->lost;
    (void)pthread_mutex_unlock(&w->lock);
    return lost;
}
