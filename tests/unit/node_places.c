/* The file by which ranks find those of other nodes: its bytes, and what a broken one
 * does.
 */
#include "config.h"

#include "replay/node_places.h"

#include "tests/check.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#define BYTES (56 + 2 * 32 + 3 * 8)

static char directory[] = "/tmp/crystal-places.XXXXXX", path[64];
static uint8_t token[CRYSTAL_TOKEN_BYTES] = "a token of thirty-two bytes ...";
static const struct crystal_msg_node nodes[2] = {
    {.node = 0, .node_count = 2, .port = 4001, .run = 7, .address = {[15] = 1}},
    {.node = 1, .node_count = 2, .port = 4002, .address = {[10] = 0xff, [15] = 9}}};
static const struct crystal_place ranks[3] = {{0, 0}, {1, 0}, {60, 1}};

static void write_file(void)
{
    struct crystal_error err = {0};

    (void)unlink(path);
    CHECK_EQ(crystal_places_write(directory, nodes, 2, 0, token, ranks, 3, &err), 0);
    CHECK_STR(err.text, "");
}

static void its_bytes(void)
{
    uint8_t got[BYTES + 1], want[BYTES] = "CRYNODE2";
    const uint32_t counts[2] = {2, 3};
    struct stat s = {0};
    FILE *file;

    write_file();
    CHECK_EQ(stat(path, &s), 0);
    CHECK_EQ(s.st_mode & 0777, 0600);
    memcpy(want + 8, counts, 8);
    memcpy(want + 16, token, 32);
    memcpy(want + 56, nodes, 64);
    memcpy(want + 120, ranks, 24);
    file = fopen(path, "r");
    CHECK(file && fread(got, 1, sizeof got, file) == BYTES);
    if (file)
        (void)fclose(file); /* read-only */
    CHECK(memcmp(got, want, BYTES) == 0);
}

static void ranks_are_found(void)
{
    uint8_t its[CRYSTAL_TOKEN_BYTES] = {0};
    struct crystal_error err = {0};
    struct crystal_msg_node node;

    write_file();
    CHECK_EQ(crystal_places_find(directory, 60, &node, its, &err), 1);
    CHECK(memcmp(&node, &nodes[1], sizeof node) == 0);
    CHECK(memcmp(its, token, sizeof its) == 0);
    CHECK_EQ(crystal_places_find(directory, 1, &node, its, &err), 1);
    CHECK_EQ(node.node, 0);
    CHECK_EQ(crystal_places_find(directory, 3, &node, its, &err), 0);
    CHECK_EQ(crystal_places_find("/nowhere", 1, &node, its, &err), 0);
    CHECK_STR(err.text, "");
    CHECK_EQ(crystal_places_write(directory, nodes, 2, 0, token, ranks, 3, &err),
             -EEXIST);
}

/* Changes the byte at `at`, asks for rank 60. */
static int find_with(long at, uint8_t byte)
{
    uint8_t its[CRYSTAL_TOKEN_BYTES];
    struct crystal_error err = {0};
    struct crystal_msg_node node;
    FILE *file;
    int code;

    write_file();
    file = fopen(path, "r+");
    CHECK(file && fseek(file, at, SEEK_SET) == 0 && fputc(byte, file) == byte &&
          fclose(file) == 0);
    code = crystal_places_find(directory, 60, &node, its, &err);
    if (code < 0)
        CHECK_HAS(err.text, "/nodes: broken; let one installation run everywhere");
    return code;
}

/* Three sandbox nodes and two assistants behind them. */
static void assistants_are_found(void)
{
    static const uint32_t want[3] = {3, 4, 3};
    struct crystal_msg_node five[5];
    const struct crystal_place one_each[3] = {{0, 0}, {8, 1}, {60, 2}};
    uint8_t its[CRYSTAL_TOKEN_BYTES] = {0};
    struct crystal_error err = {0};
    struct crystal_msg_node node;

    for (uint32_t i = 0; i < 5; i++)
        five[i] =
            (struct crystal_msg_node){.node = i, .node_count = 5, .port = 4000 + i};
    write_file();
    CHECK_EQ(crystal_places_assistant(directory, 60, &node, its, &err), 0);
    (void)unlink(path);
    CHECK_EQ(crystal_places_write(directory, five, 5, 2, token, one_each, 3, &err), 0);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(
            crystal_places_assistant(directory, one_each[i].lrank, &node, its, &err),
            1);
        CHECK_EQ(node.port, 4000 + want[i]);
        CHECK_EQ(crystal_places_find(directory, one_each[i].lrank, &node, its, &err),
                 1);
        CHECK_EQ(node.port, 4000 + i);
    }
    CHECK(memcmp(its, token, sizeof its) == 0);
    CHECK_EQ(crystal_places_assistant(directory, 3, &node, its, &err), 0);
    CHECK_EQ(crystal_places_assistant("/nowhere", 0, &node, its, &err), 0);
    CHECK_STR(err.text, "");
}

