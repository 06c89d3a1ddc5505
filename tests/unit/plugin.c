/* The tables of the built libnccl-net-crystal.so, called as NCCL calls them: what the
 * TUNER leaves out, and the NICs that NET shows. */
#include "config.h"

#include "replay/board.h"
#include "runtime/env.h"
#include "runtime/nccl_net_old_abi.h"
#include "runtime/nccl_tuner_abi.h"

#include "tests/check.h"
#include "tests/folders.h"

#include <dlfcn.h>

#define PROTOCOLS 3
#define N         8

static char directory[64];
static struct crystal_board *board;
static void *library;

static void no_log(int level, unsigned long flags, const char *file, int line,
                   const char *format, ...)
{
    (void)level;
    (void)flags;
    (void)file;
    (void)line;
    (void)format;
}

/* Every step-th of ranks 0 to 7, two on a node, with these real ones. */
static void add(uint64_t comm_id, uint32_t step, const char *real, uint32_t alone)
{
    uint32_t members[N];
    uint8_t is_real[N];
    struct crystal_error err = {0};

    for (uint32_t i = 0; i < N / step; i++) {
        members[i] = i * step;
        is_real[i] = strchr(real, (int)('0' + i * step)) != NULL;
    }
    CHECK_EQ(crystal_board_comm_add(board, comm_id, "c", UINT32_MAX, N / step, members,
                                    is_real, &err),
             0);
    CHECK_EQ(crystal_board_comm_rings(board, comm_id, 0, NULL, alone, &err), 0);
}

/* A PCI device of this machine; empty where there is none to be seen. */
static void find_device(char *ret, size_t bytes)
{
    FILE *list = popen("ls /sys/bus/pci/devices 2>/dev/null | tail -1", "r");

    *ret = '\0';
    if (list && fgets(ret, (int)bytes, list))
        ret[strcspn(ret, "\n")] = '\0';
    if (list)
        (void)pclose(list);
}

static char device[32];

static void begin(void)
{
    struct crystal_error err = {0};
    struct crystal_board_config config = {.lrank_count = N,
                                          .ranks_per_node = 2,
                                          .mode = CRYSTAL_BOARD_IMMEDIATE,
                                          .comm_capacity = 8,
                                          .wire_bytes_per_s = 50000000000U,
                                          .directory = directory};
    char path[4200];
    const char *build = build_folder();

    strcpy(directory, "/tmp/crystal-plugin-XXXXXX");
    if (!mkdtemp(directory) || !(board = crystal_board_create(&config, &err))) {
        printf("Bail out! no board: %s\n", err.text);
        exit(1);
    }
    (void)snprintf(path, sizeof path, "%s/board", directory);
    (void)setenv(CRYSTAL_ENV_BOARD, path, 1);
    (void)setenv(CRYSTAL_ENV_LRANK, "0", 1);
    (void)setenv(CRYSTAL_ENV_NICS, "3", 1);
    find_device(device, sizeof device);
    if (*device) {
        (void)snprintf(path, sizeof path, "%s,%s,%s", device, device, device);
        (void)setenv(CRYSTAL_ENV_NIC_PCI, path, 1);
    }
    (void)snprintf(path, sizeof path, "%s/.libs/libnccl-net-crystal.so", build);
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        printf("Bail out! %s\n", dlerror());
        exit(1);
    }
}

