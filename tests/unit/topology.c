/* Placement of ranks on machines as they are sold; the pairings are written by hand. */
#include "config.h"

#include "runtime/topology.h"

#include "tests/check.h"
#include "tests/machine_xml.h"

#define COUNT(array) (int)(sizeof(array) / sizeof(array)[0])

struct want {
    const char *gpu, *nic, *distance, *cpus;
    uint32_t numa;
};

static void check_machine(const struct machine_spec *spec, const struct want *want,
                          uint32_t count)
{
    char path[] = "/tmp/crystal-machine-XXXXXX";
    struct crystal_error err = {0};
    struct crystal_place *places = NULL;
    int fd = mkstemp(path);

    CHECK(fd >= 0);
    close(fd);
    CHECK_EQ(machine_write(spec, path), 0);
    CHECK_EQ(crystal_topology_place(path, count, &places, &err), 0);
    CHECK_STR(err.text, "");
    for (uint32_t i = 0; i < count && places; i++) {
        CHECK_STR(places[i].gpu, want[i].gpu);
        CHECK_STR(places[i].nic, want[i].nic);
        CHECK_STR(places[i].nic_distance, want[i].distance);
        CHECK_STR(places[i].cpus, want[i].cpus);
        CHECK_EQ(places[i].numa, want[i].numa);
    }
    free(places);
    unlink(path);
}

/* Two packages of 16 cores; four switches with two GPUs and two NICs each, the order on
 * the bus is not the order of pairs; Ethernet for the administrator is not for NCCL. */
static const struct machine_device eight_devices[] = {
    {0, 0, -1, -1, MACHINE_ETH, 0x02, 0}, {0, 1, 0, -1, MACHINE_GPU, 0x1a, 0},
    {0, 1, 0, -1, MACHINE_IB, 0x1b, 0},   {0, 1, 0, -1, MACHINE_GPU, 0x1c, 0},
    {0, 1, 0, -1, MACHINE_IB, 0x1d, 1},   {0, 2, 1, -1, MACHINE_IB, 0x3a, 2},
    {0, 2, 1, -1, MACHINE_IB, 0x3b, 3},   {0, 2, 1, -1, MACHINE_GPU, 0x3c, 0},
    {0, 2, 1, -1, MACHINE_GPU, 0x3d, 0},  {1, 3, 2, -1, MACHINE_GPU, 0x8a, 0},
    {1, 3, 2, -1, MACHINE_GPU, 0x8b, 0},  {1, 3, 2, -1, MACHINE_IB, 0x8c, 4},
    {1, 3, 2, -1, MACHINE_IB, 0x8d, 5},   {1, 4, 3, -1, MACHINE_GPU, 0xba, 0},
    {1, 4, 3, -1, MACHINE_IB, 0xbb, 6},   {1, 4, 3, -1, MACHINE_IB, 0xbc, 7},
    {1, 4, 3, -1, MACHINE_GPU, 0xbd, 0},  {1, 5, -1, -1, MACHINE_VGA, 0xf0, 0},
};
static const struct machine_spec eight = {2, 1, 16, eight_devices,
                                          COUNT(eight_devices)};

static void eight_gpus_eight_nics(void)
{
    static const struct want want[] = {
        {"0000:1a:00.0", "mlx5_0", "PIX", "0-3,32-35", 0},
        {"0000:1c:00.0", "mlx5_1", "PIX", "4-7,36-39", 0},
        {"0000:3c:00.0", "mlx5_2", "PIX", "8-11,40-43", 0},
        {"0000:3d:00.0", "mlx5_3", "PIX", "12-15,44-47", 0},
        {"0000:8a:00.0", "mlx5_4", "PIX", "16-19,48-51", 1},
        {"0000:8b:00.0", "mlx5_5", "PIX", "20-23,52-55", 1},
        {"0000:ba:00.0", "mlx5_6", "PIX", "24-27,56-59", 1},
        {"0000:bd:00.0", "mlx5_7", "PIX", "28-31,60-63", 1},
    };

    check_machine(&eight, want, 8);
}

/* No switches: a NIC below the root of GPUs, and one that only shares their node. */
static void four_gpus_two_nics(void)
{
    static const struct machine_device devices[] = {
        {0, 0, -1, -1, MACHINE_GPU, 0x11, 0}, {0, 0, -1, -1, MACHINE_IB, 0x12, 0},
        {0, 0, -1, -1, MACHINE_GPU, 0x13, 0}, {1, 1, -1, -1, MACHINE_GPU, 0x91, 0},
        {1, 2, -1, -1, MACHINE_GPU, 0xa1, 0}, {1, 3, -1, -1, MACHINE_IB, 0xb1, 1},
    };
    static const struct machine_spec spec = {2, 1, 4, devices, COUNT(devices)};
    static const struct want want[] = {
        {"0000:11:00.0", "mlx5_0", "PHB", "0-1,8-9", 0},
        {"0000:13:00.0", "mlx5_0", "PHB", "2-3,10-11", 0},
        {"0000:91:00.0", "mlx5_1", "NODE", "4-5,12-13", 1},
        {"0000:a1:00.0", "mlx5_1", "NODE", "6-7,14-15", 1},
    };

    check_machine(&spec, want, 4);
}

