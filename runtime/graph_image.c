/* The bytes of job.graph, made in memory or, where they are many, in a file. See
 * graph_file.h.
 */
#include "config.h"

#include "runtime/graph_build_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct image {
    unsigned char *bytes; /* NULL while only measuring */
    size_t used;
};

/* Begins a section and gives its place, or NULL while measuring. */
static void *place(struct image *m, uint64_t count, size_t element_bytes)
{
    m->used = (m->used + 15) & ~(size_t)15;
    m->used += (size_t)count * element_bytes;
    return m->bytes ? m->bytes + m->used - (size_t)count * element_bytes : NULL;
}

static void put(struct image *m, const void *data, uint64_t count, size_t element_bytes)
{
    void *to = place(m, count, element_bytes);

    if (to && count)
        memcpy(to, data, (size_t)count * element_bytes);
}

static void put_comms(const struct crystal_graph_build *b, struct image *m)
{
    uint32_t *members = place(m, b->head.member_count, sizeof *members);
    char *names = place(m, b->head.name_bytes, 1);

    for (uint32_t i = 0; m->bytes && i < b->comms.count; i++) {
        const struct crystal_graph_entry *e = &b->comms.entries[i];

        memcpy(members, e->members, e->nranks * sizeof *members);
        members += e->nranks;
        if (e->name)
            names = (char *)memcpy(names, e->name, strlen(e->name) + 1) +
                    strlen(e->name) + 1;
    }
}

static void put_all(const struct crystal_graph_build *b, struct image *m)
{
    const struct crystal_graph_head *h = &b->head;
    struct crystal_op *ops;
    uint64_t *marks;
    unsigned char *payload;

    put(m, h, 1, sizeof *h);
    put(m, b->reps, h->rep_count, sizeof *b->reps);
    put(m, b->ranks, h->lrank_count, sizeof *b->ranks);
    put(m, b->sets, h->comm_count, sizeof *b->sets);
    put(m, b->locals, h->local_count, sizeof *b->locals);
    put(m, b->colls, h->coll_count, sizeof *b->colls);
    put(m, b->sends, h->send_count, sizeof *b->sends);
    ops = place(m, h->op_count, sizeof *ops);
    marks = place(m, h->mark_count, sizeof *marks);
    put(m, b->map, h->map_count, sizeof *b->map);
    put_comms(b, m);
    payload = place(m, h->payload_bytes, 1);
    for (uint32_t r = 0; m->bytes && r < h->rep_count; r++) {
        const struct crystal_graph_source *s = &b->sources[r];

        memcpy(ops, s->trace.ops, s->trace.op_count * sizeof *ops);
        ops += s->trace.op_count;
        if (s->mark_count)
            memcpy(marks, s->marks, s->mark_count * sizeof *marks);
        marks += s->mark_count;
        if (s->payload.body_bytes)
            memcpy(payload, s->payload.body, s->payload.body_bytes);
        payload += graph_aligned(s->payload.body_bytes);
    }
}

#define IMAGE_IN_MEMORY ((size_t)64 << 20)

/* Zeroed room for the image. With recorded bulk payload it may exceed memory: then it
 * is a file without a name beside path. Freed with munmap. */
static int image_alloc(const char *path, size_t bytes, void **ret,
                       struct crystal_error *err)
{
    const int is_file = bytes > IMAGE_IN_MEMORY;
    char temporary[PATH_MAX];
    int fd = -1, code = 0;

    if (is_file) {
        if (snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >=
            (int)sizeof temporary)
            return crystal_error_set(err, ENAMETOOLONG, "%s: path too long", path);
        fd = mkostemp(temporary, O_CLOEXEC);
        if (fd < 0)
            return crystal_error_set(err, errno, "%s: %s", temporary, strerror(errno));
        (void)unlink(temporary);                     /* its pages live as long as fd */
        code = posix_fallocate(fd, 0, (off_t)bytes); /* a full disk is an error here */
    }
    if (!code) {
        *ret = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    is_file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
        code = *ret == MAP_FAILED ? errno : 0;
    }
    if (fd >= 0)
        (void)close(fd); /* the mapping stays */
    return code ? crystal_error_set(err, code, "%s: room for %zu bytes: %s", path,
                                    bytes, strerror(code))
                : 0;
}

static bool has_kernels(const struct crystal_graph_build *b)
{
    for (uint32_t r = 0; r < b->head.rep_count; r++)
        for (uint64_t i = 0; i < b->sources[r].trace.op_count; i++)
            if (b->sources[r].trace.ops[i].kind == CRYSTAL_OP_KERNEL)
                return true;
    return false;
}

int graph_image_write(struct crystal_graph_build *b, const char *path,
                      struct crystal_error *err)
{
    struct image m = {NULL, 0};
    void *room;
    size_t bytes;
    struct crystal_filehead head;
    uint64_t parent = 0;
    int code = 0;

    code =
        graph_identify(b->job_dir, b->layout.live, b->layout.live_count, &parent, err);
    if (code)
        return code;
    put_all(b, &m);
    bytes = m.used;
    code = image_alloc(path, bytes, &room, err);
    if (code)
        return code;
    m.bytes = room;
    m.used = 0;
    put_all(b, &m);
    crystal_filehead_init(
        &head, CRYSTAL_GRAPH_MAGIC,
        CRYSTAL_GRAPH_VERSION_HASHED +
            (has_kernels(b) ? CRYSTAL_GRAPH_VERSION_DEVICE : CRYSTAL_GRAPH_VERSION),
        parent, b->layout.fingerprint, 0);
    crystal_filehead_ask_hash(&head);
    code = crystal_file_write(path, &head, m.bytes, m.used, err);
    (void)munmap(room, bytes); /* cannot fail for our own mapping */
    return code;
}
