/* Appending, sealing and reading files of checked blocks. See blockfile.h for the
 * bytes. The writer keeps one block; the reader holds the whole file in memory.
 */
#include "config.h"

#include "runtime/blockfile.h"

#include "runtime/infile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char block_magic[4] = {'T', 'B', 'L', 'K'};

struct block_head {
    char magic[4];
    uint32_t record_bytes;
    uint64_t hash;
};
_Static_assert(sizeof(struct block_head) == 16, "frozen");

struct crystal_block_writer {
    const struct crystal_blockfile_kind *kind; /* borrowed */
    int fd;
    uint32_t used;          /* bytes of records in the buffer */
    uint64_t end;           /* where the next block goes */
    uint64_t count;         /* records appended, lost ones included */
    uint64_t lost;          /* records dropped because of a failed write */
    int failed;             /* writing stands still until retry */
    int error;              /* first errno, 0 if none */
    char path[4096];        /* for sentences */
    struct block_head head; /* directly in front of records: one write takes both */
    char records[CRYSTAL_BLOCK_RECORD_BYTES];
};
_Static_assert(offsetof(struct crystal_block_writer, records) ==
                   offsetof(struct crystal_block_writer, head) +
                       sizeof(struct block_head),
               "one write takes head and records");

static int pwrite_all(int fd, const void *bytes, size_t count, uint64_t offset)
{
    const char *next = bytes;

    while (count) {
        ssize_t done = pwrite(fd, next, count, (off_t)offset);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? -errno : -EIO;
        next += done;
        offset += (uint64_t)done;
        count -= (size_t)done;
    }
    return 0;
}

struct crystal_block_writer *
crystal_block_create(const char *path, const struct crystal_blockfile_kind *kind,
                     uint64_t lrank, uint64_t fingerprint, struct crystal_error *err)
{
    struct crystal_block_writer *w;
    struct crystal_filehead head;
    int code;

    if (strlen(path) >= sizeof w->path) {
        (void)crystal_error_set(err, ENAMETOOLONG, "%s: path too long", path);
        return NULL;
    }
    w = calloc(1, sizeof *w);
    if (!w) {
        (void)crystal_error_set(err, ENOMEM, "%s: out of memory", path);
        return NULL;
    }
    w->kind = kind;
    memcpy(w->path, path, strlen(path) + 1);
    (void)unlink(path); /* readers of an old file keep it; open reports what matters */
    w->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (w->fd < 0) {
        (void)crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
        free(w);
        return NULL;
    }
    crystal_filehead_init(&head, kind->magic, kind->version, 0, fingerprint, lrank);
    code = pwrite_all(w->fd, &head, sizeof head, 0);
    if (code) {
        (void)crystal_error_set(err, -code, "%s: %s", path, strerror(-code));
        (void)close(w->fd); /* the write has failed already */
        free(w);
        return NULL;
    }
    w->end = sizeof head;
    memcpy(w->head.magic, block_magic, sizeof block_magic);
    return w;
}

/* Sends the buffered records to the file as one block. */
static void write_block(struct crystal_block_writer *w)
{
    int code;

    if (!w->used)
        return;
    w->head.record_bytes = w->used;
    w->head.hash = crystal_hash(w->records, w->used);
    code = pwrite_all(w->fd, &w->head, sizeof w->head + w->used, w->end);
    if (code) {
        w->failed = 1;
        if (!w->error)
            w->error = -code;
        w->lost += w->used / w->kind->record_bytes;
        if (ftruncate(w->fd, (off_t)w->end) < 0)
            w->error = errno; /* a torn block stays; readers stop in front of it */
    } else {
        w->end += sizeof w->head + w->used;
    }
    w->used = 0;
}

void crystal_block_append(struct crystal_block_writer *w, const void *record)
{
    w->count++;
    if (w->failed) {
        w->lost++;
        return;
    }
    memcpy(w->records + w->used, record, w->kind->record_bytes);
    w->used += w->kind->record_bytes;
    if (w->used + w->kind->record_bytes > sizeof w->records)
        write_block(w);
}

uint32_t crystal_block_room(const struct crystal_block_writer *w)
{
    return ((uint32_t)sizeof w->records - w->used) / w->kind->record_bytes;
}

uint64_t crystal_block_count(const struct crystal_block_writer *w)
{
    return w->count;
}

uint64_t crystal_block_lost(const struct crystal_block_writer *w)
{
    return w->lost;
}

int crystal_block_flush(struct crystal_block_writer *w, struct crystal_error *err)
{
    write_block(w);
    if (w->error)
        return crystal_error_set(err, w->error, "%s: %s, %llu records lost", w->path,
                                 strerror(w->error), (unsigned long long)w->lost);
    return 0;
}

void crystal_block_retry(struct crystal_block_writer *w)
{
    w->failed = 0;
}

int crystal_block_close(struct crystal_block_writer *w, struct crystal_error *err)
{
    int code;

    if (!w)
        return 0;
    code = crystal_block_flush(w, err);
    if (close(w->fd) < 0 && !code)
        code = crystal_error_set(err, errno, "%s: %s", w->path, strerror(errno));
    free(w);
    return code;
}

/* The whole file in malloc'ed memory. */
static int load(int fd, const char *path, char **ret_bytes, size_t *ret_count,
                struct crystal_error *err)
{
    struct stat st;
    size_t have = 0, size;
    char *bytes;

