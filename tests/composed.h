/* Plan's end for a job made by hand (tests/job.h). Failing calls end the test program.
 */
#ifndef CRYSTAL_TESTS_COMPOSED_H
#define CRYSTAL_TESTS_COMPOSED_H

#include "replay/compose.h"
#include "replay/run_record.h"
#include "runtime/blockfile.h"
#include "runtime/profile_file.h"

#include "tests/job.h"

/* FOLDER/LRANK.run: what the rank's net plugin saw. */
static inline void job_saw_in(const struct job *j, const char *folder, uint32_t lrank,
                              const struct crystal_run_record *records, size_t count)
{
    static const struct crystal_blockfile_kind kind = CRYSTAL_RUN_KIND;
    struct crystal_block_writer *w;
    char path[160];

    job_path(j, path, sizeof path, "%s/%u.run", folder, lrank);
    w = crystal_block_create(path, &kind, lrank, 0, &job_err);
    JOB_MUST(!w);
    for (size_t i = 0; i < count; i++)
        crystal_block_append(w, &records[i]);
    JOB_MUST(crystal_block_close(w, &job_err));
    JOB_MUST(crystal_block_seal(path, &kind, &job_err));
}

static inline void job_saw(const struct job *j, uint32_t lrank,
                           const struct crystal_run_record *records, size_t count)
{
    job_saw_in(j, "plan", lrank, records, count);
}

/* Composes job.profile, without calibration. The caller closes it. */
static inline struct crystal_profile *
job_composed(const struct job *j, const struct crystal_compose_pass *pass)
{
    struct crystal_profile *p;
    char path[160];

    JOB_MUST(crystal_plan_compose(j->dir, NULL, pass, &job_err));
    job_path(j, path, sizeof path, "job.profile");
    p = crystal_profile_open(path, &job_err);
    JOB_MUST(!p);
    return p;
}

/* Captures a job that was begun and plans it: record writes what each live rank does,
 * which is the same in both stages. */
static inline void job_planned(struct job *j, const char *comms,
                               void (*record)(struct job *j, const char *folder,
                                              uint32_t lrank))
{
    static const struct crystal_compose_pass pass;

    job_text(j, "comms.tab", comms);
    for (uint32_t i = 0; i < j->layout.live_count; i++) {
        record(j, "ranks", j->layout.live[i]);
        record(j, "plan", j->layout.live[i]);
    }
    JOB_MUST(crystal_graph_build(j->dir, &job_err));
    crystal_profile_close(job_composed(j, &pass));
}

#endif
