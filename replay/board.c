/* The board: making it, mapping it, its heap and its bell. See board.h for the bytes. A
 * process that maps a board trusts nothing in it: sizes that index are copied and
 * checked when it opens, an entry's offsets when the entry is found (board_comms.c).
 */
#include "config.h"

#include "replay/board_internal.h"

#include "runtime/filehead.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <linux/futex.h>

/* Room for a few communicators of everybody and many of the usual size. Pages that
 * nobody touches cost nothing. */
static uint64_t heap_default(uint32_t lrank_count, uint32_t comm_capacity)
{
    uint32_t usual = lrank_count < 256 ? lrank_count : 256;

    return 4 * crystal_board_comm_bytes(lrank_count, CRYSTAL_BOARD_PAIRS_MAX) +
           64 * crystal_board_comm_bytes(usual, CRYSTAL_BOARD_PAIRS_MAX) +
           (uint64_t)comm_capacity * (256U << 10);
}

static struct crystal_board *board_new(const char *path, struct crystal_error *err)
{
    struct crystal_board *board;
    const char *slash = strrchr(path, '/');
    size_t length = strlen(path);

    if (length >= sizeof board->path) {
        (void)crystal_error_set(err, ENAMETOOLONG, "board '%s': path too long", path);
        return NULL;
    }
    board = calloc(1, sizeof *board);
    if (!board) {
        (void)crystal_error_set(err, ENOMEM, "board '%s': out of memory", path);
        return NULL;
    }
    memcpy(board->path, path, length + 1);
    if (slash)
        memcpy(board->directory, path, (size_t)(slash - path));
    else
        memcpy(board->directory, ".", 2);
    if (slash == path)
        memcpy(board->directory, "/", 2);
    (void)pthread_mutex_init(&board->add_lock, NULL); /* cannot fail on Linux */
    return board;
}

/* The file is sparse: where its file system is full, touching it would be the end. */
static int has_no_room(const struct crystal_board *board, uint64_t bytes,
                       struct crystal_error *err)
{
    struct statvfs fs;

    if (statvfs(board->directory, &fs) < 0 ||
        (uint64_t)fs.f_bavail * fs.f_frsize >= bytes)
        return 0;
    return crystal_error_set(
        err, ENOSPC,
        "board '%s': no space left in %s for %llu bytes; free some "
        "or make it larger",
        board->path, board->directory, (unsigned long long)bytes);
}

static int board_map(struct crystal_board *board, int fd, struct crystal_error *err)
{
    void *map = mmap(NULL, board->bytes, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_NORESERVE, fd, 0);

    if (map == MAP_FAILED)
        return crystal_error_set(err, errno, "board '%s': cannot map it: %s",
                                 board->path, strerror(errno));
    board->base = map;
    return 0;
}

static int config_check(const struct crystal_board_config *config,
                        struct crystal_error *err)
{
    if (!config->lrank_count || config->lrank_count > CRYSTAL_BOARD_LRANKS_MAX)
        return crystal_error_set(err, EINVAL, "board: %u logical ranks; can be 1 to %u",
                                 config->lrank_count, CRYSTAL_BOARD_LRANKS_MAX);
    if (!config->comm_capacity || config->comm_capacity > CRYSTAL_BOARD_COMMS_MAX)
        return crystal_error_set(err, EINVAL, "board: %u communicators; can be 1 to %u",
                                 config->comm_capacity, CRYSTAL_BOARD_COMMS_MAX);
    if (config->mode != CRYSTAL_BOARD_IMMEDIATE && config->mode != CRYSTAL_BOARD_TIMED)
        return crystal_error_set(err, EINVAL, "board: unknown mode %d",
                                 (int)config->mode);
    if (config->graph_path && strlen(config->graph_path) >=
                                  sizeof((struct crystal_board_header *)0)->graph_path)
        return crystal_error_set(err, ENAMETOOLONG,
                                 "board: graph path '%s' is too long; use a job "
                                 "directory with a shorter path",
                                 config->graph_path);
    if (config->heap_bytes > (uint64_t)1 << 44)
        return crystal_error_set(err, EINVAL, "board: heap of %llu bytes is too large",
                                 (unsigned long long)config->heap_bytes);
    return 0;
}

static void header_fill(struct crystal_board *board,
                        const struct crystal_board_config *config)
{
    struct crystal_board_header *head = (struct crystal_board_header *)board->base;

    memcpy(head->magic, CRYSTAL_BOARD_MAGIC, sizeof head->magic);
    head->version = CRYSTAL_BOARD_VERSION;
    head->byte_order = CRYSTAL_BYTE_ORDER;
    head->board_bytes = board->bytes;
    head->job_hash = config->job_hash;
    head->lrank_count = config->lrank_count;
    head->ranks_per_node = config->ranks_per_node;
    head->mode = config->mode;
    head->wire_bytes_per_s = config->wire_bytes_per_s;
    head->wire_latency_ns = config->wire_latency_ns;
    head->message_overhead_ns = config->message_overhead_ns;
    head->comm_capacity = config->comm_capacity;
    head->comms_offset = board->comms_offset;
    head->heap_offset =
        crystal_board_align(board->comms_offset + sizeof(struct crystal_board_comm) *
                                                      (uint64_t)config->comm_capacity);
    head->payload_all = config->payload_all ? 1 : 0;
    if (config->graph_path)
        memcpy(head->graph_path, config->graph_path, strlen(config->graph_path) + 1);
}

