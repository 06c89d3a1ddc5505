/* The entry points nccl* and pnccl* of libcrystal-hostccl.so, made from the table. */
#include "config.h"

#include "replay/hostccl/api.h"

#define EXPORT __attribute__((visibility("default")))

#define ENTRY(type, full_name, name, proto, args) \
    EXPORT type full_name proto;                  \
    EXPORT type full_name proto                   \
    {                                             \
        return hostccl_api_##name args;           \
    }

#define NCCL_API(type, name, proto, args)      \
    ENTRY(type, nccl##name, name, proto, args) \
    ENTRY(type, pnccl##name, name, proto, args)
#include "runtime/nccl_api.def"
#undef NCCL_API
