/* Rank lists "0-7,16,24-31" and the parallel grid "tp=2,pp=4,dp=8". See layout.h. */
#include "config.h"

#include "runtime/layout.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct list {
    uint32_t *ranks;
    size_t count, capacity;
};

/* Decimal digits only, no sign, no blank; moves *text behind them. */
static int number(const char **text, uint64_t max, uint64_t *ret)
{
    uint64_t value = 0;
    const char *c = *text;

    if (!isdigit((unsigned char)*c))
        return -EINVAL;
    for (; isdigit((unsigned char)*c); c++) {
        value = value * 10 + (uint64_t)(*c - '0');
        if (value > max)
            return -ERANGE;
    }
    *text = c;
    *ret = value;
    return 0;
}

static int list_add(struct list *l, uint32_t rank)
{
    if (l->count == l->capacity) {
        size_t capacity = l->capacity ? 2 * l->capacity : 16;
        uint32_t *ranks = realloc(l->ranks, capacity * sizeof *ranks);

        if (!ranks)
            return -ENOMEM;
        l->ranks = ranks;
        l->capacity = capacity;
    }
    l->ranks[l->count++] = rank;
    return 0;
}

static int compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return x < y ? -1 : x > y;
}

static void sort_unique(struct list *l)
{
    size_t kept = 0;

    qsort(l->ranks, l->count, sizeof *l->ranks, compare);
    for (size_t i = 0; i < l->count; i++)
        if (kept == 0 || l->ranks[kept - 1] != l->ranks[i])
            l->ranks[kept++] = l->ranks[i];
    l->count = kept;
}

int crystal_ranks_parse(const char *text, uint32_t limit, int keep_order,
                        uint32_t **ret, uint32_t *ret_count, struct crystal_error *err)
{
    struct list l = {0};
    const char *c = text;
    int code = 0;

    for (;;) {
        uint64_t first, last;

        code = number(&c, UINT32_MAX, &first);
        last = first;
        if (!code && *c == '-') {
            c++;
            code = number(&c, UINT32_MAX, &last);
        }
        if (code == -ERANGE || (!code && (first >= limit || last >= limit))) {
            code = crystal_error_set(err, ERANGE,
                                     "rank list '%.100s' names ranks beyond %u", text,
                                     limit ? limit - 1 : 0);
            goto out;
        }
        if (code || last < first || (*c && *c != ',')) {
            code = crystal_error_set(err, EINVAL,
                                     "'%.100s' is no rank list such as 0-7,16", text);
            goto out;
        }
        for (uint64_t r = first; r <= last; r++)
            if (list_add(&l, (uint32_t)r) || (keep_order && l.count > limit)) {
                code = crystal_error_set(err, keep_order ? EINVAL : ENOMEM,
                                         "rank list '%.100s' is too long", text);
                goto out;
            }
        if (!keep_order && l.count > 2UL * limit)
            sort_unique(&l);
        if (!*c)
            break;
        c++;
    }
    if (!keep_order)
        sort_unique(&l);
    *ret = l.ranks;
    *ret_count = (uint32_t)l.count;
    return 0;
out:
    free(l.ranks);
    return code;
}

char *crystal_ranks_format(const uint32_t *ranks, uint32_t count)
{
    /* "4294967294-4294967295," per run at most */
    char *text = malloc((size_t)count * 12 + 1);
    size_t used = 0;

    if (!text)
        return NULL;
    text[0] = 0;
    for (uint32_t i = 0; i < count;) {
        uint32_t end = i;

        while (end + 1 < count && ranks[end + 1] == ranks[end] + 1)
            end++;
        used += (size_t)sprintf(text + used, end > i ? "%s%u-%u" : "%s%u", i ? "," : "",
                                ranks[i], ranks[end]);
        i = end + 1;
    }
    return text;
}

static int dimension(const char **text, struct crystal_grid *grid)
{
    const char *c = *text, *name = c;
    size_t length;
    uint64_t size;

    while (isalnum((unsigned char)*c) || *c == '_')
        c++;
    length = (size_t)(c - name);
    if (length == 0 || length >= sizeof grid->dim[0].name || *c != '=' ||
        grid->count == CRYSTAL_GRID_MAX)
        return -EINVAL;
    c++;
    if (number(&c, UINT32_MAX, &size) || size == 0)
        return -EINVAL;
    for (uint32_t i = 0; i < grid->count; i++)
        if (strlen(grid->dim[i].name) == length &&
            memcmp(grid->dim[i].name, name, length) == 0)
            return -EEXIST;
    memcpy(grid->dim[grid->count].name, name, length);
    grid->dim[grid->count].name[length] = 0;
    grid->dim[grid->count].size = (uint32_t)size;
    grid->count++;
    *text = c;
    return 0;
}

int crystal_grid_parse(const char *text, struct crystal_grid *ret,
                       struct crystal_error *err)
{
    struct crystal_grid grid = {0};
    const char *c = text;

    for (;;) {
        int code = dimension(&c, &grid);

        if (code == -EEXIST)
            return crystal_error_set(err, EINVAL,
                                     "grid '%.100s' gives a dimension twice", text);
        if (code || (*c && *c != ','))
            return crystal_error_set(
                err, EINVAL,
                "'%.100s' is no parallel grid such as tp=2,pp=4,dp=8 (fastest first)",
                text);
        if (!*c)
            break;
        c++;
    }
    *ret = grid;
    return 0;
}

uint32_t crystal_grid_size(const struct crystal_grid *grid, const char *name)
{
    for (uint32_t i = 0; i < grid->count; i++)
        if (strcmp(grid->dim[i].name, name) == 0)
            return grid->dim[i].size;
    return 1;
}