struct crystal_board *crystal_board_create(const struct crystal_board_config *config,
                                           struct crystal_error *err)
{
    struct crystal_board *board;
    char path[4096], temporary[4096];
    uint64_t heap;
    int fd;

    if (config_check(config, err))
        return NULL;
    if (snprintf(path, sizeof path, "%s/board", config->directory) >=
            (int)sizeof path - 4 ||
        snprintf(temporary, sizeof temporary, "%s.tmp", path) >=
            (int)sizeof temporary) {
        (void)crystal_error_set(err, ENAMETOOLONG, "board: path '%s' is too long",
                                config->directory);
        return NULL;
    }
    board = board_new(path, err);
    if (!board)
        return NULL;
    heap = config->heap_bytes
               ? config->heap_bytes
               : heap_default(config->lrank_count, config->comm_capacity);
    board->comms_offset = crystal_board_align(sizeof(struct crystal_board_header));
    board->comm_capacity = config->comm_capacity;
    board->bytes =
        crystal_board_align(board->comms_offset + sizeof(struct crystal_board_comm) *
                                                      (uint64_t)config->comm_capacity) +
        crystal_board_align(heap);
    fd = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        (void)crystal_error_set(err, errno, "board '%s': %s", temporary,
                                strerror(errno));
        goto err_board;
    }
    if (has_no_room(board,
                    board->comms_offset + sizeof(struct crystal_board_comm) *
                                              (uint64_t)config->comm_capacity,
                    err))
        goto err_file;
    if (ftruncate(fd, (off_t)board->bytes) < 0) {
        (void)crystal_error_set(err, errno, "board '%s': cannot make it %llu bytes: %s",
                                temporary, (unsigned long long)board->bytes,
                                strerror(errno));
        goto err_file;
    }
    if (board_map(board, fd, err))
        goto err_file;
    header_fill(board, config);
    if (rename(temporary, path) < 0) {
        (void)crystal_error_set(err, errno, "board '%s': %s", path, strerror(errno));
        goto err_file;
    }
    (void)close(fd); /* the mapping stays */
    board->is_creator = 1;
    return board;

err_file:
    (void)close(fd);
    (void)unlink(temporary); /* best effort, the error is already known */
err_board:
    crystal_board_destroy(board);
    return NULL;
}

/* The header's own numbers, read once each; fills board from them. */
static int header_check(struct crystal_board *board, struct crystal_error *err)
{
    const struct crystal_board_header *head =
        (const struct crystal_board_header *)board->base;
    uint64_t comms_offset = head->comms_offset, heap_offset = head->heap_offset;
    uint32_t capacity = head->comm_capacity;

    if (memcmp(head->magic, CRYSTAL_BOARD_MAGIC, sizeof head->magic) != 0)
        return crystal_error_set(err, EINVAL, "board '%s': not a board", board->path);
    if (head->byte_order != CRYSTAL_BYTE_ORDER ||
        head->version != CRYSTAL_BOARD_VERSION)
        return crystal_error_set(err, EINVAL,
                                 "board '%s': version %u, this plugin reads %u; use "
                                 "the plugin and the agent of one installation",
                                 board->path, head->version, CRYSTAL_BOARD_VERSION);
    if (head->board_bytes != board->bytes)
        return crystal_error_set(
            err, EINVAL, "board '%s': %llu bytes, its header says %llu", board->path,
            (unsigned long long)board->bytes, (unsigned long long)head->board_bytes);
    if (!capacity || capacity > CRYSTAL_BOARD_COMMS_MAX ||
        comms_offset % CRYSTAL_BOARD_ALIGN || comms_offset < sizeof *head ||
        comms_offset > board->bytes ||
        (board->bytes - comms_offset) / sizeof(struct crystal_board_comm) < capacity)
        return crystal_error_set(err, EINVAL,
                                 "board '%s': table of %u communicators at offset %llu "
                                 "lies outside it",
                                 board->path, capacity,
                                 (unsigned long long)comms_offset);
    if (heap_offset < comms_offset + sizeof(struct crystal_board_comm) * capacity ||
        heap_offset > board->bytes)
        return crystal_error_set(err, EINVAL,
                                 "board '%s': heap at offset %llu is wrong",
                                 board->path, (unsigned long long)heap_offset);
    if (!head->lrank_count || head->lrank_count > CRYSTAL_BOARD_LRANKS_MAX)
        return crystal_error_set(err, EINVAL, "board '%s': %u logical ranks",
                                 board->path, head->lrank_count);
    if (head->mode != CRYSTAL_BOARD_IMMEDIATE && head->mode != CRYSTAL_BOARD_TIMED)
        return crystal_error_set(err, EINVAL, "board '%s': unknown mode %u",
                                 board->path, head->mode);
    board->comms_offset = comms_offset;
    board->comm_capacity = capacity;
    return 0;
}

