/* The cost of a message measured by itself, over the real library and plugin. */
#include "config.h"

#include "replay/calibrate.h"

#include "tests/check.h"
#include "tests/folders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static char nccl_library[4096], net_plugin[4096];

static struct crystal_calibrate_config config_of(uint32_t nranks)
{
    const struct crystal_calibrate_config config = {nccl_library, net_plugin, nranks};

    return config;
}

static void a_cost_is_found(void)
{
    struct crystal_calibrate_config config = config_of(4);
    struct crystal_transfer_wire wire = {UINT64_C(1250000000), 200000, 7, 1, 7, 0, 0,
                                         CRYSTAL_PROTO_SIMPLE};
    struct crystal_error err = {0};
    uint32_t count = 0;

    CHECK_EQ(crystal_calibrate(&config, &wire, &count, &err), 0);
    CHECK_EQ(count, 2 * (40 - 2)); /* pairs and all four, the cold rounds left out */
    CHECK_EQ(wire.latency_ns, 200000);
    CHECK_EQ(wire.bytes_per_s, 1250000000);
    CHECK(wire.overhead_ns + wire.op_overhead_ns > 100);
    CHECK(waitpid(-1, NULL, WNOHANG) < 0); /* no child is left */
}

static void a_slow_wire_takes_fewer_rounds(void)
{
    struct crystal_calibrate_config config = config_of(2);
    struct crystal_transfer_wire wire = {0, 20000000, 0, 1,
                                         0, 0,        0, CRYSTAL_PROTO_SIMPLE};
    struct crystal_error err = {0};
    uint32_t count = 0;

    CHECK_EQ(crystal_calibrate(&config, &wire, &count, &err), 0);
    CHECK_EQ(count, 8 - 2); /* 700 ms of rounds of 4 x 20 ms */
}

static void a_library_that_is_not_there(void)
{
    struct crystal_calibrate_config config = config_of(2);
    struct crystal_transfer_wire wire = {0, 1000, 0, 1, 0, 0, 0, CRYSTAL_PROTO_SIMPLE};
    struct crystal_error err = {0};
    uint32_t count = 0;

    config.nccl_library = "/nowhere/libnccl.so";
    CHECK(crystal_calibrate(&config, &wire, &count, &err) < 0);
    CHECK(strstr(err.text, "measuring the cost of a message: /nowhere/libnccl.so: "));
    CHECK(waitpid(-1, NULL, WNOHANG) < 0);
    config = config_of(2);
    config.net_plugin = "/nowhere/net.so";
    err.code = 0;
    CHECK(crystal_calibrate(&config, &wire, &count, &err) < 0);
    CHECK(strstr(err.text, "/nowhere/net.so"));
    CHECK(waitpid(-1, NULL, WNOHANG) < 0);
}

int main(void)
{
    const char *build = build_folder();

    check_begin();

    (void)snprintf(nccl_library, sizeof nccl_library, "%s/.libs/libcrystal-hostccl.so",
                   build);
    (void)snprintf(net_plugin, sizeof net_plugin, "%s/.libs/libnccl-net-crystal.so",
                   build);
    CHECK_RUN(a_cost_is_found);
    CHECK_RUN(a_slow_wire_takes_fewer_rounds);
    CHECK_RUN(a_library_that_is_not_there);
    return check_end();
}