/* The letters of those algorithms that are left: T, R, D, C, N, n, P. */
static void tune(uint64_t comm_id, const char *offered, const char *want)
{
    static const char letters[] = "TRDCNnP";
    const ncclTuner_v5_t *tuner = dlsym(library, "ncclTunerPlugin_v5");
    float costs[NCCL_TUNER_ALGORITHMS][PROTOCOLS];
    char left[NCCL_TUNER_ALGORITHMS + 1] = "";
    void *context = NULL;
    int channels = 7, count = 0;

    CHECK(tuner != NULL);
    if (!tuner)
        return;
    for (int a = 0; a < NCCL_TUNER_ALGORITHMS; a++)
        for (int p = 0; p < PROTOCOLS; p++)
            costs[a][p] = strchr(offered, letters[a]) && p != 1
                              ? (float)(10 * a + p)
                              : NCCL_ALGO_PROTO_IGNORE;
    CHECK_EQ(tuner->init(&context, comm_id, N, 4, no_log, NULL, NULL), ncclSuccess);
    CHECK_EQ(tuner->getCollInfo(context, 4, 1024, 1, (float **)(void *)costs,
                                NCCL_TUNER_ALGORITHMS, PROTOCOLS, 0, &channels),
             ncclSuccess);
    CHECK_EQ(channels, 7);
    for (int a = 0; a < NCCL_TUNER_ALGORITHMS; a++) {
        CHECK(costs[a][1] == NCCL_ALGO_PROTO_IGNORE);
        if (costs[a][2] == (float)(10 * a + 2))
            left[count++] = letters[a];
        else
            CHECK(costs[a][2] == NCCL_ALGO_PROTO_IGNORE);
    }
    CHECK_STR(left, want);
    CHECK_EQ(tuner->finalize(context), ncclSuccess);
}

static void what_the_tuner_leaves(void)
{
    add(1, 1, "0", 0);
    add(2, 1, "01", 0);
    add(3, 1, "06", 0);
    add(4, 1, "01", 1); /* each its own node, whatever the target's */
    add(5, 2, "06", 0); /* one of each node */
    tune(1, "TRDCNnP", "TRP");
    tune(2, "TRDCNnP", "TR");
    tune(3, "TRDCNnP", "R");
    tune(4, "TRDCNnP", "TR");
    tune(5, "TRDCNnP", "TR");
    tune(3, "TN", "TN");            /* nothing else is left: the message says why */
    tune(99, "TRDCNnP", "TRDCNnP"); /* all of its members are real */
}

static void as_many_nics_as_the_target_has(void)
{
    const ncclNet_v11_t *net = dlsym(library, "ncclNetPlugin_v11");
    ncclNetProperties_v11_t props[3];
    ncclNetCommConfig_v11_t config = {-1};
    unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
    void *context = NULL, *listener = NULL;
    int count = 0;

    CHECK(net != NULL);
    if (!net)
        return;
    CHECK_EQ(net->devices(&count), ncclSuccess);
    CHECK_EQ(count, 3);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(net->getProperties(i, &props[i]), ncclSuccess);
        CHECK_EQ(props[i].speed, 400000);
        CHECK_EQ(props[i].vProps.devs[0], i);
        CHECK_EQ(props[i].guid - props[0].guid, i);
        if (*device)
            CHECK(props[i].pciPath &&
                  !strcmp(strrchr(props[i].pciPath, '/') + 1, device));
        else
            CHECK(props[i].pciPath == NULL);
    }
    CHECK_STR(props[0].name, "crystal0");
    CHECK_STR(props[2].name, "crystal2");
    CHECK(net->getProperties(3, &props[0]) != ncclSuccess);
    CHECK_EQ(net->init(&context, 1, &config, no_log, NULL), ncclSuccess);
    CHECK_EQ(net->listen(context, 2, handle, &listener), ncclSuccess);
    CHECK_EQ(net->closeListen(listener), ncclSuccess);
    CHECK(net->listen(context, 3, handle, &listener) != ncclSuccess);
    CHECK_EQ(net->finalize(context), ncclSuccess);
}

/* Their NCCL could not tell which communicator a virtual rank is of. */
static void older_interfaces_have_no_virtual_ranks(void)
{
    const ncclNet_v10_t *v10 = dlsym(library, "ncclNetPlugin_v10");
    const ncclNet_v8_t *v8 = dlsym(library, "ncclNetPlugin_v8");

    CHECK(v10 && v8);
    if (!v10 || !v8)
        return;
    CHECK_EQ(v10->init(no_log, NULL), ncclInvalidUsage);
    CHECK_EQ(v8->init(no_log), ncclInvalidUsage);
}

int main(void)
{
    check_begin();
    begin();
    CHECK_RUN(what_the_tuner_leaves);
    CHECK_RUN(as_many_nics_as_the_target_has);
    CHECK_RUN(older_interfaces_have_no_virtual_ranks);
    crystal_board_destroy(board);
    (void)rmdir(directory);
    return check_end();
}