static int file_check(struct crystal_board *board, int fd, struct crystal_error *err)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return crystal_error_set(err, errno, "board '%s': %s", board->path,
                                 strerror(errno));
    if (!S_ISREG(st.st_mode))
        return crystal_error_set(err, EINVAL, "board '%s': not a regular file",
                                 board->path);
    if (st.st_uid != geteuid() || (st.st_mode & 077))
        return crystal_error_set(err, EACCES,
                                 "board '%s': belongs to user %u with mode %03o; it "
                                 "must be this user's with mode 600",
                                 board->path, (unsigned)st.st_uid,
                                 (unsigned)st.st_mode & 0777);
    if ((uint64_t)st.st_size < sizeof(struct crystal_board_header))
        return crystal_error_set(
            err, EINVAL, "board '%s': only %llu bytes, its header has %zu", board->path,
            (unsigned long long)st.st_size, sizeof(struct crystal_board_header));
    board->bytes = (uint64_t)st.st_size;
    return 0;
}

struct crystal_board *crystal_board_open(const char *path, struct crystal_error *err)
{
    struct crystal_board *board = board_new(path, err);
    int fd;

    if (!board)
        return NULL;
    fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        (void)crystal_error_set(err, errno,
                                "board '%s': %s; is the node's agent running?", path,
                                strerror(errno));
        goto err_board;
    }
    if (file_check(board, fd, err) || board_map(board, fd, err) ||
        header_check(board, err)) {
        (void)close(fd);
        goto err_board;
    }
    (void)close(fd); /* the mapping stays */
    return board;

err_board:
    crystal_board_destroy(board);
    return NULL;
}

void crystal_board_destroy(struct crystal_board *board)
{
    if (!board)
        return;
    if (board->base)
        (void)munmap(board->base, board->bytes);
    if (board->is_creator)
        (void)unlink(board->path); /* may be gone with its directory */
    (void)pthread_mutex_destroy(&board->add_lock);
    free(board);
}

struct crystal_board_header *crystal_board_header(struct crystal_board *board)
{
    return (struct crystal_board_header *)board->base;
}

const char *crystal_board_directory(const struct crystal_board *board)
{
    return board->directory;
}

int crystal_board_is_inside(const struct crystal_board *board, uint64_t offset,
                            uint64_t count, uint64_t element_bytes)
{
    return offset % 8 == 0 && offset >= sizeof(struct crystal_board_header) &&
           offset <= board->bytes && (board->bytes - offset) / element_bytes >= count;
}

void crystal_board_ring(struct crystal_board *board)
{
    struct crystal_board_header *head = crystal_board_header(board);

    (void)atomic_fetch_add(&head->bell, 1);
    if (atomic_load(&head->bell_waits))
        (void)syscall(SYS_futex, &head->bell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void crystal_board_sleep(struct crystal_board *board, uint32_t *bell, uint64_t max_ns)
{
    struct crystal_board_header *head = crystal_board_header(board);
    struct timespec timeout = {.tv_sec = (time_t)(max_ns / 1000000000U),
                               .tv_nsec = (long)(max_ns % 1000000000U)};

    atomic_store(&head->bell_waits, 1);
    if (atomic_load(&head->bell) == *bell) /* woken, timed out, rung before: all fine */
        (void)syscall(SYS_futex, &head->bell, FUTEX_WAIT, *bell, &timeout, NULL, 0);
    atomic_store(&head->bell_waits, 0);
    *bell = atomic_load(&head->bell);
}

uint64_t crystal_board_heap_take(struct crystal_board *board, uint64_t bytes)
{
    struct crystal_board_header *head = crystal_board_header(board);
    uint64_t used = atomic_fetch_add_explicit(
        &head->heap_used, crystal_board_align(bytes), memory_order_relaxed);

    return head->heap_offset + used;
}

int crystal_board_heap_check(struct crystal_board *board, const char *name,
                             uint64_t bytes, struct crystal_error *err)
{
    const struct crystal_board_header *head = crystal_board_header(board);

    if (bytes > board->bytes - head->heap_offset - atomic_load(&head->heap_used))
        return crystal_error_set(
            err, ENOSPC, "communicator '%s': needs %llu bytes, the board is full", name,
            (unsigned long long)bytes);
    return has_no_room(board, bytes, err) ? -ENOSPC : 0;
}

void crystal_board_abort(struct crystal_board *board, const char *format, ...)
{
    struct crystal_board_header *head = crystal_board_header(board);
    uint64_t nobody = 0;
    va_list args;

    if (!atomic_compare_exchange_strong(&head->abort_claim, &nobody, 1))
        return;
    va_start(args, format);
    (void)vsnprintf(head->abort_text, sizeof head->abort_text, format, args); /* cut */
    va_end(args);
    atomic_store_explicit(&head->abort_flag, 1, memory_order_release);
}
