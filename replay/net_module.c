/* The process as the plugins see it: board, wire, communicators.
 *
 * CRYSTAL_BOARD names the board; without it the plugin is a plain TCP transport, paced
 * where CRYSTAL_WIRE says so. CRYSTAL_LRANK is this process's logical rank,
 * CRYSTAL_RUN_DIR where its run record goes.
 */
#include "config.h"

#include "replay/net.h"

#include "replay/net_backend.h"
#include "replay/net_copiers.h"
#include "replay/net_environment.h"
#include "replay/net_messages.h"
#include "replay/net_payload.h"
#include "replay/net_rings.h"
#include "replay/net_room.h"
#include "replay/node_places.h"
#include "replay/run_writer.h"
#include "replay/virtual_feed.h"
#include "replay/virtual_line.h"
#include "replay/virtual_pat.h"
#include "replay/virtual_tree.h"
#include "runtime/env.h"
#include "replay/net_prefetch.h"
#include "runtime/graph.h"
#include "runtime/log.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* The one static object of this library. */
static struct {
    pthread_mutex_t lock; /* everything below but what says otherwise */
    int is_tried;
    struct crystal_error err; /* why module is not usable */
    struct crystal_net_module module;
    /* entries are set once and stay; readers need no lock */
    _Atomic(struct crystal_net_comm *) comms[CRYSTAL_NET_COMMS];
} self = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int board_read(struct crystal_net_module *m, struct crystal_error *err)
{
    const char *path = getenv(CRYSTAL_ENV_BOARD);

    if (!path || !*path)
        return crystal_net_read_wire(&m->wire, err);
    m->board = crystal_board_open(path, err);
    if (!m->board)
        return -err->code;
    m->head = crystal_board_header(m->board);
    if (m->lrank >= m->head->lrank_count)
        return crystal_error_set(err, EINVAL,
                                 CRYSTAL_ENV_LRANK
                                 ": not set or beyond the %u ranks of the board",
                                 m->head->lrank_count);
    m->wire.bytes_per_s = m->head->wire_bytes_per_s;
    m->wire.latency_ns = m->head->wire_latency_ns;
    m->wire.overhead_ns = m->head->message_overhead_ns;
    m->is_timed = m->head->mode == CRYSTAL_BOARD_TIMED;
    if (!memchr(m->head->graph_path, 0, sizeof m->head->graph_path))
        return crystal_error_set(err, EINVAL, "board '%s': graph path has no end",
                                 path);
    if (m->head->graph_path[0]) {
        m->graph = crystal_graph_open(m->head->graph_path, err);
        if (!m->graph)
            return -err->code;
        if (m->head->payload_all && m->lrank < crystal_graph_lrank_count(m->graph))
            m->prefetch = crystal_prefetch_create(m->graph, m->lrank,
                                                  CRYSTAL_PREFETCH_BYTES, err);
        if (m->head->payload_all && !m->prefetch)
            return err->code ? -err->code : -EINVAL;
    }
    return 0;
}

static int copiers_init(struct crystal_net_module *m, struct crystal_error *err)
{
    unsigned count;

    if (crystal_net_read_copiers(&count, err))
        return -err->code;
    m->copiers = count ? crystal_copiers_create(count) : NULL;
    if (count && !m->copiers)
        return crystal_error_set(err, ENOMEM, "out of memory for the net plugin");
    return 0;
}

static int assistant_find(struct crystal_net_module *m, struct crystal_error *err)
{
    int found =
        m->board ? crystal_places_assistant(crystal_board_directory(m->board), m->lrank,
                                            &m->assistant, m->assistant_token, err)
                 : 0;

    m->has_assistant = found > 0;
    return found < 0 ? found : 0;
}

