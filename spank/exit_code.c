/* See exit_code.h. glibc runs what on_exit has registered with the status of exit(); an
 * exit() in there goes on with the handlers that are left, with the new status. The
 * plugin stays mapped for it (-z nodelete). */
#include "config.h"

#include "spank/exit_code.h"

#include <stdint.h>
#include <stdlib.h>

static void instead(int status, void *code)
{
    if (status == 0)
        exit((int)(intptr_t)code);
}

void crystal_exit_code_instead(int code)
{
    (void)on_exit(instead, (void *)(intptr_t)code); /* no memory: srun's own stays */
}
