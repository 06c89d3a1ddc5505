/* Ports within a range: every one is used, the next caller is told, and none is taken
 * outside of it. */
#include "config.h"

#include "runtime/listen.h"

#include "tests/check.h"

#include <errno.h>

/* Two ports in a row that nobody listens at. */
static struct crystal_ports free_pair(void)
{
    struct crystal_ports ports = {0, 0};

    for (uint16_t port = 31000; port < 32000 && !ports.first; port += 2) {
        int fds[2] = {-1, -1};
        uint16_t got;

        if (crystal_listen(port, "x", &fds[0], &got, NULL) == 0 &&
            crystal_listen(port + 1, "x", &fds[1], &got, NULL) == 0)
            ports = (struct crystal_ports){port, (uint16_t)(port + 1)};
        for (int i = 0; i < 2; i++)
            if (fds[i] >= 0)
                close(fds[i]);
    }
    return ports;
}

static void within(void)
{
    struct crystal_ports ports = free_pair();
    struct crystal_error err = {0};
    uint16_t got[3] = {0};
    int fds[3] = {-1, -1, -1};

    CHECK(ports.first != 0);
    CHECK_EQ(crystal_listen_within(&ports, &fds[0], &got[0], &err), 0);
    CHECK_EQ(crystal_listen_within(&ports, &fds[1], &got[1], &err), 0);
    CHECK_EQ(got[0] + got[1], ports.first + ports.last);
    CHECK(got[0] != got[1]);
    CHECK_EQ(crystal_listen_within(&ports, &fds[2], &got[2], &err), -EADDRINUSE);
    CHECK_HAS(crystal_error_text(&err), "is in use; widen port_range in crystal.yaml");
    for (int i = 0; i < 2; i++)
        close(fds[i]);
}

static void any(void)
{
    const struct crystal_ports ports = {0, 0};
    uint16_t got = 0;
    int fd = -1;

    CHECK_EQ(crystal_listen_within(&ports, &fd, &got, NULL), 0);
    CHECK(got != 0);
    close(fd);
}

int main(void)
{
    check_begin();
    CHECK_RUN(within);
    CHECK_RUN(any);
    return check_end();
}