static int module_init(struct crystal_net_module *m, struct crystal_error *err)
{
    const char *run_dir = getenv(CRYSTAL_ENV_RUN_DIR);
    const char *messages = getenv(CRYSTAL_ENV_MESSAGES);
    const char *backend = getenv(CRYSTAL_ENV_NET_BACKEND);

    if (crystal_net_read_lrank(&m->lrank, err) || board_read(m, err) ||
        assistant_find(m, err))
        return -err->code;
    if (crystal_net_read_choice(CRYSTAL_ENV_VALUES, "off", "on", &m->is_valueless,
                                err) ||
        crystal_net_read_choice(CRYSTAL_ENV_BUFFERS, "gpu", "host", &m->has_device,
                                err) ||
        crystal_net_read_choice(CRYSTAL_ENV_REPEAT, "last", "same", &m->repeats_last,
                                err) ||
        crystal_net_read_choice(CRYSTAL_ENV_SHARE, "1", "0", &m->is_sharing, err))
        return -err->code;
    if (crystal_net_read_nics(&m->nic_count, err))
        return -err->code;
    if (crystal_net_read_pci(m->nic_paths, m->nic_count, err))
        return -err->code;
    if (backend && *backend && !(m->backend = crystal_backend_open(backend, err)))
        return -err->code;
    for (unsigned i = 0; i < CRYSTAL_NICS_MAX; i++)
        (void)pthread_mutex_init(&m->links[i].lock, NULL); /* cannot fail on Linux */
    m->rooms = crystal_rooms_create(NULL, NULL);
    if (copiers_init(m, err))
        return -err->code;
    if (!m->rooms)
        return crystal_error_set(err, ENOMEM, "out of memory for the net plugin");
    if (run_dir && *run_dir && m->lrank != UINT32_MAX) {
        m->run = crystal_run_writer_create(
            run_dir, m->lrank, m->graph ? crystal_graph_fingerprint(m->graph) : 0, err);
        if (!m->run)
            return -err->code;
    }
    if (messages && *messages && m->lrank != UINT32_MAX) {
        m->messages = crystal_messages_create(messages, m->lrank, err);
        if (!m->messages)
            return -err->code;
    }
    return 0;
}

struct crystal_net_module *crystal_net_module_get(struct crystal_error *err)
{
    struct crystal_net_module *module;

    (void)pthread_mutex_lock(&self.lock);
    if (!self.is_tried) {
        self.is_tried = 1;
        if (module_init(&self.module, &self.err))
            crystal_log(CRYSTAL_LOG_ERROR, "net", "%s", crystal_error_text(&self.err));
    }
    module = self.err.code ? NULL : &self.module;
    if (!module && err)
        *err = self.err;
    (void)pthread_mutex_unlock(&self.lock);
    return module;
}

static struct crystal_net_comm *comm_make(uint32_t index, struct crystal_error *err)
{
    struct crystal_net_comm *comm = calloc(1, sizeof *comm);

    if (!comm) {
        (void)crystal_error_set(err, ENOMEM, "out of memory for a communicator");
        return NULL;
    }
    comm->index = index;
    (void)pthread_mutex_init(&comm->lock, NULL); /* cannot fail on Linux */
    atomic_store(&self.comms[index], comm);
    return comm;
}

/* The one with this id that is in use, else one that nobody uses. */
static struct crystal_net_comm *comm_choose(uint64_t comm_id, uint32_t crank,
                                            struct crystal_error *err)
{
    struct crystal_net_comm *free_comm = NULL;

    for (uint32_t i = 0; i < CRYSTAL_NET_COMMS; i++) {
        struct crystal_net_comm *comm = atomic_load(&self.comms[i]);

        if (!comm)
            return free_comm ? free_comm : comm_make(i, err);
        if (comm->users && comm->comm_id == comm_id &&
            (crank == CRYSTAL_CRANK_UNKNOWN || comm->crank == CRYSTAL_CRANK_UNKNOWN ||
             comm->crank == crank))
            return comm;
        if (!comm->users && !free_comm)
            free_comm = comm;
    }
    if (!free_comm)
        (void)crystal_error_set(err, ENOSPC,
                                "more than %d communicators in one process",
                                CRYSTAL_NET_COMMS);
    return free_comm;
}

