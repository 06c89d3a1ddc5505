/* Reading recorded contributions ahead: how far, what is late, what is given back. */
#include "config.h"

#include "replay/net_prefetch.h"
#include "runtime/graph.h"

#include "tests/check.h"
#include "tests/job.h"

#include <time.h>

#define N     4
#define STEPS 40
#define COUNT 65536 /* floats: 256 KiB of each rank */

static struct job job;

/* Per step an all-reduce of the world and a message from rank 3 to rank 0. */
static void record_rank(uint32_t rank)
{
    float *data = calloc(COUNT, sizeof *data);

    job_rank(&job, "ranks", rank);
    job_comm(&job, "world", rank, N);
    for (int i = 0; i < STEPS; i++) {
        job_coll(&job, CRYSTAL_FUNC_ALLREDUCE, 0, COUNT);
        job_payload(&job, data, COUNT * sizeof *data);
        if (rank == 3) {
            job_p2p(&job, 1, 0, 0, COUNT);
            job_payload(&job, data, COUNT * sizeof *data);
        } else if (rank == 0) {
            job_p2p(&job, 0, 0, 3, COUNT);
        }
    }
    job_rank_end(&job);
    free(data);
}

/* Waits until the thread has nothing to do: it has walked `want` records at least. */
static uint64_t settle(struct crystal_prefetch *p, uint64_t want, uint64_t *ret_bytes)
{
    const struct timespec pause = {0, 1000000};
    uint64_t walked = 0, before = UINT64_MAX;

    for (int i = 0; i < 20000 && (walked < want || walked != before); i++) {
        before = walked;
        (void)nanosleep(&pause, NULL);
        walked = crystal_prefetch_walked(p, ret_bytes);
    }
    return walked;
}

static void walks_ahead_of_use(void)
{
    static const uint8_t is_real[N] = {1, 0, 0, 0};
    const uint64_t block = COUNT * sizeof(float), budget = 10 * block;
    struct crystal_error err = {0};
    struct crystal_prefetch *p;
    struct crystal_graph *g;
    uint64_t bytes, walked;
    char path[160];

    job_begin(&job, N, NULL, "0-3", "0-3");
    job_text(&job, "comms.tab", "world\t4\t0-3\n");
    for (uint32_t r = 0; r < N; r++)
        record_rank(r);
    JOB_MUST(crystal_graph_build(job.dir, &job_err));
    job_path(&job, path, sizeof path, "job.graph");
    g = crystal_graph_open(path, &err);
    CHECK(g);
    p = crystal_prefetch_create(g, 0, budget, &err);
    CHECK(p);
    /* nothing has been read: late. Its number in the recording counts, the first too.
     */
    CHECK_EQ(crystal_prefetch_use(p, 0, UINT32_MAX, 0), 1);
    CHECK_EQ(crystal_prefetch_add(p, 0, is_real, N, &err), 0);
    /* 3 blocks of a sum and 1 of a message per step, until 10 are passed */
    walked = settle(p, 1, &bytes);
    CHECK_EQ(bytes, 3 * 3 * block + 2 * block);
    CHECK(walked < 20);
    CHECK_EQ(crystal_prefetch_use(p, 0, UINT32_MAX, 0), 0);
    CHECK_EQ(crystal_prefetch_use(p, 0, 3, 0), 0);
    CHECK_EQ(crystal_prefetch_use(p, 0, UINT32_MAX, 1), 0);
    /* step 0 is given back, as much is read more */
    CHECK(settle(p, walked + 2, &bytes) > walked);
    CHECK(bytes >= budget && bytes < budget + 3 * block);
    /* a jump beyond what was read is late; then reading goes on there */
    CHECK_EQ(crystal_prefetch_use(p, 0, UINT32_MAX, STEPS - 2), 1);
    walked = settle(p, 120, &bytes);
    CHECK_EQ(crystal_prefetch_use(p, 0, UINT32_MAX, STEPS - 1), 0);
    CHECK_EQ(crystal_prefetch_use(p, 0, 3, STEPS - 1), 0);
    /* what is not in the recording is not late */
    CHECK_EQ(crystal_prefetch_use(p, 0, UINT32_MAX, STEPS), 0);
    CHECK_EQ(crystal_prefetch_use(p, 0, 2, 0), 0);
    CHECK(bytes <= 2 * 4 * block);
    crystal_prefetch_destroy(p);
    crystal_prefetch_destroy(NULL);
    crystal_graph_close(g);
    job_end(&job);
}

int main(void)
{
    check_begin();
    CHECK_RUN(walks_ahead_of_use);
    return check_end();
}
