/* runs/NNN/LRANK.run: what one sandbox rank communicated, written by the net plugin
 * (PROFILER part) during plan and emulate. File: crystal_filehead (magic "CRYRUNRC"),
 * then blocks as in a trace (runtime/trace.h) with records of 64 bytes. Times are
 * absolute CLOCK_MONOTONIC ns. Records stand in the order in which operations ended;
 * `order` counts in the order of the API calls (collectives and p2p of all
 * communicators). Frozen: version 2; version 1 has no way, a zero.
 */
#ifndef CRYSTAL_RUN_RECORD_H
#define CRYSTAL_RUN_RECORD_H

#include <stdint.h>

#define CRYSTAL_RUN_MAGIC   "CRYRUNRC"
#define CRYSTAL_RUN_VERSION 2
/* A crystal_blockfile_kind. */
#define CRYSTAL_RUN_KIND                                                             \
    {                                                                                \
        CRYSTAL_RUN_MAGIC, CRYSTAL_RUN_VERSION, sizeof(struct crystal_run_record), 1 \
    }

struct crystal_run_record {
    uint64_t comm_id; /* NCCL's commHash */
    uint64_t order;
    uint64_t api_ns;    /* the program called */
    uint64_t arrive_ns; /* reached the head of its stream: work began */
    uint64_t end_ns;
    uint64_t bytes; /* count times element size, as in the API call */
    uint32_t nranks;
    uint32_t crank;
    uint8_t func;
    uint8_t dtype;
    uint8_t flags;      /* CRYSTAL_RUN_* */
    uint8_t way;        /* CRYSTAL_OP_WAY of a collective (runtime/op.h) */
    uint32_t waited_us; /* of arrive..end: waiting for virtual arrivals, saturating */
};
_Static_assert(sizeof(struct crystal_run_record) == 64, "frozen");

#define CRYSTAL_RUN_VIRTUAL 0x01 /* at least one member is virtual */
#define CRYSTAL_RUN_STANDIN 0x02 /* a virtual contribution was a stand-in */

#endif
