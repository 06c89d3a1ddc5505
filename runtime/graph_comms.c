/* comms.tab and the copies of its communicators in other replicas. */
#include "config.h"

#include "runtime/graph_comms.h"

#include "runtime/infile.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t dp_of(const struct crystal_graph_comms *c, uint32_t lrank)
{
    return crystal_replica_of(&c->replica, lrank);
}

/* Takes name and members, also on failure. */
static int add(struct crystal_graph_comms *c, char *name, uint32_t *members,
               uint32_t nranks)
{
    struct crystal_graph_entry e = {name, members, nranks, {0, 1, 0}};

    if (c->count == c->capacity) {
        uint32_t capacity = c->capacity ? 2 * c->capacity : 64;
        struct crystal_graph_entry *entries =
            realloc(c->entries, capacity * sizeof *entries);

        if (!entries)
            goto err_free;
        c->entries = entries;
        c->capacity = capacity;
    }
    if (crystal_replica_span(&c->replica, members, nranks, &e.dp))
        goto err_free;
    c->entries[c->count++] = e;
    return 0;

err_free:
    free(name);
    free(members);
    return -ENOMEM;
}

/* One line of comms.tab, without its end. */
static int parse(struct crystal_graph_comms *c, char *line, struct crystal_error *err)
{
    char *count = strchr(line, '\t'), *list = count ? strchr(count + 1, '\t') : NULL;
    char *name, *end;
    unsigned long long nranks;
    uint32_t *members, member_count;
    int code;

    if (!list)
        return crystal_error_set(err, EINVAL,
                                 "not name, number and members between tabs");
    *count++ = 0;
    *list++ = 0;
    errno = 0;
    nranks = strtoull(count, &end, 10);
    if (*end || end == count || errno)
        return crystal_error_set(err, EINVAL, "'%.40s' is no number of ranks", count);
    code = crystal_ranks_parse(list, c->lrank_count, 1, &members, &member_count, err);
    if (code)
        return code;
    if (nranks != member_count || !member_count) {
        free(members);
        return crystal_error_set(err, EINVAL, "%llu ranks but %u members", nranks,
                                 member_count);
    }
    name = strdup(line);
    if (!name) {
        free(members);
        return crystal_error_set(err, ENOMEM, "out of memory");
    }
    code = add(c, name, members, member_count);
    return code ? crystal_error_set(err, -code, "out of memory") : 0;
}

int crystal_graph_comms_read(struct crystal_graph_comms *c, const char *path,
                             const struct crystal_layout *layout,
                             struct crystal_error *err)
{
    struct crystal_error why = {0};
    FILE *in = crystal_infile_stream(path, &why);
    char *line = NULL;
    size_t capacity = 0, copies;
    ssize_t length;
    unsigned number = 0;
    int code = 0;

    memset(c, 0, sizeof *c);
    c->lrank_count = layout->lrank_count;
    crystal_replica_init(&c->replica, layout);
    if (!in)
        return crystal_error_set(err, why.code, "%s; run 'scrystal capture' first",
                                 crystal_error_text(&why));
    while (!code && (length = getline(&line, &capacity, in)) >= 0) {
        number++;
        if (length && line[length - 1] == '\n')
            line[--length] = 0;
        else
            code = crystal_error_set(err, EINVAL, "cut off in the middle of a line");
        if (!code && (size_t)length != strlen(line))
            code = crystal_error_set(err, EINVAL, "has a zero byte");
        if (!code && length)
            code = parse(c, line, err);
    }
    if (!code && ferror(in))
        code = crystal_error_set(err, EIO, "cannot be read");
    free(line);
    (void)fclose(in); /* read-only, nothing to lose */
    if (code) {
        crystal_error_prefix(err, "%s:%u", path, number);
        goto err_fini;
    }
    c->named_count = c->count;
    copies = (size_t)c->named_count * c->replica.size;
    c->copies = malloc((copies ? copies : 1) * sizeof *c->copies);
    if (!c->copies) {
        code = crystal_error_set(err, ENOMEM, "%s: out of memory", path);
        goto err_fini;
    }
    memset(c->copies, 0xff, copies * sizeof *c->copies);
    return 0;

err_fini:
    crystal_graph_comms_fini(c);
    return code;
}

void crystal_graph_comms_fini(struct crystal_graph_comms *c)
{
    for (uint32_t i = 0; i < c->count; i++) {
        free(c->entries[i].name);
        free(c->entries[i].members);
    }
    free(c->entries);
    free(c->copies);
    memset(c, 0, sizeof *c);
}

uint32_t crystal_graph_comms_named(const struct crystal_graph_comms *c,
                                   const char *name, uint32_t nth)
{
    uint32_t found = UINT32_MAX;

    for (uint32_t i = 0; i < c->named_count; i++)
        if (strcmp(c->entries[i].name, name) == 0) {
            found = i;
            if (nth-- == 0)
                break;
        }
    return found;
}

static bool has_member(const struct crystal_graph_entry *e, uint32_t lrank)
{
    for (uint32_t k = 0; k < e->nranks; k++)
        if (e->members[k] == lrank)
            return true;
    return false;
}

int crystal_graph_comms_of(struct crystal_graph_comms *c, uint32_t named,
                           uint32_t rep_lrank, uint32_t lrank, uint32_t *ret,
                           struct crystal_error *err)
{
    const struct crystal_graph_entry *e = &c->entries[named];
    uint32_t by =
        (dp_of(c, lrank) + c->replica.size - dp_of(c, rep_lrank)) % c->replica.size;
    uint32_t *copy, *members;

    if (has_member(e, lrank)) {
        *ret = named;
        return 0;
    }
    copy = &c->copies[(size_t)named * c->replica.size + by];
    if (*copy != UINT32_MAX && has_member(&c->entries[*copy], lrank)) {
        *ret = *copy;
        return 0;
    }
    members = malloc(e->nranks * sizeof *members);
    if (!members)
        return crystal_error_set(err, ENOMEM, "out of memory");
    for (uint32_t k = 0; k < e->nranks; k++) {
        uint32_t dp = dp_of(c, e->members[k]);

        members[k] = e->members[k] + ((dp + by) % c->replica.size) * c->replica.stride -
                     dp * c->replica.stride;
    }
    *ret = c->count;
    if (add(c, NULL, members, e->nranks))
        return crystal_error_set(err, ENOMEM, "out of memory");
    *copy = *ret;
    if (!has_member(&c->entries[*ret], lrank))
        return crystal_error_set(
            err, EINVAL,
            "rank %u takes part in '%s' but not where its representative %u does; "
            "capture with --crystal-live=all",
            lrank, c->entries[named].name, rep_lrank);
    return 0;
}
