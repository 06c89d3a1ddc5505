/* Reading and writing the files of a job directory. See filehead.h for the bytes. */
#include "config.h"

#include "runtime/filehead.h"

#include "runtime/infile.h"
#include "runtime/outfile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <xxhash.h>

_Static_assert(sizeof(struct crystal_filehead) == 64, "frozen");

#define PIECE_BYTES (1U << 20) /* of a file that is read piece by piece */

uint64_t crystal_hash(const void *bytes, size_t count)
{
    uint64_t hash = XXH3_64bits(bytes, count);

    return hash ? hash : 1;
}

/* pread of all of count bytes; a file that ends before them is -ENODATA. */
static int read_at(int fd, void *bytes, size_t count, uint64_t offset, const char *path,
                   struct crystal_error *err)
{
    char *next = bytes;

    while (count) {
        ssize_t got = pread(fd, next, count, (off_t)offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
        if (got == 0)
            return crystal_error_set(err, ENODATA, "%s: was cut while it was read",
                                     path);
        next += got;
        offset += (uint64_t)got;
        count -= (size_t)got;
    }
    return 0;
}

int crystal_file_hash(int fd, uint64_t first, uint64_t end, const char *path,
                      uint64_t *ret_hash, struct crystal_error *err)
{
    XXH3_state_t *state = XXH3_createState();
    char *piece = malloc(PIECE_BYTES);
    uint64_t hash;
    int code = 0;

    if (!state || !piece || XXH3_64bits_reset(state) == XXH_ERROR)
        code = crystal_error_set(err, ENOMEM, "%s: out of memory", path);
    while (!code && first < end) {
        size_t count = end - first < PIECE_BYTES ? (size_t)(end - first) : PIECE_BYTES;

        code = read_at(fd, piece, count, first, path, err);
        if (!code)
            (void)XXH3_64bits_update(state, piece, count); /* fails for NULL alone */
        first += count;
    }
    if (!code) {
        hash = XXH3_64bits_digest(state);
        *ret_hash = hash ? hash : 1;
    }
    free(piece);
    (void)XXH3_freeState(state); /* always XXH_OK */
    return code;
}

void crystal_filehead_init(struct crystal_filehead *h, const char *magic,
                           uint32_t version, uint64_t parent_hash, uint64_t fingerprint,
                           uint64_t lrank)
{
    memset(h, 0, sizeof *h);
    memcpy(h->magic, magic, sizeof h->magic);
    h->version = version;
    h->byte_order = CRYSTAL_BYTE_ORDER;
    h->parent_hash = parent_hash;
    h->fingerprint = fingerprint;
    h->lrank = lrank;
}

void crystal_filehead_ask_hash(struct crystal_filehead *h)
{
    h->head_hash = 1; /* until the file is written */
}

static uint64_t hash_head(const struct crystal_filehead *h)
{
    return crystal_hash(h, offsetof(struct crystal_filehead, head_hash));
}

int crystal_filehead_check(const struct crystal_filehead *h, const char *magic,
                           uint32_t version, uint64_t have_bytes, const char *path,
                           struct crystal_error *err)
{
    if (have_bytes < sizeof *h)
        return crystal_error_set(err, EINVAL,
                                 "%s: only %llu bytes, the header has 64; "
                                 "run the stage that writes it again",
                                 path, (unsigned long long)have_bytes);
    if (memcmp(h->magic, magic, sizeof h->magic) != 0)
        return crystal_error_set(err, EINVAL, "%s: not a %.8s file", path, magic);
    if (h->byte_order != CRYSTAL_BYTE_ORDER)
        return crystal_error_set(err, EINVAL,
                                 "%s: written on a machine of other byte order; "
                                 "run the stage again here",
                                 path);
    if (h->version != version)
        return crystal_error_set(err, EINVAL,
                                 "%s: format version %u, this crystal reads %u; "
                                 "run the stage again",
                                 path, h->version, version);
    if (h->file_bytes && h->file_bytes != have_bytes)
        return crystal_error_set(err, EINVAL,
                                 "%s: %llu bytes, should have %llu; "
                                 "run the stage that writes it again",
                                 path, (unsigned long long)have_bytes,
                                 (unsigned long long)h->file_bytes);
    if (h->head_hash && h->head_hash != hash_head(h))
        return crystal_error_set(err, EINVAL,
                                 "%s: its header does not match its checksum; "
                                 "run the stage that writes it again",
                                 path);
    return 0;
}

int crystal_file_write(const char *path, struct crystal_filehead *h, const void *body,
                       size_t body_bytes, struct crystal_error *err)
{
    struct crystal_outfile f;
    int code = crystal_outfile_open(&f, path, CRYSTAL_OUTFILE_PRIVATE, err);

    if (code)
        return code;
    h->file_bytes = sizeof *h + body_bytes;
    h->body_hash = crystal_hash(body, body_bytes);
    if (h->head_hash)
        h->head_hash = hash_head(h);
    if (fwrite(h, sizeof *h, 1, f.stream) != 1 ||
        fwrite(body, 1, body_bytes, f.stream) != body_bytes)
        code = crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
    return crystal_outfile_close(&f, code, err);
}

/* Maps a file, or memory with its bytes where it has holes: reading a hole through a
 * mapping takes room of a tmpfs, and ends the process (SIGBUS) where there is none.
 * NULL on failure. */
static void *map_bytes(int fd, uint64_t bytes, const char *path,
                       struct crystal_error *err)
{
    off_t hole = lseek(fd, 0, SEEK_HOLE); /* the end of the file where there is none */
    int has_holes = hole >= 0 && (uint64_t)hole < bytes;
    void *map = has_holes ? mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                          : mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);

