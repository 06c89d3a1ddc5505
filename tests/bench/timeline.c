/* How fast the timeline is: operations of virtual ranks that it ends per second, for 64
 * ranks of tp=2,pp=4,dp=8 with 8 microbatches, 20 iterations.
 */
#include "config.h"

#include "runtime/timeline.h"

#include "tests/job.h"

#include <time.h>

#define STAGES 4
#define MICRO  8
#define LAYERS 4

static void layers(struct job *j)
{
    for (int i = 0; i < LAYERS; i++) {
        job_coll(j, CRYSTAL_FUNC_ALLREDUCE, 1, 65536);
        job_sync(j, 1, 1);
    }
}

static void rank_write(struct job *j, uint32_t lrank)
{
    uint32_t tp = lrank % 2, stage = lrank / 2, ahead = STAGES - 1 - stage;
    char name[32];

    job_rank(j, "ranks", lrank);
    (void)snprintf(name, sizeof name, "/pp%u", tp);
    job_comm(j, name, stage, STAGES);
    (void)snprintf(name, sizeof name, "/tp%u", stage);
    job_comm(j, name, tp, 2);
    (void)snprintf(name, sizeof name, "/dp%u", lrank);
    job_comm(j, name, 0, 8);
    for (uint64_t i = 0; i < 3; i++) {
        for (uint32_t m = 0; m < MICRO + ahead; m++) {
            if (m < MICRO) {
                if (stage > 0) {
                    job_p2p(j, 0, 0, stage - 1, 65536);
                    job_sync(j, 0, 1);
                }
                layers(j);
                if (stage < STAGES - 1)
                    job_p2p(j, 1, 0, stage + 1, 65536);
            }
            if (m >= ahead) {
                if (stage < STAGES - 1) {
                    job_p2p(j, 0, 0, stage + 1, 65536);
                    job_sync(j, 0, 1);
                }
                layers(j);
                if (stage > 0)
                    job_p2p(j, 1, 0, stage - 1, 65536);
            }
        }
        for (int k = 0; k < 4; k++)
            job_coll(j, CRYSTAL_FUNC_ALLREDUCE, 2, 1 << 20);
        job_sync(j, 2, 1);
        job_hint(j, i + 1);
    }
    job_rank_end(j);
}

static double now_s(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail for this clock */
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(void)
{
    struct crystal_program *programs[8];
    uint64_t *gaps[8];
    char path[160], table[1024];
    struct crystal_timeline_config config = {.iterations = 20, .programs = programs};
    struct crystal_timeline *timeline;
    struct crystal_graph *graph;
    double begin;
    struct job j;
    int used = 0;

    job_begin(&j, 64, "tp=2,pp=4,dp=8", "0-7", "0-7");
    for (uint32_t i = 0; i < 2; i++)
        used += snprintf(table + used, sizeof table - (size_t)used,
                         "/pp%u\t4\t%u,%u,%u,%u\n", i, i, i + 2, i + 4, i + 6);
    for (uint32_t i = 0; i < 4; i++)
        used += snprintf(table + used, sizeof table - (size_t)used, "/tp%u\t2\t%u,%u\n",
                         i, 2 * i, 2 * i + 1);
    for (uint32_t i = 0; i < 8; i++)
        used += snprintf(table + used, sizeof table - (size_t)used,
                         "/dp%u\t8\t%u,%u,%u,%u,%u,%u,%u,%u\n", i, i, i + 8, i + 16,
                         i + 24, i + 32, i + 40, i + 48, i + 56);
    job_text(&j, "comms.tab", table);
    for (uint32_t r = 0; r < 8; r++)
        rank_write(&j, r);
    JOB_MUST(crystal_graph_build(j.dir, &job_err));
    job_path(&j, path, sizeof path, "job.graph");
    graph = crystal_graph_open(path, &job_err);
    JOB_MUST(!graph);
    for (uint32_t r = 0; r < 8; r++) {
        programs[r] = crystal_program_create(graph, r, &job_err);
        JOB_MUST(!programs[r]);
        gaps[r] = calloc(programs[r]->instr_count, sizeof *gaps[r]);
        JOB_MUST(!gaps[r]);
        for (uint32_t i = 0; i < programs[r]->instr_count; i++)
            gaps[r][i] = 50000;
    }
    config.graph = graph;
    config.gap_ns = (const uint64_t *const *)gaps;
    config.wire = (struct crystal_transfer_wire){1250000000, 20000, 0, 1, 0};
    begin = now_s();
    timeline = crystal_timeline_create(&config, &job_err);
    JOB_MUST(!timeline);
    JOB_MUST(crystal_timeline_start(timeline, 0, &job_err));
    JOB_MUST(crystal_timeline_advance(timeline, UINT64_MAX, &job_err));
    JOB_MUST(crystal_timeline_explain(timeline, &job_err));
    printf("timeline.events_per_s %.0f events/s\n",
           (double)crystal_timeline_event_count(timeline) / (now_s() - begin));
    crystal_timeline_destroy(timeline);
    for (uint32_t r = 0; r < 8; r++) {
        crystal_program_destroy(programs[r]);
        free(gaps[r]);
    }
    crystal_graph_close(graph);
    job_end(&j);
    return 0;
}
