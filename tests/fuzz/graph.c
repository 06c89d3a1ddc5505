/* The reader of job.graph takes any bytes; whatever opens can be asked anything. */
#include "config.h"

#include "runtime/graph.h"
#include "runtime/graph_diff.h"
#include "runtime/predict_run.h"
#include "runtime/verify.h"

#include "tests/fuzz/sealed_file.h"

#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void ask(const struct crystal_graph *g)
{
    struct crystal_graph_stat stat;
    const void *bytes;
    uint64_t count, sum = 0;
    uint32_t marks;

    crystal_graph_stat(g, &stat);
    for (uint32_t r = 0; r < crystal_graph_rep_count(g); r++) {
        const struct crystal_op *ops = crystal_graph_ops(g, r, &count);
        const uint64_t *mark = crystal_graph_marks(g, r, &marks);

        for (uint64_t i = 0; i < count; i++)
            sum += ops[i].value;
        for (uint32_t i = 0; i < marks; i++)
            sum += mark[i] < count ? ops[mark[i]].t_ns : 0;
    }
    for (uint32_t r = 0; r < crystal_graph_lrank_count(g); r++)
        for (uint32_t i = 0; i < crystal_graph_local_count(g, r); i++) {
            struct crystal_graph_comm comm;
            uint32_t c = crystal_graph_comm_of(g, r, i);

            crystal_graph_comm(g, c, &comm);
            sum += comm.name ? strlen(comm.name) : 0;
            for (uint32_t k = 0; k < comm.nranks; k++) {
                sum += crystal_graph_peer_of(g, r, i, k);
                for (uint64_t seq = 0; seq < 4; seq++) {
                    if (crystal_graph_payload(g, c, seq, k, &bytes, &count) == 1)
                        sum += count ? *(const unsigned char *)bytes : 0;
                    if (crystal_graph_p2p_payload(g, c, k, 0, seq, &bytes, &count) == 1)
                        sum += count ? *(const unsigned char *)bytes : 0;
                    sum += crystal_graph_seq_repeat(g, c, 100 * seq, k);
                }
            }
        }
    if (sum == 42)
        putchar('\n'); /* so that nothing above is left out */
}

/* Everything that works on graphs of any origin. */
static void use(const struct crystal_graph *g)
{
    struct crystal_graph_memory memory;
    struct crystal_verdict verdict;
    struct crystal_predict p;
    FILE *out = fopen("/dev/null", "w");

    if (!out)
        return;
    (void)crystal_graph_diff(out, g, g, NULL);
    (void)crystal_graph_expand_check(out, g, NULL);
    for (uint32_t r = 0; r < crystal_graph_rep_count(g); r++)
        (void)crystal_graph_memory(out, g, r, &memory);
    if (!crystal_verify(g, &verdict, NULL))
        crystal_verdict_fini(&verdict);
    if (!crystal_predict_init(&p, g, NULL, 1, NULL)) {
        struct crystal_prediction *pr;
        struct crystal_what_if what;

        crystal_what_if_init(&what);
        pr = crystal_predict_run(&p, &what, 1, NULL);
        if (pr && !pr->stuck_count) {
            struct crystal_path path = {NULL, 0};
            struct crystal_rank_stat stat;
            struct crystal_walk walk = {0};

            (void)crystal_prediction_path(pr, &path, NULL);
            (void)crystal_prediction_stat(pr, 0, &walk, &stat);
            crystal_path_fini(&path);
            crystal_walk_fini(&walk);
        }
        crystal_prediction_destroy(pr);
    }
    crystal_predict_fini(&p);
    (void)fclose(out); /* nothing was kept */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct crystal_graph *g = crystal_graph_open(fuzz_sealed_file(data, size), NULL);

    if (g) {
        ask(g);
        use(g);
    }
    crystal_graph_close(g);
    return 0;
}
