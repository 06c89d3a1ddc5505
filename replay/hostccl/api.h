/* Implementations of the NCCL API: hostccl_api_X is ncclX. */
#ifndef CRYSTAL_HOSTCCL_API_H
#define CRYSTAL_HOSTCCL_API_H

#include "runtime/nccl_abi.h"

#define NCCL_API(type, name, proto, args) type hostccl_api_##name proto;
#include "runtime/nccl_api.def"
#undef NCCL_API

#endif
