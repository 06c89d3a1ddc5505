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

static void instead_of_any(int status, void *code)
{
    if (status != (int)(intptr_t)code)
        exit((int)(intptr_t)code);
}

void crystal_exit_code_instead(int code, bool always)
{
    /* without memory srun's own stays */
    (void)on_exit(always ? instead_of_any : instead, (void *)(intptr_t)code);
}
