/* NET v10 and v8 of the built libnccl-net-crystal.so, found and called as an NCCL of
 * that version does: sizes of what it fills, the same NIC as in version 11, and
 * messages over each table. Two ends of one process take turns, as two proxies would.
 */
#include "config.h"

#include "runtime/env.h"
#include "runtime/nccl_net_old_abi.h"

#include "tests/check.h"
#include "tests/folders.h"

#include <dlfcn.h>
#include <sched.h>
#include <stddef.h>
#include <unistd.h>

/* sizes of NCCL's own structs on x86-64 and aarch64 */
_Static_assert(sizeof(ncclNetProperties_v8_t) == 64, "as NCCL's");
_Static_assert(sizeof(ncclNetProperties_v10_t) == 104, "as NCCL's");
_Static_assert(offsetof(ncclNetProperties_v8_t, speed) == 32, "as NCCL's");
_Static_assert(offsetof(ncclNetProperties_v10_t, speed) == 36, "as NCCL's");
_Static_assert(offsetof(ncclNetProperties_v10_t, maxP2pBytes) == 88, "as NCCL's");
_Static_assert(sizeof(ncclNet_v8_t) == 19 * sizeof(void *), "as NCCL's");
_Static_assert(sizeof(ncclNet_v10_t) == 20 * sizeof(void *), "as NCCL's");

#define PLUGIN "libnccl-net-crystal.so"
#define CANARY 0x5a5a5a5a

static void *library;
static const ncclNet_v11_t *v11;
static const ncclNet_v10_t *v10;
static const ncclNet_v8_t *v8;
static bool is_v8; /* which of the two a case takes */

static ncclResult_t old_listen(void *handle, void **ret)
{
    return is_v8 ? v8->listen(0, handle, ret) : v10->listen(0, handle, ret);
}

static ncclResult_t old_connect(void *handle, void **ret)
{
    ncclNetCommConfig_v11_t config = {-1};
    void *device = NULL;

    return is_v8 ? v8->connect(0, handle, ret, &device)
                 : v10->connect(0, &config, handle, ret, &device);
}

static ncclResult_t old_isend(void *end, void *data, size_t bytes, void **request)
{
    return is_v8 ? v8->isend(end, data, (int)bytes, 7, NULL, request)
                 : v10->isend(end, data, bytes, 7, NULL, NULL, request);
}

static ncclResult_t old_irecv(void *end, void *data, size_t bytes, void **request)
{
    int small = (int)bytes, tag = 7;
    void *mhandle = NULL, *phandle = NULL;

    return is_v8 ? v8->irecv(end, 1, &data, &small, &tag, &mhandle, request)
                 : v10->irecv(end, 1, &data, &bytes, &tag, &mhandle, &phandle, request);
}

static void connect_ends(void **ret_send, void **ret_recv)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    void *listener = NULL, *device = NULL;

    *ret_send = *ret_recv = NULL;
    CHECK_EQ(old_listen(handle, &listener), ncclSuccess);
    while (!*ret_send || !*ret_recv) {
        if (!*ret_send && old_connect(handle, ret_send) != ncclSuccess)
            break;
        if (!*ret_recv && v10->accept(listener, ret_recv, &device) != ncclSuccess)
            break;
        (void)sched_yield();
    }
    CHECK(*ret_send && *ret_recv);
    CHECK_EQ(is_v8 ? v8->closeListen(listener) : v10->closeListen(listener),
             ncclSuccess);
}

/* One message, posted larger than it is, as NCCL's receives are. */
static void pass(void *send, void *recv, size_t bytes)
{
    unsigned char *out = malloc(bytes + 1), *in = calloc(1, bytes + 16);
    void *sent = NULL, *received = NULL;
    int send_done = 0, recv_done = 0, send_bytes = -1, recv_bytes = -1;
    bool is_well = out && in;

    for (size_t i = 0; is_well && i < bytes; i++)
        out[i] = (unsigned char)(i * 31 + bytes);
    while (is_well && !(send_done && recv_done)) {
        if (!received)
            is_well = old_irecv(recv, in, bytes + 8, &received) == ncclSuccess;
        if (is_well && !sent)
            is_well = old_isend(send, out, bytes, &sent) == ncclSuccess;
        if (is_well && sent && !send_done)
            is_well = v10->test(sent, &send_done, &send_bytes) == ncclSuccess;
        if (is_well && received && !recv_done)
            is_well = v8->test(received, &recv_done, &recv_bytes) == ncclSuccess;
        if (is_well && !(send_done && recv_done))
            (void)sched_yield();
    }
    CHECK(is_well);
    CHECK_EQ(send_bytes, bytes);
    CHECK_EQ(recv_bytes, bytes);
    CHECK(is_well && !memcmp(in, out, bytes));
    free(out);
    free(in);
}

