/* What the fuzzers of the net plugin stand on. */
#ifndef CRYSTAL_TESTS_FUZZ_NET_CONTEXT_H
#define CRYSTAL_TESTS_FUZZ_NET_CONTEXT_H

#include "replay/net.h"

#include <stdlib.h>

/* A communicator of two, made once, paced, so that rendezvous, acks and answers are on.
 */
static inline struct crystal_net_context *net_context(void)
{
    static struct crystal_net_context made;
    struct crystal_error err = {0};

    if (!made.comm) {
        (void)setenv("CRYSTAL_WIRE", "1000000000000,1", 1);
        (void)setenv("CRYSTAL_LOG", "error", 1);
        made.comm = crystal_net_comm_get(crystal_net_module_get(&err), 1, 0, &err);
        if (!made.comm || crystal_net_comm_set(made.comm, 2, 0, &err))
            abort();
    }
    return &made;
}

#endif
