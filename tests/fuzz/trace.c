/* The reader and the sealer of traces take any bytes. */
#include "config.h"

#include "runtime/trace.h"
#include "runtime/trace_work.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char path[64];

static void remove_file(void)
{
    (void)unlink(path); /* nothing to do about it at exit */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct crystal_trace trace;
    struct crystal_error err = {0};
    uint64_t before = 0;
    FILE *file;

    if (!path[0]) {
        (void)snprintf(path, sizeof path, "/tmp/crystal-fuzz-trace.%ld",
                       (long)getpid());
        (void)atexit(remove_file);
    }
    file = fopen(path, "wb");
    if (!file || fwrite(data, 1, size, file) != size || fclose(file) != 0)
        abort();
    if (crystal_trace_read(path, &trace, &err) == 0) {
        for (uint64_t i = 0; i < trace.op_count; i++)
            before += trace.ops[i].t_ns;
        crystal_trace_fini(&trace);
    }
    if (crystal_trace_seal(path, &err) == 0 &&
        crystal_trace_read(path, &trace, &err) == 0) {
        for (uint64_t i = 0; i < trace.op_count; i++)
            before -= trace.ops[i].t_ns;
        if (before)
            abort(); /* sealing changed what is read */
        if (crystal_trace_place_work(&trace, &err) == 0)
            for (uint64_t i = 0; i < trace.op_count; i++)
                if (trace.ops[i].kind == CRYSTAL_OP_WORK)
                    abort(); /* it has its place now */
        crystal_trace_fini(&trace);
    }
    return 0;
}
