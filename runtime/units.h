/* Numbers with units, as people write them. A number has no sign and may have a
 * fraction; blanks may stand between it and the unit.
 */
#ifndef CRYSTAL_UNITS_H
#define CRYSTAL_UNITS_H

#include <stdint.h>

/* A table ends with a row whose name is NULL. */
struct crystal_unit {
    const char *name;
    double factor;
};
/* 0, or -EINVAL where it is none or does not fit. */
int crystal_scaled_parse(const char *text, const struct crystal_unit *units,
                         uint64_t *ret);

/* "10GB/s", "400Gb/s" (bits), "12500000" -> bytes/s; "5us", "1ms", "200" (ns) -> ns.
 * Return 0 or -EINVAL. */
int crystal_bandwidth_parse(const char *text, uint64_t *ret_bytes_per_s);
int crystal_duration_parse(const char *text, uint64_t *ret_ns);
/* "64GiB", "2 TB", "1000" -> bytes. 0 or -EINVAL. */
int crystal_size_parse(const char *text, uint64_t *ret_bytes);

#endif
