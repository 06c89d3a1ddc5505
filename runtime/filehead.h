/* The 64 bytes at the start of every binary file of a job directory.
 *
 *   offset bytes what
 *        0     8 magic: "CRYTRACE", "CRYGRAPH", "CRYPROFL", "CRYRUNRC", "CRYPAYLD"
 *        8     4 version of that format
 *       12     4 byte order: 0x01020304 as the writer stores it; others are refused
 *       16     8 bytes of the whole file, header included; 0 = still being appended
 *       24     8 XXH3-64 of all bytes behind the header; 0 while being appended
 *       32     8 XXH3-64 identity of the parent (the file or files this one was made
 *                from: their body hashes, each as 8 bytes, hashed again); 0 = no parent
 *       40     8 fingerprint of the captured program and layout
 *       48     8 logical rank that wrote it, or 0
 *       56     8 XXH3-64 of the 56 bytes before, where the format's version has it;
 * else 0 Integers are in the writer's byte order. Frozen: version 1.
 */
#ifndef CRYSTAL_FILEHEAD_H
#define CRYSTAL_FILEHEAD_H

#include "runtime/error.h"

#include <stddef.h>
#include <stdint.h>

#define CRYSTAL_BYTE_ORDER 0x01020304U

struct crystal_filehead {
    char magic[8];
    uint32_t version;
    uint32_t byte_order;
    uint64_t file_bytes;
    uint64_t body_hash;
    uint64_t parent_hash;
    uint64_t fingerprint;
    uint64_t lrank;
    uint64_t head_hash;
};

/* Fills a header for a file that is going to be appended. magic has 8 characters. */
void crystal_filehead_init(struct crystal_filehead *h, const char *magic,
                           uint32_t version, uint64_t parent_hash, uint64_t fingerprint,
                           uint64_t lrank);

/* Asks crystal_file_write for head_hash. */
void crystal_filehead_ask_hash(struct crystal_filehead *h);

/* Checks magic, version, byte order, head_hash where it is not 0 and, where file_bytes
 * is not 0, that it equals have_bytes (the size of the real file). path is for the
 * sentence only. */
int crystal_filehead_check(const struct crystal_filehead *h, const char *magic,
                           uint32_t version, uint64_t have_bytes, const char *path,
                           struct crystal_error *err);

/* XXH3-64 of bytes, never 0 (0 becomes 1). */
uint64_t crystal_hash(const void *bytes, size_t count);

/* The same of the bytes of a file from offset `first` to `end`. They are read, never
 * mapped: of a hole on a full file system a mapping cannot be read. -ENODATA where the
 * file is shorter; path is for the sentence only. */
int crystal_file_hash(int fd, uint64_t first, uint64_t end, const char *path,
                      uint64_t *ret_hash, struct crystal_error *err);

/* Writes header + body to path by way of "path.tmp", fsync and rename; sets file_bytes,
 * body_hash and, where it was asked for, head_hash. A full disk leaves no file and the
 * old one in place. Mode 0600. */
int crystal_file_write(const char *path, struct crystal_filehead *h, const void *body,
                       size_t body_bytes, struct crystal_error *err);

/* Maps a sealed file read-only, checks header and body hash. The view is unmapped by
 * crystal_file_unmap. A file that shrinks while mapped is the caller's misfortune:
 * files are replaced by rename, never cut. One with holes is copied to memory. */
struct crystal_file_view {
    const struct crystal_filehead *head;
    const void *body;
    size_t body_bytes;
};
int crystal_file_map(const char *path, const char *magic, uint32_t version,
                     struct crystal_file_view *ret_view, struct crystal_error *err);
void crystal_file_unmap(struct crystal_file_view *view);
/* The version that the file's header tells, for those who read several; 0 where it has
 * none. Mapping it says what is wrong. */
uint32_t crystal_filehead_version(const char *path);

#endif
