/* The reader of job.profile takes any bytes. */
#include "config.h"

#include "runtime/filehead.h"
#include "runtime/profile_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char path[64];

static void remove_file(void)
{
    (void)unlink(path); /* nothing to do about it at exit */
}

static void ask(const struct crystal_profile *p)
{
    const struct crystal_profile_head *h = crystal_profile_head(p);
    uint64_t sum = crystal_profile_wire(p).overhead_ns;

    for (uint32_t i = 0; i < h->rep_count; i++)
        for (uint32_t k = 0; k < crystal_profile_rep(p, i)->instr_count; k++)
            sum += crystal_profile_ops(p, i)[k].gap_ns;
    for (uint32_t r = 0; r < h->lrank_count; r++)
        sum += crystal_profile_iteration(p, r)->p90_ns;
    if (sum == 42)
        putchar('\n'); /* so that nothing above is left out */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct crystal_filehead head;
    struct crystal_profile *p;
    FILE *file;

    if (!path[0]) {
        (void)snprintf(path, sizeof path, "/tmp/crystal-fuzz-profile.%ld",
                       (long)getpid());
        (void)atexit(remove_file);
    }
    file = fopen(path, "wb");
    if (!file)
        abort();
    /* the checksum would hide the rest from the fuzzer */
    if (size >= sizeof head) {
        memcpy(&head, data, sizeof head);
        head.file_bytes = size;
        head.body_hash = crystal_hash(data + sizeof head, size - sizeof head);
        if (fwrite(&head, 1, sizeof head, file) != sizeof head)
            abort();
        data += sizeof head;
        size -= sizeof head;
    }
    if (fwrite(data, 1, size, file) != size || fclose(file) != 0)
        abort();
    p = crystal_profile_open(path, NULL);
    if (p)
        ask(p);
    crystal_profile_close(p);
    return 0;
}