static void messages(bool which)
{
    static const size_t sizes[] = {0, 1, 4096, 1 << 20};
    void *send, *recv;

    is_v8 = which;
    CHECK_EQ(is_v8 ? v8->init(NULL) : v10->init(NULL, NULL), ncclSuccess);
    connect_ends(&send, &recv);
    for (unsigned i = 0; send && recv && i < sizeof sizes / sizeof *sizes; i++)
        pass(send, recv, sizes[i]);
    CHECK_EQ(v8->closeSend(send), ncclSuccess);
    CHECK_EQ(v8->closeRecv(recv), ncclSuccess);
}

static void messages_over_v10(void)
{
    messages(false);
}

static void messages_over_v8(void)
{
    messages(true);
}

/* What lies behind a struct of an older NCCL is not ours. */
static void the_same_nic_in_every_version(void)
{
    struct {
        ncclNetProperties_v10_t props;
        uint32_t canary;
    } ten;
    struct {
        ncclNetProperties_v8_t props;
        uint32_t canary;
    } eight;
    ncclNetProperties_v11_t now;
    int counts[3] = {0};

    ten.canary = eight.canary = CANARY;
    CHECK_STR(v10->name, v11->name);
    CHECK_STR(v8->name, v11->name);
    CHECK_EQ(v11->devices(&counts[0]), ncclSuccess);
    CHECK_EQ(v10->devices(&counts[1]), ncclSuccess);
    CHECK_EQ(v8->devices(&counts[2]), ncclSuccess);
    CHECK_EQ(counts[1], counts[0]);
    CHECK_EQ(counts[2], counts[0]);
    CHECK_EQ(v11->getProperties(0, &now), ncclSuccess);
    CHECK_EQ(v10->getProperties(0, &ten.props), ncclSuccess);
    CHECK_EQ(v8->getProperties(0, &eight.props), ncclSuccess);
    CHECK_EQ(ten.canary, CANARY);
    CHECK_EQ(eight.canary, CANARY);
    CHECK_STR(ten.props.name, "crystal0");
    CHECK_STR(eight.props.name, "crystal0");
    CHECK_EQ(ten.props.guid, now.guid);
    CHECK_EQ(eight.props.guid, now.guid);
    CHECK_EQ(now.speed, 400000);
    CHECK_EQ(ten.props.speed, 400000);
    CHECK_EQ(eight.props.speed, 400000);
    CHECK_EQ(ten.props.maxRecvs, 1);
    CHECK_EQ(eight.props.maxRecvs, 1);
    CHECK_EQ(eight.props.port, now.port);
    CHECK_EQ(ten.props.vProps.ndevs, 1);
    CHECK_EQ(ten.props.maxP2pBytes, now.maxP2pBytes);
    CHECK_EQ(ten.props.ptrSupport, now.ptrSupport);
    CHECK_EQ(eight.props.ptrSupport, now.ptrSupport);
    CHECK(v10->getProperties(counts[0], &ten.props) != ncclSuccess);
    CHECK(v8->getProperties(counts[0], &eight.props) != ncclSuccess);
}

static void nothing_before_init(void)
{
    char handle[NCCL_NET_HANDLE_MAXSIZE];
    void *listener = NULL;

    CHECK_EQ(v10->listen(0, handle, &listener), ncclInvalidUsage);
    CHECK_EQ(v8->listen(0, handle, &listener), ncclInvalidUsage);
    CHECK(listener == NULL);
}

int main(void)
{
    char path[512];

    check_begin();
    (void)unsetenv(CRYSTAL_ENV_BOARD);
    (void)setenv(CRYSTAL_ENV_WIRE, "50000000000,1000", 1);
    (void)snprintf(path, sizeof path, "%s/.libs/%s", build_folder(), PLUGIN);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("Bail out! %s\n", dlerror());
        return 1;
    }
    v11 = dlsym(library, "ncclNetPlugin_v11");
    v10 = dlsym(library, "ncclNetPlugin_v10");
    v8 = dlsym(library, "ncclNetPlugin_v8");
    if (!v11 || !v10 || !v8) {
        printf("Bail out! a table is missing\n");
        return 1;
    }
    CHECK_RUN(nothing_before_init);
    CHECK_RUN(the_same_nic_in_every_version);
    CHECK_RUN(messages_over_v10);
    CHECK_RUN(messages_over_v8);
    return check_end();
}
