/* The verbs of scrystal graph: each works on graph files by name, with a getopt table
 * and help of its own, as subcommands do (commands.h).
 */
#ifndef CRYSTAL_GRAPH_VERBS_H
#define CRYSTAL_GRAPH_VERBS_H

/* synth DESCRIPTION GRAPH */
int crystal_graph_synth(int argc, char **argv);

#endif
