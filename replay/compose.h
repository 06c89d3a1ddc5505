/* The end of plan: from what the sandbox ranks measured to the profile of all ranks. */
#ifndef CRYSTAL_COMPOSE_H
#define CRYSTAL_COMPOSE_H

#include "runtime/error.h"
#include "runtime/transfer.h"

/* Makes job_dir/job.profile from job_dir/plan/R.trace of the sandbox ranks, recorded
 * while their calls passed through and virtual ranks answered at once, from job.graph
 * and layout.yaml. The first iteration is left out. Where no collective has all its
 * members in the sandbox, calibrate (unless NULL) is asked for the software cost of a
 * message, as crystal_calibrate finds it. */
typedef int crystal_compose_calibrate(uint32_t sandbox_count,
                                      struct crystal_transfer_wire *wire,
                                      uint32_t *ret_count, struct crystal_error *err);
/* How the pass was run. */
struct crystal_compose_pass {
    uint32_t before_count; /* passes before this one */
    double before_mean_ns; /* iteration of the sandbox that the last one has composed */
    uint32_t cpu_count;    /* that a slice's ranks had; 0: one each */
    int has_device;        /* slices ran on GPUs, with a library that is not ours */
};
/* Where a slice has more ranks than CPUs, they keep each other from them, so its
 * collectives do not tell what software costs, and calibrate is asked for that. Its
 * ranks also go on late behind waits, which is in none of the parts. So each slice is
 * composed by itself, held up by virtual ranks for as long as the run records
 * (plan/R.run) say that it was, and what it really took longer is added, evenly, to the
 * computation behind every wait. Virtual ranks then keep the pace that sandbox ranks
 * have when nobody holds them up; time that those have waited for virtual ranks never
 * comes back as time of virtual ranks.
 *
 * On a GPU the library's software is no cost of a message alone: kernels are launched,
 * and copies go through host memory beside computation. So each slice is composed by
 * itself there, too, and what an operation really took longer is its own cost
 * (compose_cost.c); what is in the head of the profile is 0, and nobody is asked. The
 * first pass measures work of the device, which makes launches longer; the others need
 * not: what they lack is as in job.profile, which the pass before has left. */
int crystal_plan_compose(const char *job_dir, crystal_compose_calibrate *calibrate,
                         const struct crystal_compose_pass *pass,
                         struct crystal_error *err);

#endif