/* Four NUMA nodes a socket, a GPU at every second node, NICs at some others: rather one
 * of the own socket that is in use than one of the other. */
static void four_numa_nodes_a_socket(void)
{
    static const struct machine_device devices[] = {
        {0, 0, 0, -1, MACHINE_AMD_GPU, 0x05, 0},
        {0, 0, 0, -1, MACHINE_IB, 0x06, 9},
        {2, 1, -1, -1, MACHINE_AMD_GPU, 0x26, 0},
        {4, 3, 1, -1, MACHINE_AMD_GPU, 0x65, 0},
        {4, 3, 1, -1, MACHINE_IB, 0x66, 2},
        {6, 4, -1, -1, MACHINE_AMD_GPU, 0x85, 0},
        {7, 5, -1, -1, MACHINE_IB, 0xa5, 3},
    };
    static const struct machine_spec spec = {2, 4, 2, devices, COUNT(devices)};
    static const struct want want[] = {
        {"0000:05:00.0", "mlx5_9", "PIX", "0-1,16-17", 0},
        {"0000:26:00.0", "mlx5_9", "SYS", "4-5,20-21", 2},
        {"0000:65:00.0", "mlx5_2", "PIX", "8-9,24-25", 4},
        {"0000:85:00.0", "mlx5_3", "SYS", "12-13,28-29", 6},
    };

    check_machine(&spec, want, 4);
}

/* Switches below a switch: the NIC of the own inner switch is nearer. */
static void switches_below_switches(void)
{
    static const struct machine_device devices[] = {
        {0, 0, 0, 0, MACHINE_GPU, 0x31, 0}, {0, 0, 0, 0, MACHINE_IB, 0x32, 0},
        {0, 0, 0, 1, MACHINE_GPU, 0x41, 0}, {0, 0, 0, 1, MACHINE_IB, 0x42, 1},
        {0, 0, 0, 2, MACHINE_GPU, 0x51, 0},
    };
    static const struct machine_spec spec = {1, 1, 3, devices, COUNT(devices)};
    static const struct want want[] = {
        {"0000:31:00.0", "mlx5_0", "PIX", "0,3", 0},
        {"0000:41:00.0", "mlx5_1", "PIX", "1,4", 0},
        {"0000:51:00.0", "mlx5_0", "PXB", "2,5", 0},
    };

    check_machine(&spec, want, 3);
}

static void no_nic(void)
{
    static const struct machine_device devices[] = {
        {0, 0, -1, -1, MACHINE_GPU, 0x11, 0},
        {0, 1, -1, -1, MACHINE_GPU, 0x12, 0},
    };
    static const struct machine_spec spec = {1, 1, 4, devices, COUNT(devices)};
    /* more ranks than GPUs: they take turns, and share the cores in order of rank */
    static const struct want want[] = {
        {"0000:11:00.0", "", "", "0,4", 0},
        {"0000:12:00.0", "", "", "1,5", 0},
        {"0000:11:00.0", "", "", "2,6", 0},
        {"0000:12:00.0", "", "", "3,7", 0},
    };
    check_machine(&spec, want, 4);
}

/* NUMA nodes take turns; a NIC of the own node is preferred. */
static void no_gpu(void)
{
    static const struct machine_device devices[] = {
        {0, 0, -1, -1, MACHINE_ETH, 0x11, 0},
        {1, 1, -1, -1, MACHINE_ETH, 0x91, 1},
        {1, 2, -1, -1, MACHINE_VGA, 0xf0, 0},
    };
    static const struct machine_spec spec = {2, 1, 2, devices, COUNT(devices)};
    static const struct want want[] = {
        {"", "eth0", "NODE", "0,4", 0},
        {"", "eth1", "NODE", "2,6", 1},
        {"", "eth0", "NODE", "1,5", 0},
        {"", "eth1", "NODE", "3,7", 1},
    };

    check_machine(&spec, want, 4);
}

static void bad_files(void)
{
    struct crystal_place *places = NULL;
    struct crystal_error err = {0};

    CHECK(crystal_topology_place("/nowhere.xml", 8, &places, &err) < 0);
    CHECK_HAS(err.text, "topology: /nowhere.xml: No such file or directory");
    CHECK(!places);
}

/* topology FILE: only writes the machine of eight GPUs, for tests/t/layout.t. */
int main(int argc, char **argv)
{
    if (argc == 2)
        return machine_write(&eight, argv[1]) ? 1 : 0;
    check_begin();
    CHECK_RUN(eight_gpus_eight_nics);
    CHECK_RUN(four_gpus_two_nics);
    CHECK_RUN(four_numa_nodes_a_socket);
    CHECK_RUN(switches_below_switches);
    CHECK_RUN(no_nic);
    CHECK_RUN(no_gpu);
    CHECK_RUN(bad_files);
    return check_end();
}
