/* See net_version.h. */
#include "config.h"

#include "replay/net_version.h"

#include "runtime/env.h"
#include "runtime/nccl_names.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int crystal_net_version_of(const void *code)
{
    ncclResult_t (*get)(int *version);
    void *library, *symbol;
    int version = 0;
    Dl_info info;

    if (!dladdr(code, &info) || !info.dli_fname)
        return 0;
    library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        return 0;
    symbol = dlsym(library, "ncclGetVersion");
    memcpy(&get, &symbol, sizeof get); /* as POSIX has it */
    if (!symbol || get(&version) != ncclSuccess)
        version = 0;
    (void)dlclose(library); /* it stays: its code calls us */
    return version;
}

/* -EINVAL where there is nothing to compare with. */
static int allowed_read(int *ret_least, int *ret_most)
{
    const char *text = getenv(CRYSTAL_ENV_NCCL_VERSIONS);

    return text && sscanf(text, "%9d-%9d", ret_least, ret_most) == 2 ? 0 : -EINVAL;
}

int crystal_net_version_check(struct crystal_net_module *module, const void *nccl)
{
    char own[CRYSTAL_NCCL_VERSION_TEXT], from[CRYSTAL_NCCL_VERSION_TEXT];
    char to[CRYSTAL_NCCL_VERSION_TEXT];
    int least, most, version;

    if (!module->board || allowed_read(&least, &most))
        return 0;
    version = crystal_net_version_of(nccl);
    if (!version || (version >= least && version <= most))
        return 0;
    crystal_nccl_version_text(version, own);
    crystal_net_stop(module,
                     "rank %u runs NCCL %s, the job is set up for NCCL %s%s%s; set "
                     "nccl.version in crystal.yaml to %s, or use that NCCL",
                     module->lrank, own, crystal_nccl_version_text(least, from),
                     least == most ? "" : " to ",
                     least == most ? "" : crystal_nccl_version_text(most, to), own);
    return -EPROTO;
}