/* Every assistant gets as many of a node's ranks as the others of that node. */
static void assistants_are_shared(void)
{
    for (uint32_t count = 1; count < 5; count++)
        for (uint32_t assistants = 1; assistants < 10; assistants++)
            for (uint32_t node = 0; node < count; node++) {
                uint32_t had[10] = {0}, own = 0;

                for (uint32_t k = 0; k < assistants; k++)
                    own += k % count == node;
                for (uint32_t i = 0; i < 60; i++)
                    had[crystal_places_assistant_of(assistants, count, node, i)]++;
                for (uint32_t k = 0; k < assistants; k++)
                    if (assistants < count)
                        CHECK_EQ(had[k], k == node % assistants ? 60 : 0);
                    else
                        CHECK(k % count != node
                                  ? had[k] == 0
                                  : had[k] >= 60 / own && had[k] <= 60 / own + 1);
            }
}

/* As version 1 had them: nothing between the token and the nodes. */
static void an_old_file_is_refused(void)
{
    uint8_t bytes[BYTES - 8] = "CRYNODE1", its[CRYSTAL_TOKEN_BYTES];
    const uint32_t counts[2] = {2, 3};
    struct crystal_error err = {0};
    struct crystal_msg_node node;
    FILE *file;

    write_file();
    memcpy(bytes + 8, counts, 8);
    memcpy(bytes + 16, token, 32);
    memcpy(bytes + 48, nodes, 64);
    memcpy(bytes + 112, ranks, 24);
    file = fopen(path, "w");
    CHECK(file && fwrite(bytes, 1, sizeof bytes, file) == sizeof bytes &&
          fclose(file) == 0);
    CHECK_EQ(crystal_places_find(directory, 60, &node, its, &err), -EBADMSG);
    CHECK_HAS(err.text, "/nodes: broken; let one installation run everywhere");
}

static void broken_files(void)
{
    for (off_t bytes = 0; bytes < BYTES; bytes++) {
        uint8_t its[CRYSTAL_TOKEN_BYTES];
        struct crystal_msg_node node;

        write_file();
        CHECK_EQ(truncate(path, bytes), 0);
        CHECK_EQ(crystal_places_find(directory, 60, &node, its, NULL), -EBADMSG);
    }
    CHECK_EQ(find_with(0, 'X'), -EBADMSG);          /* magic */
    CHECK_EQ(find_with(8, 0), -EBADMSG);            /* no node */
    CHECK_EQ(find_with(11, 0x7f), -EBADMSG);        /* too many nodes */
    CHECK_EQ(find_with(15, 0x7f), -EBADMSG);        /* too many ranks */
    CHECK_EQ(find_with(48, 2), -EBADMSG);           /* assistants alone */
    CHECK_EQ(find_with(52, 1), -EBADMSG);           /* what must be zero */
    CHECK_EQ(find_with(56 + 64 + 20, 2), -EBADMSG); /* on a node that is not there */
    CHECK_EQ(find_with(48, 1), -EBADMSG);           /* on an assistant */
}

int main(void)
{
    check_begin();
    if (!mkdtemp(directory))
        return 1;
    (void)snprintf(path, sizeof path, "%s/nodes", directory);
    CHECK_RUN(its_bytes);
    CHECK_RUN(ranks_are_found);
    CHECK_RUN(assistants_are_found);
    CHECK_RUN(assistants_are_shared);
    CHECK_RUN(an_old_file_is_refused);
    CHECK_RUN(broken_files);
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(rmdir(directory), 0);
    return check_end();
}
