/* See import.h: the files, and the graph of all of them. */
#include "config.h"

#include "runtime/import_trace.h"

#include "runtime/infile.h"

#include <errno.h>
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

static int trace_error(const char *path, int code, struct crystal_error *err)
{
    if (code == -EPROTO)
        return crystal_error_set(
            err, EPROTO,
            "%s: a collective's process group is not among the ranks given (or not "
            "written out); give the traces of all ranks, of PyTorch 2.2 or later",
            path);
    return crystal_error_set(err, -code, "%s: %s", path,
                             code == -ENOMEM ? "out of memory"
                                             : "no trace of the PyTorch profiler");
}

static int import_write(struct import *m, const struct crystal_graph_network *network,
                        const char *const *paths, const char *graph_path,
                        struct crystal_error *err)
{
    struct crystal_graph_writer *w = crystal_graph_writer_create(m->rank_count);
    int code = w ? 0 : crystal_error_set(err, ENOMEM, "out of memory");

    if (!code && network)
        crystal_graph_writer_network(w, network);
    for (uint32_t i = 0; !code && i < m->group_count; i++)
        (void)crystal_graph_writer_comm(w, NULL, m->groups[i].count,
                                        m->groups[i].members);
    for (uint32_t i = 0; !code && i < m->rank_count; i++) {
        int bad = import_rank_write(m, &m->ranks[i], w);

        if (bad)
            code = trace_error(paths[i], bad, err);
    }
    for (uint32_t i = 0; !code && i < m->rank_count; i++)
        crystal_graph_writer_rank(w, m->ranks[i].lrank, i, m->ranks[i].locals);
    if (!code)
        code = crystal_graph_writer_write(w, graph_path, 0, err);
    crystal_graph_writer_destroy(w);
    return code;
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

int crystal_import_kineto(const char *const *paths, uint32_t count,
                          const struct crystal_graph_network *network,
                          const char *graph_path, struct crystal_error *err)
{
    struct import m = {.rank_count = count};
    int code = 0;

    m.ranks = calloc(count ? count : 1, sizeof *m.ranks);
    if (!m.ranks || !count)
        code = crystal_error_set(err, count ? ENOMEM : EINVAL,
                                 count ? "out of memory" : "no traces");
    for (uint32_t i = 0; !code && i < count; i++) {
        int bad;

        m.ranks[i].lrank = i;
        code = file_map(paths[i], &m.ranks[i], err);
        if (code)
            break;
        bad = import_kineto_read(&m, &m.ranks[i]);
        if (bad)
            code = trace_error(paths[i], bad, err);
    }
    if (!code)
        code = ranks_check(&m, paths, err);
    for (uint32_t i = 0; !code && i < count; i++) {
        int bad;

        bad = import_order(&m.ranks[i]);
        if (!bad)
            bad = import_locals_make(&m, &m.ranks[i]);
        if (bad)
            code = trace_error(paths[i], bad, err);
    }
    if (!code)
        code = import_write(&m, network, paths, graph_path, err);
    for (uint32_t i = 0; m.ranks && i < count; i++) {
        if (m.ranks[i].text)
            (void)munmap((void *)(uintptr_t)m.ranks[i].text, m.ranks[i].bytes);
        free(m.ranks[i].events);
        free(m.ranks[i].launches);
        free(m.ranks[i].locals);
    }
    for (uint32_t i = 0; i < m.group_count; i++)
        free(m.groups[i].members);
    free(m.groups);
    free(m.ranks);
    return code;
}
