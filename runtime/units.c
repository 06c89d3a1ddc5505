/* See units.h. */
#include "config.h"

#include "runtime/units.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int number_prefix(const char *text, double *ret, const char **rest)
{
    char *end;

    if (!isdigit((unsigned char)*text))
        return -EINVAL;
    *ret = strtod(text, &end);
    if (end == text || *ret < 0 || *ret > 1e18)
        return -EINVAL;
    while (*end == ' ')
        end++;
    *rest = end;
    return 0;
}

int crystal_scaled_parse(const char *text, const struct crystal_unit *units,
                         uint64_t *ret)
{
    const char *rest;
    double value;

    if (number_prefix(text, &value, &rest))
        return -EINVAL;
    for (; units->name; units++)
        if (strcmp(rest, units->name) == 0) {
            value *= units->factor;
            if (value > 1.8e19)
                return -EINVAL;
            *ret = (uint64_t)(value + 0.5);
            return 0;
        }
    return -EINVAL;
}

int crystal_bandwidth_parse(const char *text, uint64_t *ret_bytes_per_s)
{
    static const struct crystal_unit units[] = {
        {"", 1},           {"B/s", 1},        {"kB/s", 1e3},      {"MB/s", 1e6},
        {"GB/s", 1e9},     {"TB/s", 1e12},    {"MiB/s", 1 << 20}, {"GiB/s", 1 << 30},
        {"Mb/s", 1e6 / 8}, {"Gb/s", 1e9 / 8}, {"Tb/s", 1e12 / 8}, {NULL, 0}};

    return crystal_scaled_parse(text, units, ret_bytes_per_s);
}

int crystal_size_parse(const char *text, uint64_t *ret_bytes)
{
    static const struct crystal_unit units[] = {
        {"", 1},          {"B", 1},        {"kB", 1e3},      {"MB", 1e6},
        {"GB", 1e9},      {"TB", 1e12},    {"KiB", 1 << 10}, {"MiB", 1 << 20},
        {"GiB", 1 << 30}, {"TiB", 0x1p40}, {NULL, 0}};

    return crystal_scaled_parse(text, units, ret_bytes);
}

int crystal_duration_parse(const char *text, uint64_t *ret_ns)
{
    static const struct crystal_unit units[] = {{"", 1},     {"ns", 1},  {"us", 1e3},
                                                {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};

    return crystal_scaled_parse(text, units, ret_ns);
}
