/* An assistant: what a node of emulate does that runs no ranks. It sends what virtual
 * ranks send to the sandbox and takes what they receive (assist_message.h), over TCP,
 * and is linked with the other nodes (node_links.h). One thread moves all bytes.
 */
#ifndef CRYSTAL_ASSISTANT_H
#define CRYSTAL_ASSISTANT_H

#include "runtime/coord_client.h"
#include "runtime/error.h"
#include "runtime/message.h"

#include <stdint.h>

struct crystal_assist_counts;
struct crystal_assistant;
struct crystal_graph;
struct crystal_links;

struct crystal_assistant_config {
    struct crystal_links *links;          /* that listen; taken over, also on failure */
    uint32_t node, node_count;            /* this one, of all nodes of the stage */
    uint32_t assistant_count;             /* the last of these */
    const struct crystal_msg_node *nodes; /* [node_count]; borrowed during create */
    struct crystal_client *coord;         /* borrowed until destroy; NULL: none */
    const struct crystal_graph *graph;    /* the job's, the same */
};

/* Starts, and waits until the services of all nodes are ready. NULL on failure. */
struct crystal_assistant *
crystal_assistant_create(const struct crystal_assistant_config *config,
                         struct crystal_error *err);
/* 1 once no other node needs it any more, else 0. */
int crystal_assistant_is_done(struct crystal_assistant *assistant);
/* The first failure since create, 0 if none. */
int crystal_assistant_status(struct crystal_assistant *assistant,
                             struct crystal_error *err);
/* What it has moved so far. */
void crystal_assistant_counts(struct crystal_assistant *assistant,
                              struct crystal_assist_counts *ret);
/* NULL is fine. */
void crystal_assistant_destroy(struct crystal_assistant *assistant);

#endif
