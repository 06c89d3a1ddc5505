/* The importer of profiler traces takes any bytes, for one rank of one; what it makes
 * of them is a graph that opens.
 */
#include "config.h"

#include "runtime/import.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char path[64], graph_path[80];

static void remove_files(void)
{
    (void)unlink(path); /* nothing to do about them at exit */
    (void)unlink(graph_path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *const paths[] = {path};
    struct crystal_graph *g;
    FILE *file;

    if (!path[0]) {
        (void)snprintf(path, sizeof path, "/tmp/crystal-fuzz-import.%ld",
                       (long)getpid());
        (void)snprintf(graph_path, sizeof graph_path, "%s.graph", path);
        (void)atexit(remove_files);
    }
    file = fopen(path, "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file) != 0)
        abort();
    if (crystal_import_traces(paths, 1, NULL, NULL, graph_path, NULL))
        return 0;
    g = crystal_graph_open(graph_path, NULL);
    if (!g)
        abort();
    crystal_graph_close(g);
    return 0;
}
