/* Which part of an operation each channel does: NCCL 2.28 deals a tensor in cells, the
 * smallest amounts that are worth a channel. Shared by the schedules of rings and
 * trees.
 */
#ifndef CRYSTAL_CHANNEL_PART_H
#define CRYSTAL_CHANNEL_PART_H

#include "runtime/wire_form.h"

#include <stdint.h>

struct crystal_channel_part {
    uint64_t offset; /* units before it */
    uint64_t units;  /* 0: this channel has nothing to do */
};

/* count units (elements, or bytes) of unit_bytes in all; traffic_per_byte: bytes on the
 * busiest link per byte of the tensor, for LL counted four times in the size of a cell
 * and in the share of a channel. channel < channel_count. */
struct crystal_channel_part crystal_channel_part(uint64_t count, uint32_t unit_bytes,
                                                 uint64_t traffic_per_byte,
                                                 enum crystal_proto proto,
                                                 uint32_t channel_count,
                                                 uint32_t channel);

#endif
