/* The board: making it, mapping it, finding a communicator on it. See board.h for the
 * bytes. A process that maps a board trusts nothing in it: sizes that index are copied
 * and checked when it opens, an entry's offsets when the entry is found.
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

#define BOARD_ALIGN      64U
#define BOARD_LRANKS_MAX (1U << 24)

static uint64_t align_up(uint64_t value)
{
    return (value + BOARD_ALIGN - 1) & ~(uint64_t)(BOARD_ALIGN - 1);
}

static uint32_t pair_capacity(uint32_t nranks, uint32_t real_count)
{
    uint64_t pairs = 2 * (uint64_t)real_count * (nranks - 1);

    return pairs < CRYSTAL_BOARD_PAIRS_MAX ? (uint32_t)pairs : CRYSTAL_BOARD_PAIRS_MAX;
}

/* Heap bytes of one communicator. */
static uint64_t comm_bytes(uint32_t nranks, uint32_t pairs)
{
    return align_up(4 * (uint64_t)nranks) + align_up(nranks) +
           align_up(sizeof(struct crystal_board_slot) * CRYSTAL_BOARD_SLOTS) +
           align_up(sizeof(struct crystal_board_cell) * (uint64_t)nranks) *
               CRYSTAL_BOARD_SLOTS +
           align_up(sizeof(struct crystal_board_pair) * (uint64_t)pairs);
}

/* Room for a few communicators of everybody and many of the usual size. Pages that
 * nobody touches cost nothing. */
