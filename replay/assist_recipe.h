/* What a virtual rank's message is made of, so that an assistant can make it: found out
 * by the plugin while it makes the message itself (assist_message.h has the words).
 * Where that is not known the plugin gives the assistant the bytes. Not thread-safe.
 */
#ifndef CRYSTAL_ASSIST_RECIPE_H
#define CRYSTAL_ASSIST_RECIPE_H

#include "replay/assist_message.h"

#include <stdint.h>

struct crystal_graph;

struct crystal_recipe {
    const struct crystal_graph *graph; /* borrowed; NULL: there are no contributions */
    int is_known;                      /* the source and the terms are the message */
    struct crystal_assist_source source;
    struct crystal_assist_term terms[CRYSTAL_ASSIST_TERMS_MAX];
};

/* All of these do nothing for NULL, where nobody asks. */

/* A message has so many bytes of data, zeros so far. */
void crystal_recipe_open(struct crystal_recipe *recipe, uint64_t data_bytes);
/* It is made of something else. */
void crystal_recipe_spoil(struct crystal_recipe *recipe);
/* It begins with a real rank's message that the assistant has kept. */
void crystal_recipe_keep(struct crystal_recipe *recipe,
                         const struct crystal_assist_key *key);
/* It is a contribution as it is, data_bytes of it; data lie in the graph, else this
 * spoils. */
void crystal_recipe_set(struct crystal_recipe *recipe, const void *data,
                        uint64_t data_bytes);
/* A reduction of these. */
void crystal_recipe_reduce(struct crystal_recipe *recipe, uint32_t dtype,
                           uint32_t redop, uint32_t nranks);
/* A contribution more; flags: crystal_assist_term_flags. */
void crystal_recipe_add(struct crystal_recipe *recipe, const void *data,
                        uint32_t flags);
/* The sum is divided by the number of ranks. */
void crystal_recipe_divide(struct crystal_recipe *recipe);

#endif
