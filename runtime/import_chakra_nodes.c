/* The nodes of a Chakra trace, message by message. See import_chakra.h. The numbers are
 * those of schema/protobuf/et_def.proto of github.com/mlcommons/chakra.
 */
#include "config.h"

#include "runtime/import_chakra.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum field { /* of Node, and of AttributeProto from ATTR_NAME on */
             ID = 1,
             NAME = 2,
             TYPE = 3,
             CTRL_DEPS = 4,
             DATA_DEPS = 5,
             DURATION = 7,
             ATTR = 10,
             ATTR_NAME = 1,
             ATTR_STRING = 29
};

#define US_MAX UINT64_C(86400000000) /* a day; a longer node is none */

static bool is_text(struct crystal_protobuf p, const char *text, size_t bytes)
{
    return (size_t)(p.end - p.at) == bytes && memcmp(p.at, text, bytes) == 0;
}

#define IS_TEXT(p, text) is_text(p, text, sizeof(text) - 1)

static void attribute_take(struct chakra_node *n, struct crystal_protobuf name,
                           struct crystal_protobuf text, uint64_t value)
{
    if (IS_TEXT(name, "comm_type")) {
        n->comm_type = value;
        n->has_comm_type = true;
    } else if (IS_TEXT(name, "is_cpu_op")) {
        n->is_host = value != 0;
    } else if (IS_TEXT(name, "comm_size")) {
        n->comm_size = value;
    } else if (IS_TEXT(name, "comm_src")) {
        n->src = value;
    } else if (IS_TEXT(name, "comm_dst")) {
        n->dst = value;
    } else if (IS_TEXT(name, "comm_tag")) {
        n->tag = value;
    } else if (IS_TEXT(name, "pg_name")) {
        n->group = text;
    }
}

static int attribute_read(struct chakra_node *n, struct crystal_protobuf m)
{
    struct crystal_protobuf name = {NULL, NULL}, text = {NULL, NULL};
    struct crystal_protobuf_field f;
    uint64_t value = 0;
    int code;

    while ((code = crystal_protobuf_next(&m, &f)) == 1) {
        if (f.number == ATTR_NAME && f.kind == CRYSTAL_PROTOBUF_BYTES)
            name = f.bytes;
        else if (f.number == ATTR_STRING && f.kind == CRYSTAL_PROTOBUF_BYTES)
            text = f.bytes;
        else if (f.kind == CRYSTAL_PROTOBUF_VARINT)
            value = f.number == 15 || f.number == 17 /* sint: zigzag */
                        ? f.value >> 1 ^ (0 - (f.value & 1))
                        : f.value;
        else if (f.kind != CRYSTAL_PROTOBUF_BYTES && f.number >= 19 && f.number <= 25)
            value = f.value; /* fixed */
    }
    if (!code && name.at)
        attribute_take(n, name, text, value);
    return code;
}

static int dep_add(struct chakra *c, struct chakra_node *n, struct chakra_dep dep)
{
    if (c->dep_count == c->dep_capacity) {
        size_t capacity = c->dep_capacity ? 2 * c->dep_capacity : 1024;
        struct chakra_dep *more =
            capacity < UINT32_MAX ? realloc(c->deps, capacity * sizeof *more) : NULL;

        if (!more)
            return -ENOMEM;
        c->deps = more;
        c->dep_capacity = capacity;
    }
    c->deps[c->dep_count++] = dep;
    n->dep_count++;
    return 0;
}

/* One id, or packed ones. */
static int deps_read(struct chakra *c, struct chakra_node *n,
                     struct crystal_protobuf_field *f)
{
    struct chakra_dep dep = {.is_ctrl = f->number == CTRL_DEPS};
    int code;

    c->has_data_deps |= !dep.is_ctrl;
    if (f->kind == CRYSTAL_PROTOBUF_VARINT) {
        dep.id = f->value;
        return dep_add(c, n, dep);
    }
    if (f->kind != CRYSTAL_PROTOBUF_BYTES)
        return -EINVAL;
    while ((code = crystal_protobuf_varint(&f->bytes, &dep.id)) == 1)
        if ((code = dep_add(c, n, dep)))
            break;
    return code;
}

/* A place for one node more; NULL where there is no memory. */
static struct chakra_node *node_add(struct chakra *c)
{
    if (c->count == c->capacity) {
        size_t capacity = c->capacity ? 2 * c->capacity : 1024;
        struct chakra_node *more =
            capacity < UINT32_MAX ? realloc(c->nodes, capacity * sizeof *more) : NULL;

        if (!more)
            return NULL;
        c->nodes = more;
        c->capacity = capacity;
    }
    return &c->nodes[c->count++];
}

static int node_read(struct chakra *c, struct crystal_protobuf m)
{
    struct chakra_node *n = node_add(c);
    struct crystal_protobuf_field f;
    int code = 0;

    if (!n)
        return -ENOMEM;
    *n = (struct chakra_node){.dep_first = c->dep_count, .stream = IMPORT_NONE};
    while (!code && (code = crystal_protobuf_next(&m, &f)) == 1) {
        bool is_number = f.kind == CRYSTAL_PROTOBUF_VARINT;

        code = 0;
        if (f.number == CTRL_DEPS || f.number == DATA_DEPS)
            code = deps_read(c, n, &f);
        else if (f.number == ATTR && f.kind == CRYSTAL_PROTOBUF_BYTES)
            code = attribute_read(n, f.bytes);
        else if (f.number == NAME && f.kind == CRYSTAL_PROTOBUF_BYTES)
            n->name = f.bytes;
        else if (f.number == ID && is_number)
            n->id = f.value;
        else if (f.number == TYPE && is_number)
            n->type = f.value < UINT32_MAX ? (uint32_t)f.value : UINT32_MAX;
        else if (f.number == DURATION && is_number)
            n->us = f.value;
    }
    return !code && n->us > US_MAX ? -EINVAL : code;
}

bool chakra_communicates(const struct chakra_node *n)
{
    return !n->is_host && n->type >= CHAKRA_SEND && n->type <= CHAKRA_COLL;
}

int chakra_nodes_read(struct chakra *c, const char *text, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)text;
    struct crystal_protobuf p = {at, at + bytes}, message;
    int code = crystal_protobuf_message(&p, &message); /* about the trace */

    if (code == 1)
        while ((code = crystal_protobuf_message(&p, &message)) == 1)
            if ((code = node_read(c, message)))
                break;
    return !code && !c->count ? -EINVAL : code;
}
