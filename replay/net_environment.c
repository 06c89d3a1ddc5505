/* See net_environment.h. */
#include "config.h"

#include "replay/net_environment.h"

#include "replay/net_copiers.h"
#include "runtime/env.h"
#include "runtime/target.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A whole decimal number; *end behind it. */
static int number_parse(const char *text, uint64_t *ret, const char **ret_end)
{
    char *end;

    if (*text < '0' || *text > '9')
        return -EINVAL;
    errno = 0;
    *ret = strtoull(text, &end, 10);
    *ret_end = end;
    return errno ? -ERANGE : 0;
}

int crystal_net_read_lrank(uint32_t *ret, struct crystal_error *err)
{
    const char *text = getenv(CRYSTAL_ENV_LRANK), *end;
    uint64_t value;

    *ret = UINT32_MAX;
    if (!text || !*text)
        return 0;
    if (number_parse(text, &value, &end) || *end || value >= UINT32_MAX)
        return crystal_error_set(err, EINVAL, CRYSTAL_ENV_LRANK ": '%s' is not a rank",
                                 text);
    *ret = (uint32_t)value;
    return 0;
}

int crystal_net_read_wire(struct crystal_wire *wire, struct crystal_error *err)
{
    const char *text = getenv(CRYSTAL_ENV_WIRE), *end;

    memset(wire, 0, sizeof *wire);
    if (!text || !*text)
        return 0;
    if (number_parse(text, &wire->bytes_per_s, &end) || *end != ',' ||
        number_parse(end + 1, &wire->latency_ns, &end) || *end ||
        wire->latency_ns > 3600000000000U)
        return crystal_error_set(
            err, EINVAL, CRYSTAL_ENV_WIRE ": '%s' is not BYTES_PER_S,LATENCY_NS", text);
    return 0;
}

/* Whether an environment variable has this value; neither it nor unset: -EINVAL. */
int crystal_net_read_choice(const char *name, const char *choice, const char *other,
                            int *ret, struct crystal_error *err)
{
    const char *text = getenv(name);

    *ret = text && strcmp(text, choice) == 0;
    if (*ret || !text || !*text || strcmp(text, other) == 0)
        return 0;
    return crystal_error_set(err, EINVAL, "%s: '%s' is neither %s nor %s", name, text,
                             choice, other);
}

int crystal_net_read_nics(unsigned *ret, struct crystal_error *err)
{
    const char *text = getenv(CRYSTAL_ENV_NICS);
    unsigned long count;
    char *end;

    *ret = 1;
    if (!text || !*text)
        return 0;
    count = strtoul(text, &end, 10);
    if (*end || !count || count > CRYSTAL_NICS_MAX)
        return crystal_error_set(err, EINVAL,
                                 CRYSTAL_ENV_NICS ": '%s' is no number from 1 to %d",
                                 text, CRYSTAL_NICS_MAX);
    *ret = (unsigned)count;
    return 0;
}

/* Where the NICs are in sysfs. */
int crystal_net_read_pci(char *paths[CRYSTAL_NICS_MAX], unsigned count,
                         struct crystal_error *err)
{
    const char *text = getenv(CRYSTAL_ENV_NIC_PCI);
    char link[64];

    if (!text || !*text)
        return 0;
    if (crystal_target_pci_count(text) != (int)count)
        return crystal_error_set(err, EINVAL,
                                 CRYSTAL_ENV_NIC_PCI ": '%s' are no PCI addresses of "
                                                     "%u NICs",
                                 text, count);
    for (unsigned i = 0; i < count; i++) {
        int length = (int)strcspn(text, ",");

        (void)snprintf(link, sizeof link, "/sys/bus/pci/devices/%.*s", length, text);
        paths[i] = realpath(link, NULL);
        if (!paths[i])
            return crystal_error_set(err, ENODEV,
                                     CRYSTAL_ENV_NIC_PCI ": no PCI device %.*s here "
                                                         "(nic.pci in crystal.yaml)",
                                     length, text);
        text += length + 1;
    }
    return 0;
}

int crystal_net_read_copiers(unsigned *ret, struct crystal_error *err)
{
    const char *text = getenv(CRYSTAL_ENV_COPIERS), *end;
    uint64_t count = crystal_copiers_count();

    if (text && *text &&
        (number_parse(text, &count, &end) || *end || count > CRYSTAL_COPIERS_MOST))
        return crystal_error_set(err, EINVAL,
                                 CRYSTAL_ENV_COPIERS
                                 ": '%s' is not a number of threads, 0 to %u",
                                 text, CRYSTAL_COPIERS_MOST);
    *ret = (unsigned)count;
    return 0;
}
