/* The store's rules as a table: what the keys of PyTorch's start-up mean, so that the
 * store can answer for ranks that are not there.
 *
 * Keys are as they stand on the wire (PyTorch's TCPStore puts "/" before every key but
 * the worker counter). A pattern's placeholders are {default}, {group} and {device}
 * (anything up to the next "//" or the end), {number} (decimal digits), {text} (the
 * rest, not empty); everything else is literal. The first row that fits a whole key
 * counts, a key without a row is plain. Frozen: keys of PyTorch 2.4 to 2.11; rows are
 * only added.
 */
#ifndef CRYSTAL_STORE_RULES_H
#define CRYSTAL_STORE_RULES_H

#include <stddef.h>
#include <stdint.h>

enum crystal_store_effect {
    CRYSTAL_STORE_PLAIN = 0,
    /* A counter to which every rank of the job adds: the absent ones have done so. */
    CRYSTAL_STORE_COUNT_WORLD,
    /* The same for the members of {group}. */
    CRYSTAL_STORE_COUNT_GROUP,
    /* 128 bytes of a communicator's id, set by the member whose crank is {number}. */
    CRYSTAL_STORE_ID_OF_CRANK,
    /* ... set by crank 0. */
    CRYSTAL_STORE_ID,
    /* ... set by the {number}th of several roots, CRYSTAL_STORE_RANKS_PER_ROOT each. */
    CRYSTAL_STORE_ID_OF_ROOT,
    /* Members of {group}: logical ranks by crank as a list, "0-7" or "0,8,16". */
    CRYSTAL_STORE_MEMBERS,
    /* Never exists, whoever sets it: it would end every rank. */
    CRYSTAL_STORE_NEVER
};

/* TORCH_NCCL_RANKS_PER_ROOT's default. */
#define CRYSTAL_STORE_RANKS_PER_ROOT 128

struct crystal_store_match {
    enum crystal_store_effect effect;
    const char *group; /* points into the key, not terminated; NULL without {group} */
    size_t group_bytes;
    uint32_t number; /* the first {number} of the pattern */
};

struct crystal_store_rule {
    const char *pattern;
    enum crystal_store_effect effect;
    const char *why;
};

/* Ends with a row whose pattern is NULL. */
extern const struct crystal_store_rule crystal_store_rules[];

void crystal_store_rules_match(const void *key, size_t key_bytes,
                               struct crystal_store_match *ret_match);
/* The crank that sets an id key of a group of member_count; member_count itself (no
 * such crank) where the key does not fit the group. */
uint32_t crystal_store_rules_setter(const struct crystal_store_match *match,
                                    uint32_t member_count);

#endif
