/* Requests of PyTorch's TCPStore protocol as bytes. See store_wire.h. */
#include "config.h"

#include "runtime/store_wire.h"

#include <errno.h>
#include <string.h>

/* The shape of each request: bytes in front, a count or not, one letter per string (k
 * key, v value; repeated where there is a count), bytes behind. */
static const struct {
    uint8_t fixed_front;
    uint8_t counted;
    char strings[4];
    uint8_t fixed_back;
} shapes[CRYSTAL_STORE_OPCODES] = {
    [CRYSTAL_STORE_VALIDATE] = {4, 0, "", 0},
    [CRYSTAL_STORE_SET] = {0, 0, "kv", 0},
    [CRYSTAL_STORE_COMPARE_SET] = {0, 0, "kvv", 0},
    [CRYSTAL_STORE_GET] = {0, 0, "k", 0},
    [CRYSTAL_STORE_ADD] = {0, 0, "k", 8},
    [CRYSTAL_STORE_CHECK] = {0, 1, "k", 0},
    [CRYSTAL_STORE_WAIT] = {0, 1, "k", 0},
    [CRYSTAL_STORE_GETNUMKEYS] = {0, 0, "", 0},
    [CRYSTAL_STORE_DELETE_KEY] = {0, 0, "k", 0},
    [CRYSTAL_STORE_APPEND] = {0, 0, "kv", 0},
    [CRYSTAL_STORE_MULTI_GET] = {0, 1, "k", 0},
    [CRYSTAL_STORE_MULTI_SET] = {0, 1, "kv", 0},
    [CRYSTAL_STORE_CANCEL_WAIT] = {0, 0, "", 0},
    [CRYSTAL_STORE_PING] = {4, 0, "", 0},
    [CRYSTAL_STORE_QUEUE_PUSH] = {0, 0, "kv", 0},
    [CRYSTAL_STORE_QUEUE_POP] = {0, 0, "k", 0},
    [CRYSTAL_STORE_QUEUE_LEN] = {0, 0, "k", 0},
};

uint32_t crystal_store_take_u32(const uint8_t **at)
{
    uint32_t v;

    memcpy(&v, *at, sizeof v);
    *at += sizeof v;
    return v;
}

uint64_t crystal_store_take_u64(const uint8_t **at)
{
    uint64_t v;

    memcpy(&v, *at, sizeof v);
    *at += sizeof v;
    return v;
}

struct crystal_store_string crystal_store_take_string(const uint8_t **at)
{
    struct crystal_store_string s;

    s.bytes = (size_t)crystal_store_take_u64(at);
    s.at = *at;
    *at += s.bytes;
    return s;
}

static int scan_start(struct crystal_store_scan *scan, const uint8_t *data,
                      size_t data_bytes)
{
    const uint8_t *at;
    size_t need;
    uint64_t count = 1;

    if (data_bytes < 1)
        return 0;
    if (data[0] >= CRYSTAL_STORE_OPCODES)
        return -EBADMSG;
    scan->opcode = data[0];
    need = 1 + (size_t)shapes[scan->opcode].fixed_front +
           (shapes[scan->opcode].counted ? 8 : 0);
    if (data_bytes < need)
        return 0;
    if (shapes[scan->opcode].counted) {
        at = data + 1;
        count = crystal_store_take_u64(&at);
        if (count > CRYSTAL_STORE_COUNT_MAX)
            return -EBADMSG;
    }
    scan->strings = count * strlen(shapes[scan->opcode].strings);
    scan->end = need;
    scan->started = 1;
    return 1;
}

int crystal_store_scan(struct crystal_store_scan *scan, const uint8_t *data,
                       size_t data_bytes)
{
    const char *kinds;
    int rc;

    if (!scan->started) {
        rc = scan_start(scan, data, data_bytes);
        if (rc <= 0)
            return rc;
    }
    kinds = shapes[scan->opcode].strings;
    while (scan->strings) {
        const uint8_t *at = data + scan->end;
        uint64_t bytes;

        if (data_bytes < scan->end || data_bytes - scan->end < 8)
            return 0;
        bytes = crystal_store_take_u64(&at);
        if (bytes > (kinds[scan->string] == 'k' ? CRYSTAL_STORE_KEY_MAX
                                                : CRYSTAL_STORE_VALUE_MAX))
            return -EBADMSG;
        scan->end += 8 + (size_t)bytes;
        if (scan->end > CRYSTAL_STORE_REQUEST_MAX)
            return -EBADMSG;
        scan->string = kinds[scan->string + 1] ? scan->string + 1 : 0;
        scan->strings--;
    }
    if (!scan->complete) {
        scan->end += shapes[scan->opcode].fixed_back;
        scan->complete = 1;
    }
    return data_bytes >= scan->end;
}
