/* The layout reader takes any bytes. */
#include "config.h"

#include "runtime/layout.h"

#include <stdio.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char path[64];
    struct crystal_layout layout;
    struct crystal_error err = {0};
    FILE *file;

    (void)snprintf(path, sizeof path, "/tmp/crystal-fuzz-layout-%d", (int)getpid());
    file = fopen(path, "we");
    if (!file)
        return 0;
    (void)fwrite(data, 1, size, file);
    (void)fclose(file);
    if (crystal_layout_read(path, &layout, &err) == 0) {
        for (uint32_t r = 0; r < layout.lrank_count && r < 64; r++)
            (void)crystal_layout_representative(&layout, r);
        crystal_layout_fini(&layout);
    }
    (void)unlink(path);
    return 0;
}
