/* Forked children. The locks that calls there still take are held while the process
 * forks, so that no other thread has them in the child. */
#include "config.h"

#include "replay/hostccl/fork.h"

#include "replay/hostccl/engine.h"
#include "replay/hostccl/result.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

static atomic_bool is_child;

static void before(void)
{
    hostccl_lock();
    hostccl_result_lock();
}

static void in_parent(void)
{
    hostccl_result_unlock();
    hostccl_unlock();
}

static void in_child(void)
{
    atomic_store(&is_child, true);
    in_parent();
}

int hostccl_fork_watch(struct crystal_error *err)
{
    static bool is_watched; /* under the engine's lock */
    int code = is_watched ? 0 : pthread_atfork(before, in_parent, in_child);

    is_watched = !code;
    return code ? crystal_error_set(err, code, "cannot watch for forks: %s",
                                    strerror(code))
                : 0;
}

bool hostccl_fork_is_child(void)
{
    return atomic_load_explicit(&is_child, memory_order_relaxed);
}

int hostccl_fork_check(struct crystal_error *err)
{
    if (!hostccl_fork_is_child())
        return 0;
    return crystal_error_set(err, EPERM,
                             "this process was forked from one that uses NCCL and "
                             "cannot use it; start it with spawn or exec");
}
