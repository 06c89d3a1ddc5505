/* How a tensor goes over the NCCL API: pointer, number of elements and data type. */
#ifndef CRYSTAL_TORCH_WIRE_H
#define CRYSTAL_TORCH_WIRE_H

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "runtime/nccl_abi.h"

namespace crystal
{

/* Elements of one wire type per element of the tensor. */
struct WireType {
    ncclDataType_t type;
    int64_t factor;
};

/* For moving bytes: every dtype. What NCCL has no type for goes as bytes; floating
 * point keeps a floating type, which marks it as bulk data. */
WireType wire_type(at::ScalarType dtype);

/* For arithmetic: throws a sentence where NCCL has no such type or operation. On bool
 * the result is 0 or 1 (a sum is "any", a product "all"). */
ncclDataType_t wire_reduce_type(at::ScalarType dtype);
ncclRedOp_t wire_reduce_op(const c10d::ReduceOp &reduce_op, at::ScalarType dtype);

} // namespace crystal

#endif