struct crystal_net_comm *crystal_net_comm_get(struct crystal_net_module *module,
                                              uint64_t comm_id, uint32_t crank,
                                              struct crystal_error *err)
{
    struct crystal_net_comm *comm;

    (void)pthread_mutex_lock(&self.lock);
    comm = comm_choose(comm_id, crank, err);
    if (comm && !comm->users++) {
        comm->module = module;
        comm->comm_id = comm_id;
        comm->nranks = 0;
        comm->crank = CRYSTAL_CRANK_UNKNOWN;
        atomic_store(&comm->board, NULL);
        atomic_store(&comm->missed_ns, 0);
        atomic_store(&comm->is_plain, 0);
    }
    (void)pthread_mutex_unlock(&self.lock);
    return comm;
}

int crystal_net_comm_set(struct crystal_net_comm *comm, uint32_t nranks, uint32_t crank,
                         struct crystal_error *err)
{
    int code = 0;

    (void)pthread_mutex_lock(&self.lock);
    if (comm->ops.calls && (comm->nranks != nranks || comm->crank != crank))
        code = crystal_error_set(err, EINVAL,
                                 "communicator %016llx: rank %u of %u, and before that "
                                 "rank %u of %u",
                                 (unsigned long long)comm->comm_id, crank, nranks,
                                 comm->crank, comm->nranks);
    else if (!comm->ops.calls)
        code = crystal_ops_init(&comm->ops, nranks);
    if (code == -ENOMEM)
        (void)crystal_error_set(err, ENOMEM, "out of memory for events");
    if (!code) {
        comm->nranks = nranks;
        comm->crank = crank;
    }
    (void)pthread_mutex_unlock(&self.lock);
    if (!code)
        crystal_net_note(comm, CRYSTAL_ROLL_JOINED, crank);
    return code;
}

void crystal_net_note(const struct crystal_net_comm *comm, enum crystal_roll_kind kind,
                      uint32_t crank)
{
    struct crystal_net_module *module = comm->module;

    if (!module->board)
        return;
    if (kind == CRYSTAL_ROLL_PARTED)
        (void)crystal_net_abort_check(module); /* then that is why */
    crystal_roll_write(crystal_board_directory(module->board), kind, module->lrank,
                       comm->comm_id, crank);
}

/* What it knows from the board. */
static void comm_forget(struct crystal_net_comm *comm)
{
    crystal_lines_destroy(comm->lines);
    comm->lines = NULL;
    crystal_rings_destroy(comm->rings);
    comm->rings = NULL;
    crystal_trees_destroy(comm->trees);
    comm->trees = NULL;
    crystal_pats_destroy(comm->pats);
    comm->pats = NULL;
    crystal_payload_fini(comm);
    free((void *)comm->pairs);
    comm->pairs = NULL;
}

void crystal_net_comm_put(struct crystal_net_comm *comm)
{
    (void)pthread_mutex_lock(&self.lock);
    if (--comm->users == 0) {
        crystal_messages_flush(comm->module->messages);
        crystal_ops_fini(&comm->ops);
        comm_forget(comm);
        atomic_store(&comm->board, NULL);
    }
    (void)pthread_mutex_unlock(&self.lock);
}

int crystal_net_comm_with(uint64_t comm_id,
                          int (*action)(struct crystal_net_comm *comm, void *user,
                                        struct crystal_error *err),
                          void *user, struct crystal_error *err)
{
    int code = -ENOENT;

    (void)pthread_mutex_lock(&self.lock);
    for (uint32_t i = 0; i < CRYSTAL_NET_COMMS && code == -ENOENT; i++) {
        struct crystal_net_comm *comm = atomic_load(&self.comms[i]);

        if (!comm)
            break;
        if (comm->users && comm->comm_id == comm_id && atomic_load(&comm->board))
            code = action(comm, user, err);
    }
    (void)pthread_mutex_unlock(&self.lock);
    return code;
}

