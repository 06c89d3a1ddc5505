/* See import.h: the files, and the graph of all of them. */
#include "config.h"

#include "runtime/import_trace.h"

#include "runtime/infile.h"
#include "runtime/parallel.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int file_map(const char *path, struct import_rank *r, struct crystal_error *err)
{
    uint64_t bytes;
    int fd = crystal_infile_open(path, &bytes, err);
    void *text = MAP_FAILED;

    if (fd < 0)
        return fd;
    if (bytes)
        text = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    (void)close(fd); /* the mapping stays */
    if (text == MAP_FAILED)
        return crystal_error_set(err, EINVAL, "%s: %s", path,
                                 bytes ? "cannot be mapped" : "empty");
    r->text = text;
    r->bytes = (size_t)bytes;
    return 0;
}

/* PyTorch's ExecutionTraceObserver, too, calls what it writes a Chakra trace: its first
 * key is a schema, the profiler's are others. */
static bool is_observed(const struct import_rank *r)
{
    static const char key[] = "\"schema\"";
    size_t i = 0;

    while (i < r->bytes && strchr(" \t\r\n{", r->text[i]) && r->text[i])
        i++;
    return r->bytes - i >= sizeof key && memcmp(r->text + i, key, sizeof key - 1) == 0;
}

static int trace_error(const char *path, int code, struct crystal_error *err)
{
    if (code == -ENODATA)
        return crystal_error_set(
            err, EINVAL,
            "%s: of PyTorch's ExecutionTraceObserver, which tells no times; give the "
            "profiler's trace of the same step, or what chakra_converter makes of both",
            path);
    if (code == -ENOTSUP)
        return crystal_error_set(
            err, EINVAL,
            "%s: a collective does not tell its comm_type; convert "
            "the trace with a chakra_converter that writes it",
            path);
    if (code == -ELOOP)
        return crystal_error_set(err, ELOOP, "%s: its nodes wait for each other", path);
    if (code == -EPROTO || code == IMPORT_OTHER_RANK)
        return crystal_error_set(err, EPROTO,
                                 "%s: a process group is not among the ranks given (or "
                                 "not written out); give "
                                 "the traces of all ranks, of PyTorch 2.2 or later, "
                                 "or, of Chakra, its groups "
                                 "with --groups",
                                 path);
    return crystal_error_set(err, -code, "%s: %s", path,
                             code == -ENOMEM
                                 ? "out of memory"
                                 : "neither a trace of the PyTorch profiler "
                                   "nor a Chakra execution trace");
}

/* Each rank once. */
static int ranks_check(const struct import *m, const char *const *paths,
                       struct crystal_error *err)
{
    for (uint32_t i = 0; i < m->rank_count; i++) {
        if (m->ranks[i].lrank >= m->rank_count)
            return crystal_error_set(err, EINVAL,
                                     "%s: is of rank %u, but there are only %u traces; "
                                     "give those of all ranks",
                                     paths[i], m->ranks[i].lrank, m->rank_count);
        for (uint32_t k = 0; k < i; k++)
            if (m->ranks[k].lrank == m->ranks[i].lrank)
                return crystal_error_set(err, EINVAL, "%s and %s: both are of rank %u",
                                         paths[k], paths[i], m->ranks[i].lrank);
    }
    return 0;
}

/* PREFIX.RANK.et: the rank, and where PREFIX ends. */
static const char *prefix_end(const char *path, uint32_t *ret_lrank)
{
    size_t bytes = strlen(path), at = bytes < 3 ? 0 : bytes - 3;
    uint64_t lrank = 0, unit = 1;

    if (bytes < 3 || strcmp(path + at, ".et") != 0)
        return NULL;
    for (; at && path[at - 1] >= '0' && path[at - 1] <= '9' && unit < UINT32_MAX;
         at--) {
        lrank += unit * (uint64_t)(path[at - 1] - '0');
        unit *= 10;
    }
    if (unit == 1 || !at || path[at - 1] != '.' || lrank >= UINT32_MAX)
        return NULL;
    *ret_lrank = (uint32_t)lrank;
    return path + at - 1;
}

/* JSON begins with a bracket, a Chakra trace with the length of a short message. */
static bool is_json(const struct import_rank *r)
{
    size_t i = 0;

    while (i < r->bytes && strchr(" \t\r\n", r->text[i]) && r->text[i])
        i++;
    return i < r->bytes && r->text[i] == '{' &&
           (i || r->bytes < 2 || r->text[1] != 0x0a); /* version string: field 1 */
}

/* The groups of Chakra traces: the file given, or the one beside the first trace. */
static int groups_open(struct import *m, const char *given, const char *first,
                       struct crystal_error *err)
{
    struct import_rank file = {.text = NULL};
    char beside[PATH_MAX];
    uint32_t lrank;
    const char *end = prefix_end(first, &lrank);
    int code;

