/* How much a call moves. See recorder.h. */
#include "config.h"

#include "capture/recorder.h"

#include <errno.h>

int recorder_call_bytes(const struct recorder_call *call, uint32_t nranks,
                        uint32_t crank, uint64_t *ret_send_bytes,
                        uint64_t *ret_recv_bytes)
{
    uint64_t one, all;
    int is_root = call->peer == crank;

    if (__builtin_mul_overflow(call->count, crystal_dtype_bytes(call->dtype), &one) ||
        __builtin_mul_overflow(one, (uint64_t)nranks, &all) || all > SIZE_MAX / 2)
        return -EOVERFLOW;
    switch (call->func) {
    case CRYSTAL_FUNC_BROADCAST:
        *ret_send_bytes = is_root ? one : 0;
        *ret_recv_bytes = one;
        return 0;
    case CRYSTAL_FUNC_REDUCE:
        *ret_send_bytes = one;
        *ret_recv_bytes = is_root ? one : 0;
        return 0;
    case CRYSTAL_FUNC_ALLGATHER:
        *ret_send_bytes = one;
        *ret_recv_bytes = all;
        return 0;
    case CRYSTAL_FUNC_REDUCESCATTER:
        *ret_send_bytes = all;
        *ret_recv_bytes = one;
        return 0;
    case CRYSTAL_FUNC_ALLREDUCE:
        *ret_send_bytes = one;
        *ret_recv_bytes = one;
        return 0;
    case CRYSTAL_FUNC_SEND:
        *ret_send_bytes = one;
        *ret_recv_bytes = 0;
        return 0;
    case CRYSTAL_FUNC_RECV:
        *ret_send_bytes = 0;
        *ret_recv_bytes = one;
        return 0;
    case CRYSTAL_FUNC_ALLTOALL:
        *ret_send_bytes = all;
        *ret_recv_bytes = all;
        return 0;
    case CRYSTAL_FUNC_GATHER:
        *ret_send_bytes = one;
        *ret_recv_bytes = is_root ? all : 0;
        return 0;
    case CRYSTAL_FUNC_SCATTER:
        *ret_send_bytes = is_root ? all : 0;
        *ret_recv_bytes = one;
        return 0;
    default:
        return -EINVAL;
    }
}
