/* job.graph as text. See show.h. */
#include "config.h"

#include "commands/show.h"

#include "runtime/layout.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

static int print_rank_map(FILE *out, const struct crystal_graph *g)
{
    uint32_t n = crystal_graph_lrank_count(g);
    uint32_t *ranks = malloc(n * sizeof *ranks);

    if (!ranks)
        return -ENOMEM;
    for (uint32_t r = 0; r < crystal_graph_rep_count(g); r++) {
        uint32_t count = 0, mark_count;
        uint64_t op_count;
        char *text;

        for (uint32_t lrank = 0; lrank < n; lrank++)
            if (crystal_graph_rep_of(g, lrank) == r)
                ranks[count++] = lrank;
        text = crystal_ranks_format(ranks, count);
        if (!text) {
            free(ranks);
            return -ENOMEM;
        }
        (void)crystal_graph_ops(g, r, &op_count);
        (void)crystal_graph_marks(g, r, &mark_count);
        fprintf(out, "rank %u: %" PRIu64 " records, %u iterations, stands for %s\n",
                crystal_graph_rep_lrank(g, r), op_count,
                mark_count ? mark_count - 1 : 0, text);
        free(text);
    }
    free(ranks);
    return 0;
}

static int print_comms(FILE *out, const struct crystal_graph *g)
{
    for (uint32_t i = 0; i < crystal_graph_comm_count(g); i++) {
        struct crystal_graph_comm c;
        char *text;

        crystal_graph_comm(g, i, &c);
        text = crystal_ranks_format(c.members, c.nranks);
        if (!text)
            return -ENOMEM;
        fprintf(out, "communicator %u: %u ranks %s, %s%s%s\n", i, c.nranks, text,
                c.name ? "'" : "", c.name ? c.name : "in a replica not captured",
                c.name ? "'" : "");
        free(text);
    }
    return 0;
}

static void print_ops(FILE *out, const struct crystal_graph *g, uint32_t rep)
{
    uint32_t lrank = crystal_graph_rep_lrank(g, rep), mark_count;
    const uint64_t *marks = crystal_graph_marks(g, rep, &mark_count);
    uint64_t op_count, at = 0;
    const struct crystal_op *ops = crystal_graph_ops(g, rep, &op_count);

    fprintf(out, "\noperations of rank %u (record, us since start)\n", lrank);
    for (uint32_t i = 0; i < crystal_graph_local_count(g, lrank); i++)
        fprintf(out, "comm %u is communicator %u\n", i,
                crystal_graph_comm_of(g, lrank, i));
    for (uint32_t k = 0; k < mark_count; k++) {
        crystal_show_ops(out, ops, at, marks[k]);
        at = marks[k];
        if (k + 1 < mark_count)
            fprintf(out, "-- iteration %u\n", k + 1);
        else
            fprintf(out, "-- after the iterations\n");
    }
    crystal_show_ops(out, ops, at, op_count);
}

int crystal_show_graph(FILE *out, const struct crystal_graph *g, int with_ops)
{
    struct crystal_graph_stat stat;
    int code;

    crystal_graph_stat(g, &stat);
    fprintf(out,
            "%u ranks through %u recorded ones, %u iterations\n"
            "%u communicators, %" PRIu64 " records, %" PRIu64
            " contributions of %" PRIu64 " bytes, %" PRIu64 " bytes in all\n"
            "fingerprint %016" PRIx64 "\n",
            crystal_graph_lrank_count(g), crystal_graph_rep_count(g),
            stat.iteration_count, crystal_graph_comm_count(g), stat.op_count,
            stat.payload_count, stat.payload_bytes, stat.file_bytes,
            crystal_graph_fingerprint(g));
    code = print_rank_map(out, g);
    if (!code && with_ops)
        code = print_comms(out, g);
    for (uint32_t r = 0; !code && with_ops && r < crystal_graph_rep_count(g); r++)
        print_ops(out, g, r);
    return code;
}
