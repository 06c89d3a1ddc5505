/* The description of a synthetic job takes any text; what it accepts can be written,
 * where it is small, and then verified.
 */
#include "config.h"

#include "runtime/synth.h"
#include "runtime/verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char path[64];

static void remove_file(void)
{
    (void)unlink(path); /* nothing to do about it at exit */
}

static int is_small(const struct crystal_synth *s)
{
    return (uint64_t)s->tp * s->cp * s->dp * s->pp <= 64 && s->layers <= 64 &&
           s->microbatches <= 16 && s->interleave <= 8;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct crystal_error err = {0};
    struct crystal_verdict verdict;
    struct crystal_synth s;
    struct crystal_graph *g;

    if (crystal_synth_parse("fuzz", (const char *)data, size, &s, NULL) ||
        !is_small(&s))
        return 0;
    if (!path[0]) {
        (void)snprintf(path, sizeof path, "/tmp/crystal-fuzz-synth.%ld",
                       (long)getpid());
        (void)atexit(remove_file);
    }
    if (crystal_synth_write(&s, path, &err)) /* sizes that the format refuses */
        return 0;
    g = crystal_graph_open(path, NULL);
    if (!g || crystal_verify(g, &verdict, NULL) || !verdict.is_sound)
        abort();
    crystal_verdict_fini(&verdict);
    crystal_graph_close(g);
    return 0;
}
