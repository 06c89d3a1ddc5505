/* See node_clock.h. */
#include "config.h"

#include "replay/node_clock.h"

#include "runtime/filehead.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

uint64_t crystal_namespace_id(const char *name)
{
    char text[160] = "", path[64];
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t boot = fd < 0 ? -1 : read(fd, text, 64), space;
    uint64_t id = 0;

    if (fd >= 0)
        (void)close(fd); /* read-only */
    (void)snprintf(path, sizeof path, "/proc/self/ns/%s", name);
    space = boot > 0 ? readlink(path, text + boot, 64) : -1;
    if (boot > 0 && space < 0 && errno == ENOENT)
        space = 0; /* a kernel that has one of them for all */
    if (space >= 0)
        return crystal_hash(text, (size_t)(boot + space));
    (void)!getrandom(&id, sizeof id, 0); /* does not fail once the kernel has begun */
    return id;
}

int crystal_clock_add(struct crystal_clock *clock, uint64_t sent_ns, uint64_t other_ns,
                      uint64_t received_ns, int64_t *ret_offset_ns)
{
    uint64_t way_ns = received_ns - sent_ns;

    if (received_ns < sent_ns)
        return 0; /* not an answer to ours */
    if (!clock->count || way_ns < clock->best_ns) {
        clock->best_ns = way_ns;
        clock->offset_ns = (int64_t)(other_ns - (sent_ns + way_ns / 2));
    }
    if (++clock->count < CRYSTAL_CLOCK_ROUND)
        return 0;
    *ret_offset_ns = clock->offset_ns;
    clock->count = 0;
    return 1;
}
