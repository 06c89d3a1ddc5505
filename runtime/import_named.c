/* Process groups of Chakra traces: {"NAME": [RANK, ...], ...} as ASTRA-sim reads them.
 * See import_trace.h.
 */
#include "config.h"

#include "runtime/import_trace.h"

#include "runtime/filehead.h"
#include "runtime/json_reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NAMED UINT64_C(1) /* as the hash of a list: there is one of a name */

uint32_t import_named_find(const struct import *m, struct import_rank *r,
                           const char *name, size_t bytes)
{
    uint64_t hash = crystal_hash(name, bytes);
    uint32_t index = import_group_find(&r->groups, hash, NAMED);
    struct import_group group = {
        .members = m->everyone, .count = m->rank_count, .name = hash, .list = NAMED};

    if (index != IMPORT_NONE)
        return index;
    index = import_group_find(&m->named, hash, NAMED);
    if (index != IMPORT_NONE) {
        group = m->named.rows[index];
        group.is_owner = false;
    } else if (bytes) {
        return IMPORT_NONE;
    }
    return import_group_add(&r->groups, &group);
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
    return import_group_add(&m->named, &(struct import_group){.members = members,
                                                              .count = count,
                                                              .name = hash,
                                                              .list = NAMED,
                                                              .is_owner = true}) ==
                   IMPORT_NONE
               ? -ENOMEM
               : 0;
}

int import_named_read(struct import *m, const char *text, size_t bytes)
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
                   ? members_read(&j, m, crystal_hash(key.text, key.bytes))
                   : -EINVAL;
    }
    return code ? code : key.kind == CRYSTAL_JSON_OBJECT_END ? 0 : -EINVAL;
}
