/* Process groups of Chakra traces: {"NAME": [RANK, ...], ...} as ASTRA-sim reads them.
 * See import_trace.h.
 */
#include "config.h"

#include "runtime/import_trace.h"

#include "runtime/json_reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NAMED UINT64_C(1) /* as the hash of a list: there is one of a name */

uint32_t import_group_named(struct import *m, const char *name, size_t bytes)
{
    uint64_t hash = import_hash(name, bytes);
    uint32_t group = import_group_find(m, hash, NAMED), *members;

    if (group != IMPORT_NONE || bytes)
        return group;
    members = malloc(m->rank_count * sizeof *members);
    for (uint32_t i = 0; members && i < m->rank_count; i++)
        members[i] = i;
    return members ? import_group_add(m, hash, NAMED, members, m->rank_count)
                   : IMPORT_NONE;
}

static int members_read(struct crystal_json *j, struct import *m, uint64_t hash)
{
    uint32_t *members = malloc(m->rank_count * sizeof *members), count = 0;
    uint8_t *seen = calloc(m->rank_count, 1);
    struct crystal_json_token t;
    int code = members && seen ? 0 : -ENOMEM;

    while (!code && (t = crystal_json_next(j)).kind == CRYSTAL_JSON_NUMBER) {
        double rank = crystal_json_number(t, -1);

        if (!(rank >= 0 && rank < m->rank_count) || seen[(uint32_t)rank])
            code = -EPROTO;
        else
            seen[members[count++] = (uint32_t)rank] = 1;
    }
    if (!code && (t.kind != CRYSTAL_JSON_ARRAY_END || !count))
        code = -EINVAL;
    free(seen);
    if (code) {
        free(members);
        return code;
    }
    return import_group_add(m, hash, NAMED, members, count) == IMPORT_NONE ? -ENOMEM
                                                                           : 0;
}

int import_groups_read(struct import *m, const char *text, size_t bytes)
{
    struct crystal_json_token key, value;
    struct crystal_json j;
    int code = 0;

    crystal_json_init(&j, text, bytes);
    if (crystal_json_next(&j).kind != CRYSTAL_JSON_OBJECT)
        return -EINVAL;
    while (!code && (key = crystal_json_next(&j)).kind == CRYSTAL_JSON_KEY) {
        value = crystal_json_next(&j);
        code = value.kind == CRYSTAL_JSON_ARRAY
                   ? members_read(&j, m, import_hash(key.text, key.bytes))
                   : -EINVAL;
    }
    return code ? code : key.kind == CRYSTAL_JSON_OBJECT_END ? 0 : -EINVAL;
}
