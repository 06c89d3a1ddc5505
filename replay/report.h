/* The report of an emulated job: what the latest run measured against what plan
 * composed.
 */
#ifndef CRYSTAL_REPORT_H
#define CRYSTAL_REPORT_H

#include "runtime/error.h"

/* Writes job_dir/report.txt, report.json, report.html and trace.json from the latest of
 * job_dir/runs/NNN
 * (*.run, run.yaml), job.profile, job.graph, layout.yaml and plan/R.trace. Refuses with
 * the stage to run again where one was made from another than those that lie there. */
int crystal_report_write(const char *job_dir, struct crystal_error *err);

/* Is what the sandbox did in job_dir/run ("runs/003", finished) the captured job? 0, or
 * -ESTALE with a sentence: a rank made another call than was captured before its first
 * iteration was over. A run that only ends early is the captured job, and of a rank
 * without a record nothing is known. Other errors are those of crystal_report_write. */
int crystal_report_fit(const char *job_dir, const char *run, struct crystal_error *err);

#endif
