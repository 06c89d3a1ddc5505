/* The sentence of the last failed call. See recorder.h. */
#include "config.h"

#include "capture/recorder.h"

#include "runtime/log.h"

#include <stdio.h>
#include <string.h>

/* The last error is written rarely and read by any thread: a lock of its own. */
static pthread_mutex_t error_lock = PTHREAD_MUTEX_INITIALIZER;
static char error_text[CRYSTAL_ERROR_TEXT_BYTES];

void recorder_fail(const struct crystal_error *err)
{
    (void)pthread_mutex_lock(&error_lock);
    (void)snprintf(error_text, sizeof error_text, "%s", crystal_error_text(err));
    (void)pthread_mutex_unlock(&error_lock);
    crystal_log(CRYSTAL_LOG_DEBUG, "recorder", "%s", crystal_error_text(err));
}

const char *recorder_last_error(void)
{
    static _Thread_local char copy[CRYSTAL_ERROR_TEXT_BYTES];

    (void)pthread_mutex_lock(&error_lock);
    memcpy(copy, error_text, sizeof copy);
    (void)pthread_mutex_unlock(&error_lock);
    return copy;
}
