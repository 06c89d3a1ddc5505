/* Names of functions, types and reductions. See nccl_names.h. */
#include "config.h"

#include "runtime/nccl_names.h"

#include <stdio.h>

const char *crystal_func_name(unsigned func)
{
    static const char *const names[CRYSTAL_FUNC_COUNT] = {
        "none", "broadcast", "reduce",   "allgather", "reducescatter", "allreduce",
        "send", "recv",      "alltoall", "gather",    "scatter"};

    return func < CRYSTAL_FUNC_COUNT ? names[func] : "unknown";
}

const char *crystal_dtype_name(unsigned dtype)
{
    static const char *const names[ncclNumTypes] = {
        "int8",    "uint8",   "int32",   "uint32",   "int64",      "uint64",
        "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"};

    return dtype < ncclNumTypes ? names[dtype] : "unknown";
}

const char *crystal_redop_name(unsigned redop)
{
    static const char *const names[] = {"sum", "prod", "max",
                                        "min", "avg",  "premulsum"};

    return redop < sizeof names / sizeof names[0] ? names[redop] : "custom";
}

int crystal_func_has_root(unsigned func)
{
    return func == CRYSTAL_FUNC_BROADCAST || func == CRYSTAL_FUNC_REDUCE ||
           func == CRYSTAL_FUNC_GATHER || func == CRYSTAL_FUNC_SCATTER;
}

int crystal_func_reduces(unsigned func)
{
    return func == CRYSTAL_FUNC_REDUCE || func == CRYSTAL_FUNC_REDUCESCATTER ||
           func == CRYSTAL_FUNC_ALLREDUCE;
}

const char *crystal_nccl_version_text(int version, char text[CRYSTAL_NCCL_VERSION_TEXT])
{
    if (version < 10000)
        (void)snprintf(text, CRYSTAL_NCCL_VERSION_TEXT, "code %d", version);
    else
        (void)snprintf(text, CRYSTAL_NCCL_VERSION_TEXT, "%d.%d.%d", version / 10000,
                       version / 100 % 100, version % 100);
    return text;
}
