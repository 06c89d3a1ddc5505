/* The store's rules as a table and the matching of its patterns. See store_rules.h. */
#include "config.h"

#include "runtime/store_rules.h"

#include <string.h>

const struct crystal_store_rule crystal_store_rules[] = {
    {"init/", CRYSTAL_STORE_COUNT_WORLD, "TCPStore: every worker announces itself"},
    {"/default_pg/store_based_barrier_key:{text}", CRYSTAL_STORE_COUNT_WORLD,
     "TORCH_DIST_INIT_BARRIER=1: all ranks meet after each new group"},
    {"/default_pg/0//store_based_barrier_key:{text}", CRYSTAL_STORE_COUNT_WORLD,
     "the same: the default group's store is what new groups start from"},
    {"/default_pg/{default}//{group}//store_based_barrier_key:{text}",
     CRYSTAL_STORE_COUNT_GROUP, "the same with use_local_synchronization"},
    {"/default_pg/{group}//{device}//{number}", CRYSTAL_STORE_ID,
     "the default group's communicator"},
    {"/default_pg/{group}//{device}//{number}:{number}", CRYSTAL_STORE_ID_OF_CRANK,
     "a communicator of two for send and recv; the lower rank comes first"},
    {"/default_pg/{group}//{device}//UniqueNCCLID:{number}", CRYSTAL_STORE_ID_OF_ROOT,
     "a large group's communicator with several roots"},
    {"/default_pg/{default}//{group}//{device}//{number}", CRYSTAL_STORE_ID,
     "another group's communicator, within the default group's prefix"},
    {"/default_pg/{default}//{group}//{device}//{number}:{number}",
     CRYSTAL_STORE_ID_OF_CRANK, "and so on"},
    {"/default_pg/{default}//{group}//{device}//UniqueNCCLID:{number}",
     CRYSTAL_STORE_ID_OF_ROOT, "and so on"},
    {"/crystal/group/{group}", CRYSTAL_STORE_MEMBERS, "from contrib/pytorch"},
    {"/exception_dump", CRYSTAL_STORE_NEVER,
     "ProcessGroupNCCL's heartbeat: dump and end"},
    {NULL, CRYSTAL_STORE_PLAIN, NULL},
};

struct text {
    const char *at;
    size_t left;
};

/* Length of the decimal number at the front; 0 where there is none below 2^32. */
static size_t number_length(const struct text *t, uint32_t *ret)
{
    uint64_t value = 0;
    size_t n = 0;

    while (n < t->left && t->at[n] >= '0' && t->at[n] <= '9') {
        value = value * 10 + (uint64_t)(t->at[n++] - '0');
        if (value > UINT32_MAX)
            return 0;
    }
    *ret = (uint32_t)value;
    return n;
}

/* Length up to the next "//" or the end. */
static size_t part_length(const struct text *t)
{
    for (size_t n = 0; n + 1 < t->left; n++)
        if (t->at[n] == '/' && t->at[n + 1] == '/')
            return n;
    return t->left;
}

static int is_placeholder(const char *pattern, const char *name)
{
    return strncmp(pattern, name, strlen(name)) == 0;
}

/* Length of key text that the placeholder at pattern stands for; 0 = does not fit. */
static size_t placeholder_length(const char *pattern, const struct text *t,
                                 struct crystal_store_match *m, unsigned *numbers)
{
    uint32_t number = 0;
    size_t n;

    if (is_placeholder(pattern, "{number}")) {
        n = number_length(t, &number);
        if (n && (*numbers)++ == 0)
            m->number = number;
        return n;
    }
    if (is_placeholder(pattern, "{text}"))
        return t->left;
    n = part_length(t);
    if (is_placeholder(pattern, "{group}")) {
        m->group = t->at;
        m->group_bytes = n;
    }
    return n;
}

static int rule_fits(const char *pattern, struct text t, struct crystal_store_match *m)
{
    unsigned numbers = 0;

    while (*pattern) {
        size_t n;

        if (*pattern != '{') {
            if (!t.left || *t.at != *pattern)
                return 0;
            pattern++;
            n = 1;
        } else {
            n = placeholder_length(pattern, &t, m, &numbers);
            if (n == 0)
                return 0;
            pattern = strchr(pattern, '}') + 1;
        }
        t.at += n;
        t.left -= n;
    }
    return t.left == 0;
}

void crystal_store_rules_match(const void *key, size_t key_bytes,
                               struct crystal_store_match *ret_match)
{
    const struct crystal_store_rule *rule;

    for (rule = crystal_store_rules; rule->pattern; rule++) {
        struct crystal_store_match m = {.effect = rule->effect};

        if (rule_fits(rule->pattern, (struct text){key, key_bytes}, &m)) {
            *ret_match = m;
            return;
        }
    }
    *ret_match = (struct crystal_store_match){.effect = CRYSTAL_STORE_PLAIN};
}

uint32_t crystal_store_rules_setter(const struct crystal_store_match *match,
                                    uint32_t member_count)
{
    uint64_t roots, each, more, crank;

    switch (match->effect) {
    case CRYSTAL_STORE_ID:
        return 0;
    case CRYSTAL_STORE_ID_OF_CRANK:
        return match->number < member_count ? match->number : member_count;
    case CRYSTAL_STORE_ID_OF_ROOT:
        /* The first (n mod roots) roots have one rank more than the others. */
        roots = ((uint64_t)member_count + CRYSTAL_STORE_RANKS_PER_ROOT - 1) /
                CRYSTAL_STORE_RANKS_PER_ROOT;
        if (match->number >= roots)
            return member_count;
        each = member_count / roots;
        more = member_count % roots;
        crank = match->number * each + (match->number < more ? match->number : more);
        return (uint32_t)crank;
    default:
        return member_count;
    }
}