    if (!given) {
        if (!end ||
            snprintf(beside, sizeof beside, "%.*s.json", (int)(end - first), first) >=
                (int)sizeof beside ||
            access(beside, F_OK) < 0)
            return 0;
        given = beside;
    }
    code = file_map(given, &file, err);
    if (code)
        return code;
    code = import_named_read(m, file.text, file.bytes);
    for (uint32_t i = 0; !code && i < m->named.count; i++) {
        struct import_group group = m->named.rows[i];

        group.is_owner = false;
        code = import_group_add(&m->groups, &group) == IMPORT_NONE ? -ENOMEM : 0;
    }
    (void)munmap((void *)(uintptr_t)file.text, file.bytes);
    if (code)
        return crystal_error_set(err, -code, "%s: %s", given,
                                 code == -ENOMEM ? "out of memory"
                                 : code == -EPROTO
                                     ? "names a rank without a trace"
                                     : "no {\"GROUP\": [RANK, ...], ...}");
    return 0;
}

static int rank_read(const struct import *m, struct import_rank *r)
{
    if (is_observed(r))
        return -ENODATA;
    return is_json(r) ? import_kineto_read(m, r) : import_chakra_read(m, r);
}

/* What threads share that read ranks. */
struct reading {
    struct import *m;
    pthread_mutex_t lock;
    pthread_cond_t turn;
    uint32_t next;   /* rank to be put */
    bool has_failed; /* none is put any more */
};

/* The failure of another rank ends all but those before it, which are being read. */
static int rank_end(struct reading *reading, uint32_t index, int code)
{
    struct import_rank *r = &reading->m->ranks[index];

    (void)pthread_mutex_lock(&reading->lock);
    while (!code && !reading->has_failed && reading->next != index)
        (void)pthread_cond_wait(&reading->turn, &reading->lock);
    if (!code && !reading->has_failed)
        code = import_rank_put(reading->m, r);
    reading->has_failed |= code != 0;
    reading->next = index + 1;
    (void)pthread_cond_broadcast(&reading->turn);
    (void)pthread_mutex_unlock(&reading->lock);
    return code;
}

/* Ranks first .. end - 1. */
static int ranks_read(void *context, uint32_t first, uint32_t end)
{
    struct reading *reading = context;
    int code = 0;

    for (uint32_t i = first; !code && i < end; i++) {
        code = rank_read(reading->m, &reading->m->ranks[i]);
        code = rank_end(reading, i, code);
        reading->m->ranks[i].code = code;
    }
    return code == IMPORT_OTHER_RANK ? 0 : code;
}

/* The first that failed, as it would be without threads: those before it have been
 * read. */
static int failure(const struct import *m, const char *const *paths, bool is_of_rank,
                   struct crystal_error *err)
{
    for (uint32_t i = 0; i < m->rank_count; i++)
        if (m->ranks[i].code && (m->ranks[i].code == IMPORT_OTHER_RANK) == is_of_rank)
            return trace_error(paths[i], m->ranks[i].code, err);
    return 0;
}

static int traces_read(struct import *m, const char *const *paths,
                       struct crystal_error *err)
{
    struct reading reading = {
        .m = m, .lock = PTHREAD_MUTEX_INITIALIZER, .turn = PTHREAD_COND_INITIALIZER};
    int code = 0;

    for (uint32_t i = 0; !code && i < m->rank_count; i++) {
        m->ranks[i].lrank = i;
        (void)prefix_end(paths[i], &m->ranks[i].lrank);
        code = file_map(paths[i], &m->ranks[i], err);
    }
    if (code)
        return code;
    (void)crystal_parallel(crystal_parallel_processors(), m->rank_count, 1, ranks_read,
                           &reading); /* the ranks have the codes */
    code = failure(m, paths, false, err);
    if (!code)
        code = ranks_check(m, paths, err);
    return code ? code : failure(m, paths, true, err);
}

static int import_init(struct import *m, uint32_t count, struct crystal_error *err)
{
    *m = (struct import){.rank_count = count};
    if (!count)
        return crystal_error_set(err, EINVAL, "no traces");
    m->ranks = calloc(count, sizeof *m->ranks);
    m->everyone = malloc(count * sizeof *m->everyone);
    m->writer = crystal_graph_writer_create(count);
    if (!m->ranks || !m->everyone || !m->writer)
        return crystal_error_set(err, ENOMEM, "out of memory");
    for (uint32_t i = 0; i < count; i++)
        m->everyone[i] = i;
    return 0;
}

static void import_fini(struct import *m)
{
    for (uint32_t i = 0; m->ranks && i < m->rank_count; i++) {
        import_rank_drop(&m->ranks[i]);
        free(m->ranks[i].locals);
    }
    crystal_graph_writer_destroy(m->writer);
    import_groups_fini(&m->groups);
    import_groups_fini(&m->named);
    free(m->everyone);
    free(m->ranks);
}

int crystal_import_traces(const char *const *paths, uint32_t count,
                          const char *groups_path,
                          const struct crystal_graph_network *network,
                          const char *graph_path, struct crystal_error *err)
{
    struct import m;
    int code = import_init(&m, count, err);

    if (!code)
        code = groups_open(&m, groups_path, paths[0], err);
    if (!code)
        code = traces_read(&m, paths, err);
    if (!code)
        code = import_write(&m, network, graph_path, err);
    import_fini(&m);
    return code;
}
