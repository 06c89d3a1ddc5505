/* See assist_recipe.h. */
#include "config.h"

#include "replay/assist_recipe.h"

#include "runtime/graph.h"
#include "runtime/nccl_abi.h"

#include <string.h>

void crystal_recipe_spoil(struct crystal_recipe *r)
{
    if (!r)
        return;
    r->is_known = 0;
    r->source = (struct crystal_assist_source){.nranks = 1};
}

void crystal_recipe_open(struct crystal_recipe *r, uint64_t data_bytes)
{
    if (!r)
        return;
    crystal_recipe_spoil(r);
    r->is_known = 1;
    r->source.data_bytes = data_bytes;
}

void crystal_recipe_keep(struct crystal_recipe *r, const struct crystal_assist_key *key)
{
    if (!r || !r->is_known)
        return;
    r->source.key = *key;
    r->source.flags |= CRYSTAL_ASSIST_KEPT;
}

void crystal_recipe_reduce(struct crystal_recipe *r, uint32_t dtype, uint32_t redop,
                           uint32_t nranks)
{
    if (!r || !r->is_known)
        return;
    r->source.dtype = dtype;
    r->source.redop = redop;
    r->source.nranks = nranks;
}

void crystal_recipe_add(struct crystal_recipe *r, const void *data, uint32_t flags)
{
    const unsigned char *from = data, *body;
    uint64_t body_bytes;

    if (!r || !r->is_known)
        return;
    body = r->graph ? crystal_graph_body(r->graph, &body_bytes) : NULL;
    if (!body || from < body || (uint64_t)(from - body) > body_bytes ||
        r->source.data_bytes > body_bytes - (uint64_t)(from - body) ||
        r->source.term_count == CRYSTAL_ASSIST_TERMS_MAX) {
        crystal_recipe_spoil(r);
        return;
    }
    r->source.graph = crystal_graph_hash(r->graph);
    r->terms[r->source.term_count++] =
        (struct crystal_assist_term){.at = (uint64_t)(from - body), .flags = flags};
}

void crystal_recipe_set(struct crystal_recipe *r, const void *data, uint64_t data_bytes)
{
    crystal_recipe_open(r, data_bytes);
    crystal_recipe_reduce(r, ncclUint8, ncclSum, 1);
    if (data_bytes)
        crystal_recipe_add(r, data, 0);
}

void crystal_recipe_divide(struct crystal_recipe *r)
{
    if (r && r->is_known)
        r->source.flags |= CRYSTAL_ASSIST_DIVIDED;
}