    if (fstat(fd, &st) < 0)
        return crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return crystal_error_set(err, EINVAL, "%s: not a regular file", path);
    size = (size_t)st.st_size;
    bytes = malloc(size ? size : 1);
    if (!bytes)
        return crystal_error_set(err, ENOMEM, "%s: out of memory for %zu bytes", path,
                                 size);
    while (have < size) {
        ssize_t done = read(fd, bytes + have, size - have);

        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0) {
            int code = crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
            free(bytes);
            return code;
        }
        if (done == 0)
            break; /* cut while we read: what is there decides */
        have += (size_t)done;
    }
    *ret_bytes = bytes;
    *ret_count = have;
    return 0;
}

/* Bytes of the records of the block at offset, 0 where no good block stands there. */
static uint32_t block_at(const char *bytes, size_t count, size_t offset,
                         uint32_t record_bytes)
{
    struct block_head head;

    if (count - offset < sizeof head)
        return 0;
    memcpy(&head, bytes + offset, sizeof head);
    if (memcmp(head.magic, block_magic, sizeof block_magic) != 0 ||
        head.record_bytes == 0 || head.record_bytes % record_bytes != 0 ||
        head.record_bytes > count - offset - sizeof head)
        return 0;
    if (crystal_hash(bytes + offset + sizeof head, head.record_bytes) != head.hash)
        return 0;
    return head.record_bytes;
}

/* Offset behind the last good block; count holds at least a header. */
static size_t good_end(const char *bytes, size_t count, uint32_t record_bytes)
{
    size_t end = sizeof(struct crystal_filehead);
    uint32_t block;

    while ((block = block_at(bytes, count, end, record_bytes)) != 0)
        end += sizeof(struct block_head) + block;
    return end;
}

static int no_block(const char *path, const struct crystal_filehead *head,
                    struct crystal_error *err)
{
    return crystal_error_set(err, ENODATA,
                             "%s: no complete block: rank %llu ended before it wrote "
                             "anything; see its log in the job directory's log/",
                             path, (unsigned long long)head->lrank);
}

/* The version that a file's header is checked against: its own where that can be read.
 */
static uint32_t version_of(const struct crystal_blockfile_kind *kind,
                           const struct crystal_filehead *head)
{
    bool is_older = kind->oldest_version && head->version >= kind->oldest_version &&
                    head->version < kind->version;

    return is_older ? head->version : kind->version;
}

int crystal_block_seal(const char *path, const struct crystal_blockfile_kind *kind,
                       struct crystal_error *err)
{
    struct crystal_filehead head;
    char *bytes = NULL;
    size_t count = 0, end;
    int code, fd = crystal_infile_update(path, NULL, err);

    if (fd < 0)
        return fd;
    code = load(fd, path, &bytes, &count, err);
    if (code)
        goto out;
    memset(&head, 0, sizeof head);
    if (count >= sizeof head)
        memcpy(&head, bytes, sizeof head);
    code = crystal_filehead_check(&head, kind->magic, version_of(kind, &head), count,
                                  path, err);
    if (code || head.file_bytes)
        goto out;
    end = good_end(bytes, count, kind->record_bytes);
    if (end == sizeof head) {
        code = no_block(path, &head, err);
        goto out;
    }
    head.file_bytes = end;
    head.body_hash = crystal_hash(bytes + sizeof head, end - sizeof head);
    if (ftruncate(fd, (off_t)end) < 0)
        code = -errno;
    if (!code)
        code = pwrite_all(fd, &head, sizeof head, 0);
    if (!code && fsync(fd) < 0)
        code = -errno;
    if (code)
        code = crystal_error_set(err, -code, "%s: %s", path, strerror(-code));
out:
    free(bytes);
    (void)close(fd); /* synced above, or failed already */
    return code;
}

/* Moves the records of all blocks up to end to the front of bytes; returns how many. */
static uint64_t compact(char *bytes, size_t end, uint32_t record_bytes)
{
    size_t from = sizeof(struct crystal_filehead), to = 0;

    while (from < end) {
        struct block_head head;

        memcpy(&head, bytes + from, sizeof head);
        memmove(bytes + to, bytes + from + sizeof head, head.record_bytes);
        to += head.record_bytes;
        from += sizeof head + head.record_bytes;
    }
    return to / record_bytes;
}

int crystal_block_read(const char *path, const struct crystal_blockfile_kind *kind,
                       struct crystal_filehead *ret_head, void **ret_records,
                       uint64_t *ret_count, struct crystal_error *err)
{
    struct crystal_filehead head;
    char *bytes = NULL;
    size_t count = 0, end;
    int code, fd = crystal_infile_open(path, NULL, err);

    if (fd < 0)
        return fd;
    code = load(fd, path, &bytes, &count, err);
    (void)close(fd); /* read-only, nothing to lose */
    if (code)
        return code;
    memset(&head, 0, sizeof head);
    if (count >= sizeof head)
        memcpy(&head, bytes, sizeof head);
    code = crystal_filehead_check(&head, kind->magic, version_of(kind, &head), count,
                                  path, err);
    if (code)
        goto err_free;
    end = good_end(bytes, count, kind->record_bytes);
    if (head.file_bytes &&
        (end != count ||
         crystal_hash(bytes + sizeof head, count - sizeof head) != head.body_hash)) {
        code = crystal_error_set(err, EINVAL,
                                 "%s: contents do not match their checksum; run the "
                                 "stage that writes it again",
                                 path);
        goto err_free;
    }
    if (end == sizeof head) {
        code = no_block(path, &head, err);
        goto err_free;
    }
    *ret_count = compact(bytes, end, kind->record_bytes);
    *ret_records = bytes;
    *ret_head = head;
    return 0;

err_free:
    free(bytes);
    return code;
}
