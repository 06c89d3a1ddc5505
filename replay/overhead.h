/* The software cost of a message, from collectives among sandbox ranks alone: what
 * their measured ends are later than the wire's model says, per message step and
 * operation.
 */
#ifndef CRYSTAL_OVERHEAD_H
#define CRYSTAL_OVERHEAD_H

#include "runtime/error.h"
#include "runtime/graph.h"
#include "runtime/trace.h"
#include "runtime/transfer.h"

#include <stdint.h>

struct crystal_overhead; /* a collection of ends */

struct crystal_overhead *crystal_overhead_create(void);
void crystal_overhead_destroy(struct crystal_overhead *o);

/* One member's part of a collective. Parts belong together by run, communicator and
 * number. */
struct crystal_overhead_part {
    uint32_t run, comm, crank, nranks;
    uint64_t seq;
    uint64_t begin_ns, end_ns;   /* of one clock for all members */
    const struct crystal_op *op; /* func, count, type, root; borrowed until destroyed */
};
int crystal_overhead_put(struct crystal_overhead *o,
                         const struct crystal_overhead_part *part,
                         struct crystal_error *err);
/* Adds what lrank's trace of that run tells of its collectives from record `first` on;
 * ops are borrowed until destroyed. */
int crystal_overhead_add(struct crystal_overhead *o, const struct crystal_graph *g,
                         uint32_t run, uint32_t lrank, const struct crystal_op *ops,
                         uint64_t op_count, uint64_t first, struct crystal_error *err);
/* Sets wire->overhead_ns (per message step) and wire->op_overhead_ns from the lower
 * quartiles of all collectives of which every member was added; both 0 where there are
 * none. Collectives of one length alone cannot tell the two apart: it all goes to the
 * steps. *ret_count says how many collectives there were. */
int crystal_overhead_find(struct crystal_overhead *o,
                          struct crystal_transfer_wire *wire, uint32_t *ret_count,
                          struct crystal_error *err);

#endif
