/* See thread.h. */
#include "config.h"

#include "runtime/thread.h"

#include <signal.h>

int crystal_thread_start(pthread_t *ret, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    pthread_t thread;
    int code;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(ret ? ret : &thread, NULL, run, argument);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!code && !ret)
        (void)pthread_detach(thread);
    return code;
}
