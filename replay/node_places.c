/* See node_places.h. */
#include "config.h"

#include "replay/node_places.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC     "CRYNODE2"
#define RANKS_MAX (1U << 24)

struct places_head {
    char magic[8];
    uint32_t node_count, rank_count;
    uint8_t token[CRYSTAL_TOKEN_BYTES];
    uint32_t assistant_count, zero;
};
_Static_assert(sizeof(struct places_head) == 56, "drawn in the header");
_Static_assert(sizeof(struct crystal_msg_node) == 32, "drawn in the header");

static int path_of(const char *directory, char path[PATH_MAX],
                   struct crystal_error *err)
{
    if (snprintf(path, PATH_MAX, "%s/nodes", directory) >= PATH_MAX)
        return crystal_error_set(err, ENAMETOOLONG, "%s: path too long", directory);
    return 0;
}

int crystal_places_write(const char *directory, const struct crystal_msg_node *nodes,
                         uint32_t node_count, uint32_t assistant_count,
                         const uint8_t token[CRYSTAL_TOKEN_BYTES],
                         const struct crystal_place *ranks, uint32_t rank_count,
                         struct crystal_error *err)
{
    struct places_head head = {.node_count = node_count,
                               .rank_count = rank_count,
                               .assistant_count = assistant_count};
    char path[PATH_MAX];
    int fd, failed, code = path_of(directory, path, err);
    FILE *out;

    if (code)
        return code;
    memcpy(head.magic, MAGIC, sizeof head.magic);
    memcpy(head.token, token, sizeof head.token);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    out = fd < 0 ? NULL : fdopen(fd, "w");
    if (!out) {
        code = errno;
        if (fd >= 0)
            (void)close(fd); /* nothing was written */
        return crystal_error_set(err, code, "%s: %s", path, strerror(code));
    }
    (void)fwrite(&head, sizeof head, 1, out); /* ferror tells */
    (void)fwrite(nodes, sizeof *nodes, node_count, out);
    (void)fwrite(ranks, sizeof *ranks, rank_count, out);
    failed = ferror(out);
    if (fclose(out) || failed)
        return crystal_error_set(err, errno ? errno : EIO, "%s: cannot be written",
                                 path);
    return 0;
}

uint32_t crystal_places_assistant_of(uint32_t assistant_count, uint32_t node_count,
                                     uint32_t node, uint32_t index)
{
    uint32_t own;

    if (assistant_count < node_count)
        return node % assistant_count;
    own = (assistant_count - node + node_count - 1) / node_count;
    return node + index % own * node_count;
}

/* Where the rank is, or its assistant. */
static int choose(const struct places_head *head, const struct crystal_msg_node *nodes,
                  const struct crystal_place *rank, uint32_t index, int is_assistant,
                  struct crystal_msg_node *ret)
{
    const uint32_t sandbox_count = head->node_count - head->assistant_count;

    if (is_assistant && !head->assistant_count)
        return 0;
    *ret = !is_assistant
               ? nodes[rank->node]
               : nodes[sandbox_count +
                       crystal_places_assistant_of(head->assistant_count, sandbox_count,
                                                   rank->node, index)];
    return 1;
}

static int head_check(const struct places_head *head)
{
    return memcmp(head->magic, MAGIC, sizeof head->magic) == 0 && head->node_count &&
           head->node_count <= CRYSTAL_NODES_MAX && head->rank_count <= RANKS_MAX &&
           head->assistant_count < head->node_count && !head->zero;
}

/* The entry of the rank: its node's behind it, or its assistant's. */
static int look(FILE *in, uint32_t lrank, int is_assistant,
                struct crystal_msg_node *ret, uint8_t ret_token[CRYSTAL_TOKEN_BYTES])
{
    struct crystal_msg_node *nodes;
    struct places_head head;
    struct crystal_place rank;
    int found = -EBADMSG;

    if (fread(&head, sizeof head, 1, in) != 1 || !head_check(&head))
        return -EBADMSG;
    nodes = calloc(head.node_count, sizeof *nodes);
    if (!nodes)
        return -ENOMEM;
    if (fread(nodes, sizeof *nodes, head.node_count, in) == head.node_count)
        found = 0;
    for (uint32_t i = 0; found == 0 && i < head.rank_count; i++) {
        if (fread(&rank, sizeof rank, 1, in) != 1 ||
            rank.node >= head.node_count - head.assistant_count)
            found = -EBADMSG;
        else if (rank.lrank == lrank) {
            found = choose(&head, nodes, &rank, i, is_assistant, ret);
            memcpy(ret_token, head.token, sizeof head.token);
            break;
        }
    }
    free(nodes);
    return found;
}

static int find(const char *directory, uint32_t lrank, int is_assistant,
                struct crystal_msg_node *ret, uint8_t ret_token[CRYSTAL_TOKEN_BYTES],
                struct crystal_error *err)
{
    char path[PATH_MAX];
    int found = path_of(directory, path, err);
    FILE *in;

    if (found)
        return found;
    in = fopen(path, "re");
    if (!in)
        return errno == ENOENT
                   ? 0
                   : crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
    found = look(in, lrank, is_assistant, ret, ret_token);
    (void)fclose(in); /* read-only */
    if (found < 0)
        (void)crystal_error_set(
            err, -found, "%s: broken; let one installation run everywhere", path);
    return found;
}

int crystal_places_find(const char *directory, uint32_t lrank,
                        struct crystal_msg_node *ret,
                        uint8_t ret_token[CRYSTAL_TOKEN_BYTES],
                        struct crystal_error *err)
{
    return find(directory, lrank, 0, ret, ret_token, err);
}

int crystal_places_assistant(const char *directory, uint32_t lrank,
                             struct crystal_msg_node *ret,
                             uint8_t ret_token[CRYSTAL_TOKEN_BYTES],
                             struct crystal_error *err)
{
    return find(directory, lrank, 1, ret, ret_token, err);
}
