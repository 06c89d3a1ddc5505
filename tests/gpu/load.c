/* Loads the plugins as stock NCCL 2.28.9 does, without NCCL and without a GPU: the same
 * dlopen flags, symbols, order of calls and checks of what they answer (src/plugin:
 * net.cc, plugin_open.cc, profiler.cc). NCCL is silent about a plugin that fails and
 * goes on with its own sockets; this program says what failed.
 *
 * usage: load NRANKS RANK, with NCCL_NET_PLUGIN, NCCL_PROFILER_PLUGIN and the plugin's
 * own environment. TAP on standard output.
 */
#include "config.h"

#include "runtime/nccl_net_abi.h"
#include "runtime/nccl_profiler_abi.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMM_ID 0x10ad /* of no communicator on a board */

static int tests, failures;

static bool check(bool ok, const char *what, const char *more)
{
    tests++;
    failures += !ok;
    printf("%s %d - %s\n", ok ? "ok" : "not ok", tests, what);
    if (!ok && more)
        printf("#   %s\n", more);
    return ok;
}

/* The table of this name in the library at path; NULL and told where there is none. */
static const void *table(const char *path, const char *symbol)
{
    void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    const void *found;

    if (!check(library != NULL, "the library loads",
               path ? dlerror() : "the environment names none"))
        return NULL;
    found = dlsym(library, symbol);
    check(found != NULL, symbol, "the library does not have it");
    return found;
}

static void no_log(int level, unsigned long flags, const char *file, int line,
                   const char *format, ...)
{
    (void)level;
    (void)flags;
    (void)file;
    (void)line;
    (void)format;
}

static ncclResult_t no_event(void **event, int type, void *parent, int64_t plugin_id,
                             void *data)
{
    (void)type;
    (void)parent;
    (void)plugin_id;
    (void)data;
    *event = NULL;
    return ncclSuccess;
}

/* What NCCL's topology search and transports need of a device. */
static bool is_usable(const ncclNetProperties_v11_t *props)
{
    return props->name && props->netDeviceType == 0 && props->speed > 0 &&
           props->ptrSupport & NCCL_PTR_HOST && props->maxComms > 0 &&
           props->maxRecvs >= 1 && props->maxP2pBytes > 0 && props->maxCollBytes > 0;
}

static void use_net(const ncclNet_v11_t *net)
{
    unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
    ncclNetCommConfig_v11_t config = {-1};
    ncclNetProperties_v11_t props;
    void *context = NULL, *listener = NULL;
    int devices = 0;

    if (!check(net->init(&context, COMM_ID, &config, no_log, no_event) == ncclSuccess,
               "NET init", "see what the plugin says above"))
        return;
    check(net->devices(&devices) == ncclSuccess && devices > 0, "NET devices", "none");
    check(net->getProperties(0, &props) == ncclSuccess && is_usable(&props),
          "NET getProperties", "NCCL could not use the device");
    check(net->listen(context, 0, handle, &listener) == ncclSuccess && listener &&
              net->closeListen(listener) == ncclSuccess,
          "NET listen", NULL);
    check(net->finalize(context) == ncclSuccess, "NET finalize", NULL);
}

/* Two communicators, one after the other. With the last user of the library NCCL 2.28
 * unloads it and forgets its name: the next communicator finds libnccl-net.so or
 * nothing, and uses sockets. NCCL_NET_PLUGIN_REF_COUNT says how many users to begin
 * with. */
static void load_net(void)
{
    const char *path = getenv("NCCL_NET_PLUGIN"),
               *users = getenv("NCCL_NET_PLUGIN_REF_COUNT");
    const ncclNet_v11_t *net = table(path, "ncclNetPlugin_v11");

    if (!net)
        return;
    use_net(net);
    if (!users || atoi(users) < 1)
        net = table("libnccl-net.so", "ncclNetPlugin_v11");
    if (check(net && strcmp(net->name, "Crystal") == 0,
              "a second communicator finds the plugin",
              "set NCCL_NET_PLUGIN_REF_COUNT=1"))
        use_net(net);
}

static void load_profiler(int nranks, int rank)
{
    const ncclProfiler_v5_t *profiler =
        table(getenv("NCCL_PROFILER_PLUGIN"), "ncclProfiler_v5");
    const int needed = ncclProfileColl | ncclProfileP2p | ncclProfileProxyOp |
                       ncclProfileProxyStep | ncclProfileNetPlugin;
    void *context = NULL;
    int mask = 0;

    if (!profiler)
        return;
    check(profiler->init(&context, COMM_ID, &mask, NULL, nranks, nranks, rank,
                         no_log) == ncclSuccess &&
              context,
          "PROFILER init", "see what the plugin says above");
    check((mask & needed) == needed, "PROFILER asks for the events that name a message",
          NULL);
    check(profiler->finalize(context) == ncclSuccess, "PROFILER finalize", NULL);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        (void)fprintf(stderr, "usage: load NRANKS RANK\n");
        return 2;
    }
    load_net();
    load_profiler(atoi(argv[1]), atoi(argv[2]));
    printf("1..%d\n", tests);
    return failures > 0;
}
