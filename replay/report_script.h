/* The communication calls that a rank of a report is expected to make, and its run
 * records put beside them.
 *
 * The nth call of a rank's run is the nth of its representative's trace; behind the
 * recording the last iteration repeats.
 */
#ifndef CRYSTAL_REPORT_SCRIPT_H
#define CRYSTAL_REPORT_SCRIPT_H

#include "replay/parts.h"
#include "replay/report_internal.h"

struct rp_script {
    const struct crystal_program *program; /* borrowed */
    struct crystal_part *parts;            /* before the iterations, by number */
    uint64_t part_count;
    struct crystal_call *calls; /* of one iteration, those that leave records */
    uint32_t *instrs;           /* theirs, in program */
    uint64_t each;
};

/* 0 or -ENOMEM; rp_script_fini in both cases. */
int rp_script_make(const struct report *r, uint32_t lrank, struct rp_script *s);
void rp_script_fini(struct rp_script *s);

/* Records of a run: before the iterations each part's, then one for each call. */
struct rp_reading {
    uint64_t before;  /* records before the iterations */
    uint64_t left_at; /* the first that fits no call; count: all fit */
    uint64_t count;
};

/* Sorts recs, puts each call's record in the place of its parts' and says what fits. A
 * call that the end of the run cuts in two is left out. s->each is at least 1. */
void rp_script_read(const struct rp_script *s, struct crystal_run_record *recs,
                    uint64_t count, struct rp_reading *ret);

#endif
