/* An example of libcrystal-graph: counts what each representative of a job.graph does.
 * Built by tests/t/install.t from the installed header and library, as a user would:
 *
 *   cc graphprog.c -lcrystal-graph
 */
#include <crystal/graph.h>

#include <inttypes.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    struct crystal_error err = {0};
    struct crystal_graph *graph;

    if (argc != 2) {
        fprintf(stderr, "usage: graphprog FILE\n");
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
    return 0;
}