static uint64_t heap_default(uint32_t lrank_count, uint32_t comm_capacity)
{
    uint32_t usual = lrank_count < 256 ? lrank_count : 256;

    return 4 * comm_bytes(lrank_count, CRYSTAL_BOARD_PAIRS_MAX) +
           64 * comm_bytes(usual, CRYSTAL_BOARD_PAIRS_MAX) +
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
    if (!config->lrank_count || config->lrank_count > BOARD_LRANKS_MAX)
        return crystal_error_set(err, EINVAL, "board: %u logical ranks; can be 1 to %u",
                                 config->lrank_count, BOARD_LRANKS_MAX);
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
        align_up(board->comms_offset +
                 sizeof(struct crystal_board_comm) * (uint64_t)config->comm_capacity);
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
    board->comms_offset = align_up(sizeof(struct crystal_board_header));
    board->comm_capacity = config->comm_capacity;
    board->bytes = align_up(board->comms_offset + sizeof(struct crystal_board_comm) *
                                                      (uint64_t)config->comm_capacity) +
                   align_up(heap);
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
    if (!capacity || capacity > CRYSTAL_BOARD_COMMS_MAX || comms_offset % BOARD_ALIGN ||
        comms_offset < sizeof *head || comms_offset > board->bytes ||
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
    if (!head->lrank_count || head->lrank_count > BOARD_LRANKS_MAX)
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

static struct crystal_board_comm *comm_at(struct crystal_board *board, uint32_t index)
{
    return (struct crystal_board_comm *)(board->base + board->comms_offset) + index;
}

int crystal_board_is_inside(const struct crystal_board *board, uint64_t offset,
                            uint64_t count, uint64_t element_bytes)
{
    return offset % 8 == 0 && offset >= sizeof(struct crystal_board_header) &&
           offset <= board->bytes && (board->bytes - offset) / element_bytes >= count;
}

static int comm_check(struct crystal_board *board,
                      const struct crystal_board_comm *comm)
{
    const struct crystal_board_slot *slots;

    if (!comm->nranks || comm->nranks > BOARD_LRANKS_MAX ||
        comm->real_count > comm->nranks ||
        comm->pair_capacity > CRYSTAL_BOARD_PAIRS_MAX ||
        !crystal_board_is_inside(board, comm->members_offset, comm->nranks,
                                 sizeof(uint32_t)) ||
        !crystal_board_is_inside(board, comm->real_offset, comm->nranks, 1) ||
        !crystal_board_is_inside(board, comm->slots_offset, CRYSTAL_BOARD_SLOTS,
                                 sizeof *slots) ||
        !crystal_board_is_inside(board, comm->pairs_offset, comm->pair_capacity,
                                 sizeof(struct crystal_board_pair)))
        return 0;
    slots = (const struct crystal_board_slot *)(board->base + comm->slots_offset);
    for (unsigned i = 0; i < CRYSTAL_BOARD_SLOTS; i++)
        if (!crystal_board_is_inside(board, slots[i].cells_offset, comm->nranks,
                                     sizeof(struct crystal_board_cell)))
            return 0;
    return 1;
}

struct crystal_board_comm *crystal_board_comm_find(struct crystal_board *board,
                                                   uint64_t comm_id)
{
    struct crystal_board_header *head = crystal_board_header(board);
    uint32_t count = atomic_load_explicit(&head->comm_count, memory_order_acquire);

    if (count > board->comm_capacity)
        count = board->comm_capacity;
    for (uint32_t i = 0; i < count; i++) {
        struct crystal_board_comm *comm = comm_at(board, i);

        if (atomic_load_explicit(&comm->state, memory_order_acquire) ==
                CRYSTAL_BOARD_READY &&
            comm->comm_id == comm_id && comm_check(board, comm))
            return comm;
    }
    return NULL;
}

struct crystal_board_comm *crystal_board_comm_at(struct crystal_board *board,
                                                 uint32_t index)
{
    struct crystal_board_comm *comm;

    if (index >= board->comm_capacity)
        return NULL;
    comm = comm_at(board, index);
    if (atomic_load_explicit(&comm->state, memory_order_acquire) !=
            CRYSTAL_BOARD_READY ||
        !comm_check(board, comm))
        return NULL;
    return comm;
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
    uint64_t used = atomic_fetch_add_explicit(&head->heap_used, align_up(bytes),
                                              memory_order_relaxed);

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

static void comm_fill(struct crystal_board *board, struct crystal_board_comm *comm,
                      const uint32_t *members, const uint8_t *is_real)
{
    struct crystal_board_slot *slots;

    comm->members_offset = crystal_board_heap_take(board, 4 * (uint64_t)comm->nranks);
    comm->real_offset = crystal_board_heap_take(board, comm->nranks);
    comm->slots_offset =
        crystal_board_heap_take(board, sizeof *slots * CRYSTAL_BOARD_SLOTS);
    comm->pairs_offset = crystal_board_heap_take(
        board, sizeof(struct crystal_board_pair) * (uint64_t)comm->pair_capacity);
    memcpy(board->base + comm->members_offset, members, 4 * (size_t)comm->nranks);
    memcpy(board->base + comm->real_offset, is_real, comm->nranks);
    slots = (struct crystal_board_slot *)(board->base + comm->slots_offset);
    for (unsigned i = 0; i < CRYSTAL_BOARD_SLOTS; i++)
        slots[i].cells_offset = crystal_board_heap_take(
            board, sizeof(struct crystal_board_cell) * (uint64_t)comm->nranks);
}

static int comm_add_locked(struct crystal_board *board, uint64_t comm_id,
                           const char *name, uint32_t graph_comm, uint32_t nranks,
                           const uint32_t *members, const uint8_t *is_real,
                           struct crystal_error *err)
{
    struct crystal_board_header *head = crystal_board_header(board);
    uint32_t index = atomic_load(&head->comm_count), real_count = 0, pairs;
    struct crystal_board_comm *comm;

    for (uint32_t i = 0; i < nranks; i++) {
        if (members[i] >= head->lrank_count)
            return crystal_error_set(err, ERANGE,
                                     "communicator '%s': member %u is rank %u of %u",
                                     name, i, members[i], head->lrank_count);
        real_count += is_real[i] ? 1 : 0;
    }
    if (crystal_board_comm_find(board, comm_id))
        return crystal_error_set(
            err, EEXIST, "communicator '%s': id %016llx is on the board already", name,
            (unsigned long long)comm_id);
    if (index >= board->comm_capacity)
        return crystal_error_set(err, ENOSPC,
                                 "communicator '%s': the board has room for %u only",
                                 name, board->comm_capacity);
    pairs = pair_capacity(nranks, real_count);
    if (crystal_board_heap_check(board, name, comm_bytes(nranks, pairs), err))
        return -ENOSPC;
    comm = comm_at(board, index);
    comm->nranks = nranks;
    comm->comm_id = comm_id;
    comm->graph_comm = graph_comm;
    comm->real_count = real_count;
    comm->pair_capacity = pairs;
    memcpy(comm->name, name, strlen(name) + 1);
    comm_fill(board, comm, members, is_real);
    atomic_store_explicit(&comm->state, CRYSTAL_BOARD_READY, memory_order_release);
    atomic_store_explicit(&head->comm_count, index + 1, memory_order_release);
    return 0;
}

int crystal_board_comm_add(struct crystal_board *board, uint64_t comm_id,
                           const char *name, uint32_t graph_comm, uint32_t nranks,
                           const uint32_t *members, const uint8_t *is_real,
                           struct crystal_error *err)
{
    int code;

    if (strlen(name) >= CRYSTAL_BOARD_NAME)
        return crystal_error_set(err, ENAMETOOLONG,
                                 "communicator '%s': name of more than %d bytes", name,
                                 CRYSTAL_BOARD_NAME - 1);
    if (!nranks || nranks > BOARD_LRANKS_MAX)
        return crystal_error_set(err, EINVAL, "communicator '%s': %u members", name,
                                 nranks);
    (void)pthread_mutex_lock(&board->add_lock); /* cannot fail: no error checking */
    code = comm_add_locked(board, comm_id, name, graph_comm, nranks, members, is_real,
                           err);
    (void)pthread_mutex_unlock(&board->add_lock);
    return code;
}

const uint32_t *crystal_board_members(struct crystal_board *board,
                                      const struct crystal_board_comm *comm)
{
    return (const uint32_t *)(board->base + comm->members_offset);
}

uint32_t crystal_board_crank(struct crystal_board *board,
                             const struct crystal_board_comm *comm, uint32_t lrank)
{
    const uint32_t *members = crystal_board_members(board, comm);

    for (uint32_t crank = 0; crank < comm->nranks; crank++)
        if (members[crank] == lrank)
            return crank;
    return UINT32_MAX;
}

const uint8_t *crystal_board_is_real(struct crystal_board *board,
                                     const struct crystal_board_comm *comm)
{
    return board->base + comm->real_offset;
}

struct crystal_board_slot *crystal_board_slot(struct crystal_board *board,
                                              const struct crystal_board_comm *comm,
                                              uint64_t seq)
{
    return (struct crystal_board_slot *)(board->base + comm->slots_offset) +
           seq % CRYSTAL_BOARD_SLOTS;
}

struct crystal_board_cell *crystal_board_cells(struct crystal_board *board,
                                               const struct crystal_board_comm *comm,
                                               const struct crystal_board_slot *slot)
{
    (void)comm; /* says how many */
    return (struct crystal_board_cell *)(board->base + slot->cells_offset);
}

struct crystal_board_pair *crystal_board_pairs(struct crystal_board *board,
                                               const struct crystal_board_comm *comm)
{
    return (struct crystal_board_pair *)(board->base + comm->pairs_offset);
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
