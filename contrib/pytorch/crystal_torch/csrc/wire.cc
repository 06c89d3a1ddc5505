/* Data types and operations on the wire; see wire.h. */
#include "wire.h"

namespace crystal
{

WireType wire_type(at::ScalarType dtype)
{
    switch (dtype) {
    case at::kChar:
        return {ncclInt8, 1};
    case at::kInt:
        return {ncclInt32, 1};
    case at::kLong:
        return {ncclInt64, 1};
    case at::kUInt32:
        return {ncclUint32, 1};
    case at::kUInt64:
        return {ncclUint64, 1};
    case at::kHalf:
        return {ncclFloat16, 1};
    case at::kFloat:
        return {ncclFloat32, 1};
    case at::kDouble:
        return {ncclFloat64, 1};
    case at::kBFloat16:
        return {ncclBfloat16, 1};
    case at::kFloat8_e4m3fn:
        return {ncclFloat8e4m3, 1};
    case at::kFloat8_e5m2:
        return {ncclFloat8e5m2, 1};
    case at::kComplexHalf:
        return {ncclFloat16, 2};
    case at::kComplexFloat:
        return {ncclFloat32, 2};
    case at::kComplexDouble:
        return {ncclFloat64, 2};
    default:
        return {ncclUint8, static_cast<int64_t>(c10::elementSize(dtype))};
    }
}

ncclDataType_t wire_reduce_type(at::ScalarType dtype)
{
    WireType wire = wire_type(dtype);
    TORCH_CHECK(
        wire.factor == 1 && dtype != at::kFloat8_e4m3fn && dtype != at::kFloat8_e5m2,
        "crystal: pytorch: NCCL cannot reduce tensors of ", c10::toString(dtype),
        "; use int8, uint8, int32, int64, float16, bfloat16, float32 or float64");
    return wire.type;
}

ncclRedOp_t wire_reduce_op(const c10d::ReduceOp &reduce_op, at::ScalarType dtype)
{
    bool is_bool = dtype == at::kBool;
    switch (reduce_op) {
    case c10d::ReduceOp::SUM:
        return is_bool ? ncclMax : ncclSum;
    case c10d::ReduceOp::PRODUCT:
        return is_bool ? ncclMin : ncclProd;
    case c10d::ReduceOp::MIN:
        return ncclMin;
    case c10d::ReduceOp::MAX:
        return ncclMax;
    case c10d::ReduceOp::AVG:
        TORCH_CHECK(!is_bool, "crystal: pytorch: bool has no average; use float32");
        return ncclAvg;
    case c10d::ReduceOp::BAND:
        TORCH_CHECK(is_bool, "crystal: pytorch: NCCL has no bitwise and on integers");
        return ncclMin;
    case c10d::ReduceOp::BOR:
        TORCH_CHECK(is_bool, "crystal: pytorch: NCCL has no bitwise or on integers");
        return ncclMax;
    default:
        TORCH_CHECK(false,
                    "crystal: pytorch: this reduction is not supported; use SUM, "
                    "AVG, PRODUCT, MIN or MAX");
    }
}

} // namespace crystal