struct crystal_net_comm *crystal_net_comm_at(uint32_t index)
{
    return index < CRYSTAL_NET_COMMS ? atomic_load(&self.comms[index]) : NULL;
}

/* This process's crank among the members. */
static int crank_find(struct crystal_net_comm *comm, struct crystal_board_comm *entry,
                      struct crystal_error *err)
{
    const uint32_t crank =
        crystal_board_crank(comm->module->board, entry, comm->module->lrank);

    if (crank == UINT32_MAX ||
        !crystal_board_is_real(comm->module->board, entry)[crank])
        return crystal_error_set(
            err, EINVAL,
            "communicator '%s': rank %u is not a real member of it "
            "on the board",
            entry->name, comm->module->lrank);
    if ((comm->nranks && comm->nranks != entry->nranks) ||
        (comm->crank != CRYSTAL_CRANK_UNKNOWN && comm->crank != crank))
        return crystal_error_set(
            err, EINVAL,
            "communicator '%s': NCCL says %u of %u, the board says "
            "%u of %u",
            entry->name, comm->crank, comm->nranks, crank, entry->nranks);
    comm->nranks = entry->nranks;
    comm->crank = crank;
    return 0;
}

static int comm_resolve_locked(struct crystal_net_comm *comm, struct crystal_error *err)
{
    struct crystal_board_comm *entry;
    int code;

    if (atomic_load(&comm->board))
        return 1;
    entry = crystal_board_comm_find(comm->module->board, comm->comm_id);
    if (!entry)
        return 0;
    code = crank_find(comm, entry, err);
    if (!code)
        code = crystal_payload_init(comm, entry, err);
    if (code)
        return code;
    comm->rings = crystal_rings_create(comm, entry, err);
    comm->lines = crystal_lines_create(comm, err);
    comm->pairs = calloc(2 * (size_t)entry->nranks, sizeof *comm->pairs);
    if (!comm->rings || !comm->lines || !comm->pairs)
        goto err_free;
    if (entry->real_count > 1 && crystal_feed_listen(comm->module, err))
        goto err_free;
    atomic_store(&comm->board, entry);
    return 1;

err_free:
    code = err->code
               ? -err->code
               : crystal_error_set(err, ENOMEM, "out of memory for a communicator");
    comm_forget(comm);
    return code;
}

int crystal_net_comm_resolve(struct crystal_net_comm *comm, struct crystal_error *err)
{
    int code;

    if (!comm->module->board)
        return 0;
    if (atomic_load_explicit(&comm->board, memory_order_acquire))
        return 1;
    (void)pthread_mutex_lock(&self.lock);
    code = comm_resolve_locked(comm, err);
    (void)pthread_mutex_unlock(&self.lock);
    return code;
}

static void note_stopped(struct crystal_net_module *module)
{
    if (!atomic_exchange(&module->stop_noted, 1))
        crystal_roll_write(crystal_board_directory(module->board), CRYSTAL_ROLL_STOPPED,
                           module->lrank, 0, 0);
}

void crystal_net_stop(struct crystal_net_module *module, const char *format, ...)
{
    char text[sizeof module->head->abort_text];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args); /* cut, as the board would */
    va_end(args);
    note_stopped(module);
    crystal_board_abort(module->board, "%s", text);
}

int crystal_net_abort_check(struct crystal_net_module *module)
{
    if (!module->head ||
        !atomic_load_explicit(&module->head->abort_flag, memory_order_acquire))
        return 0;
    if (!atomic_exchange(&module->abort_told, 1)) {
        note_stopped(module);
        crystal_log(CRYSTAL_LOG_ERROR, "net", "%.*s",
                    (int)sizeof module->head->abort_text, module->head->abort_text);
    }
    return -ECANCELED;
}
