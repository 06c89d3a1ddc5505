/* The reader of job.profile takes any bytes. */
#include "config.h"

#include "runtime/profile_file.h"

#include "tests/fuzz/sealed_file.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
    struct crystal_profile *p =
        crystal_profile_open(fuzz_sealed_file(data, size), NULL);

    if (p)
        ask(p);
    crystal_profile_close(p);
    return 0;
}
