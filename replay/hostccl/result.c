/* The last failure's sentence, and how our codes become NCCL's. */
#include "config.h"

#include "replay/hostccl/result.h"

#include "runtime/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static struct {
    pthread_mutex_t lock;
    char text[CRYSTAL_ERROR_TEXT_BYTES]; /* under lock */
} last = {.lock = PTHREAD_MUTEX_INITIALIZER};

ncclResult_t hostccl_fail(ncclResult_t result, const char *format, ...)
{
    char text[CRYSTAL_ERROR_TEXT_BYTES];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args); /* cut where too long */
    va_end(args);
    pthread_mutex_lock(&last.lock);
    memcpy(last.text, text, sizeof text);
    pthread_mutex_unlock(&last.lock);
    crystal_log(CRYSTAL_LOG_DEBUG, "hostccl", "%s", text);
    return result;
}

ncclResult_t hostccl_fail_error(const struct crystal_error *err)
{
    ncclResult_t result = ncclSystemError;

    switch (err->code) {
    case ECONNRESET:
    case ECONNREFUSED:
    case ECONNABORTED:
    case EPIPE:
    case ETIMEDOUT:
        result = ncclRemoteError;
        break;
    case EPERM:
        result = ncclInvalidUsage;
        break;
    case EINVAL:
    case ERANGE:
        result = ncclInvalidArgument;
        break;
    case EPROTO:
    case ECANCELED:
        result = ncclInternalError;
        break;
    default:
        break;
    }
    return hostccl_fail(result, "%s", crystal_error_text(err));
}

void hostccl_result_lock(void)
{
    pthread_mutex_lock(&last.lock);
}

void hostccl_result_unlock(void)
{
    pthread_mutex_unlock(&last.lock);
}

const char *hostccl_last_error(void)
{
    static _Thread_local char text[CRYSTAL_ERROR_TEXT_BYTES];

    pthread_mutex_lock(&last.lock);
    memcpy(text, last.text, sizeof text);
    pthread_mutex_unlock(&last.lock);
    return text;
}

const char *hostccl_result_text(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return "success";
    case ncclUnhandledCudaError:
        return "a CUDA call failed";
    case ncclSystemError:
        return "a system call failed";
    case ncclInternalError:
        return "internal error";
    case ncclInvalidArgument:
        return "an argument is invalid";
    case ncclInvalidUsage:
        return "the call is not allowed here";
    case ncclRemoteError:
        return "a peer failed or left";
    case ncclInProgress:
        return "still in progress";
    default:
        return "unknown result code";
    }
}
