/* CUPTI as the process has it loaded (PyTorch links it), else as the loader finds it.
 * Nothing of it is linked or needed to build: the functions that we call, and where in
 * its records stands what we read. Facts of cupti_activity.h of CUDA 13.0; records have
 * only grown at their ends since CUDA 11.1 (CUpti_ActivityKernel5, Memcpy4, Memset3).
 */
#ifndef CRYSTAL_CUPTI_API_H
#define CRYSTAL_CUPTI_API_H

#include "runtime/error.h"

#include <stddef.h>
#include <stdint.h>

enum { /* CUptiResult */
       CUPTI_SUCCESS = 0,
       CUPTI_IN_USE = 39 /* CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED */
};

enum { /* CUpti_ActivityKind; the first word of a record */
       CUPTI_MEMCPY = 1,
       CUPTI_MEMSET = 2,
       CUPTI_KERNEL = 10, /* CONCURRENT_KERNEL: kernels keep overlapping */
       CUPTI_PEER_COPY = 22
};

#define CUPTI_DOMAIN_DRIVER 1 /* CUPTI_CB_DOMAIN_DRIVER_API */
#define CUPTI_DRIVER_VERSION \
    2 /* CUPTI_DRIVER_TRACE_CBID_cuDriverGetVersion: the cheapest call there is */
#define CUPTI_FLUSH_FORCED 1U /* CUPTI_ACTIVITY_FLAG_FLUSH_FORCED */

/* Offsets in records: begin and end in ns of the device's clock, 64 bits; stream and
 * correlation id, 32 bits; a kernel's name, a pointer. */
#define CUPTI_BEGIN              16
#define CUPTI_END                24
#define CUPTI_KERNEL_STREAM      48
#define CUPTI_KERNEL_CORRELATION 92
#define CUPTI_KERNEL_NAME        104
#define CUPTI_COPY_STREAM        40 /* MEMCPY, MEMSET, PEER_COPY */
#define CUPTI_COPY_CORRELATION   44 /* MEMCPY, MEMSET */
#define CUPTI_PEER_CORRELATION   60
#define CUPTI_CALLBACK_ID        64 /* correlation id in CUpti_CallbackData */

typedef void cupti_requested(uint8_t **ret_buffer, size_t *ret_bytes,
                             size_t *ret_records_max);
typedef void cupti_completed(void *context, uint32_t stream, uint8_t *buffer,
                             size_t bytes, size_t valid_bytes);
typedef void cupti_callback(void *data, int domain, uint32_t id, const void *call);

/* Each returns a CUptiResult. */
struct cupti_api {
    int (*cuptiSubscribe)(void **ret_subscriber, cupti_callback *callback, void *data);
    int (*cuptiUnsubscribe)(void *subscriber);
    int (*cuptiEnableCallback)(uint32_t enable, void *subscriber, int domain,
                               uint32_t id);
    int (*cuptiActivityRegisterCallbacks)(cupti_requested *requested,
                                          cupti_completed *completed);
    int (*cuptiActivityEnable)(int kind);
    int (*cuptiActivityGetNextRecord)(uint8_t *buffer, size_t valid_bytes,
                                      uint8_t **record);
    int (*cuptiActivityGetNumDroppedRecords)(void *context, uint32_t stream,
                                             size_t *ret_count);
    int (*cuptiActivityFlushAll)(uint32_t flag);
    int (*cuptiGetStreamIdEx)(void *context, void *stream, uint8_t per_thread,
                              uint32_t *ret_id);
    /* of the driver */
    int (*cuDriverGetVersion)(int *ret_version);
    int (*cuCtxGetCurrent)(void **ret_context);
};

/* Fills *ret; -ENODEV where the process has no driver loaded, -ENOENT with a sentence
 * where a part is missing. The libraries stay loaded. */
int cupti_api_open(struct cupti_api *ret, struct crystal_error *err);

#endif
