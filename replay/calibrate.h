/* The software cost of a message, measured by itself: for plan, where no collective of
 * the program has all its members in the sandbox.
 *
 * A few processes on this node load the NCCL library, form communicators of 2 and of
 * nranks members over the net plugin, paced like the target's wire, and run small
 * all-reduces; overhead.h finds the cost in their begins and ends.
 */
#ifndef CRYSTAL_CALIBRATE_H
#define CRYSTAL_CALIBRATE_H

#include "runtime/error.h"
#include "runtime/transfer.h"

#include <stdint.h>

#define CRYSTAL_CALIBRATE_RANKS 8 /* at most */

struct crystal_calibrate_config {
    const char *nccl_library; /* path of libcrystal-hostccl.so; borrowed */
    const char *net_plugin;   /* path of libnccl-net-crystal.so; borrowed */
    uint32_t nranks;          /* 2 .. CRYSTAL_CALIBRATE_RANKS */
};

/* Sets wire->overhead_ns and wire->op_overhead_ns; the others are what is paced. Takes
 * about a second, 30 s at most. *ret_count is the number of all-reduces. The calling
 * process has one thread (it forks). No process is left, whatever happens. */
int crystal_calibrate(const struct crystal_calibrate_config *config,
                      struct crystal_transfer_wire *wire, uint32_t *ret_count,
                      struct crystal_error *err);

#endif
