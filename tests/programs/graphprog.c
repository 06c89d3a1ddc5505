/* An example of libcrystal-graph: counts what each representative of a job.graph does,
 * and tells how long an iteration takes by job.profile.
 * Built by tests/t/install.t from the installed header and library, as a user would:
 *
 *   cc graphprog.c -lcrystal-graph
 */
#include <crystal/graph.h>
#include <crystal/profile.h>

#include <inttypes.h>
#include <stdio.h>

static int show_profile(const char *path)
{
    struct crystal_error err = {0};
    struct crystal_profile *profile = crystal_profile_open(path, &err);
    const struct crystal_profile_iteration *iteration;

    if (!profile) {
        fprintf(stderr, "graphprog: %s\n", crystal_error_text(&err));
        return 1;
    }
    iteration = crystal_profile_iteration(profile, 0);
    printf("%" PRIu32 " ranks measured, iteration %" PRIu64 " ns\n",
           crystal_profile_head(profile)->measured_count, iteration->mean_ns);
    crystal_profile_close(profile);
    return 0;
}

int main(int argc, char **argv)
{
    struct crystal_error err = {0};
    struct crystal_graph *graph;

    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: graphprog GRAPH [PROFILE]\n");
        return 2;
    }
    graph = crystal_graph_open(argv[1], &err);
    if (!graph) {
        fprintf(stderr, "graphprog: %s\n", crystal_error_text(&err));
        return 1;
    }
    printf("%" PRIu32 " ranks, %" PRIu32 " communicators\n",
           crystal_graph_lrank_count(graph), crystal_graph_comm_count(graph));
    for (uint32_t rep = 0; rep < crystal_graph_rep_count(graph); rep++) {
        uint64_t op_count, calls = 0;
        const struct crystal_op *ops = crystal_graph_ops(graph, rep, &op_count);

        for (uint64_t i = 0; i < op_count; i++)
            calls += ops[i].kind == CRYSTAL_OP_COLL || ops[i].kind == CRYSTAL_OP_SEND ||
                     ops[i].kind == CRYSTAL_OP_RECV;
        printf("rank %" PRIu32 ": %" PRIu64 " communication calls\n",
               crystal_graph_rep_lrank(graph, rep), calls);
    }
    crystal_graph_close(graph);
    return argc == 3 ? show_profile(argv[2]) : 0;
}