    if (map == MAP_FAILED) {
        (void)crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
        return NULL;
    }
    if (has_holes && read_at(fd, map, (size_t)bytes, 0, path, err)) {
        (void)munmap(map, (size_t)bytes); /* cannot fail for our own mapping */
        return NULL;
    }
    return map;
}

int crystal_file_map(const char *path, const char *magic, uint32_t version,
                     struct crystal_file_view *ret_view, struct crystal_error *err)
{
    struct crystal_file_view view;
    uint64_t bytes;
    void *map;
    int code, fd = crystal_infile_open(path, &bytes, err);

    if (fd < 0)
        return fd;
    if (bytes < sizeof(struct crystal_filehead)) {
        code = crystal_error_set(err, EINVAL,
                                 "%s: too short to be a %.8s file; "
                                 "run the stage that writes it again",
                                 path, magic);
        goto err_close;
    }
    map = map_bytes(fd, bytes, path, err);
    if (!map) {
        code = -EIO;
        goto err_close;
    }
    view.head = map;
    view.body = (const char *)map + sizeof *view.head;
    view.body_bytes = (size_t)bytes - sizeof *view.head;
    code = crystal_filehead_check(view.head, magic, version, bytes, path, err);
    if (!code && !view.head->file_bytes)
        code = crystal_error_set(
            err, EINVAL, "%s: never finished; run the stage that writes it again",
            path);
    if (!code && crystal_hash(view.body, view.body_bytes) != view.head->body_hash)
        code = crystal_error_set(err, EINVAL,
                                 "%s: contents do not match their checksum; "
                                 "run the stage that writes it again",
                                 path);
    if (code) {
        crystal_file_unmap(&view);
        goto err_close;
    }
    (void)close(fd); /* the mapping stays */
    *ret_view = view;
    return 0;

err_close:
    (void)close(fd); /* read-only, nothing to lose */
    return code;
}

void crystal_file_unmap(struct crystal_file_view *view)
{
    if (view && view->head)
        (void)munmap((void *)(uintptr_t)view->head,
                     view->body_bytes + sizeof *view->head);
    if (view)
        memset(view, 0, sizeof *view);
}

uint32_t crystal_filehead_version(const char *path)
{
    struct crystal_filehead head = {.version = 0};
    int fd = crystal_infile_open(path, NULL, NULL);

    if (fd < 0)
        return 0;
    if (read(fd, &head, sizeof head) != (ssize_t)sizeof head)
        head.version = 0;
    (void)close(fd); /* only read */
    return head.version;
}
