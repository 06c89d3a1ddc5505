/* The verbs of scrystal graph: each works on graph files by name, with a getopt table
 * and help of its own, as subcommands do (commands.h).
 */
#ifndef CRYSTAL_GRAPH_VERBS_H
#define CRYSTAL_GRAPH_VERBS_H

#include "runtime/error.h"

/* synth DESCRIPTION GRAPH */
int crystal_graph_synth(int argc, char **argv);
/* One GRAPH each; diff two. */
int crystal_graph_stat_verb(int argc, char **argv);
int crystal_graph_show_verb(int argc, char **argv);
int crystal_graph_memory_verb(int argc, char **argv);
int crystal_graph_diff_verb(int argc, char **argv);
int crystal_graph_expand_verb(int argc, char **argv);
int crystal_graph_export_verb(int argc, char **argv);
int crystal_graph_import_verb(int argc, char **argv);

/* May a verb put its graph at path? A file there that is no graph is somebody's trace
 * or description, named in the wrong place: -EEXIST with the sentence. */
int crystal_graph_verb_may_write(const char *path, struct crystal_error *err);

#endif
