/* Contributions that an injection rule makes. See inject_rules.h. */
#include "config.h"

#include "runtime/infile.h"
#include "runtime/inject_rules.h"
#include "runtime/nccl_abi.h"
#include "runtime/reduce.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static int fill_from_file(const struct crystal_inject_rule *rule, void *data,
                          uint64_t bytes, struct crystal_error *err)
{
    uint64_t have = 0, at = 0;
    int fd = crystal_infile_open(rule->path, &have, err), code = 0;

    if (fd < 0)
        return fd;
    if (have < bytes)
        code = crystal_error_set(
            err, EINVAL,
            "%s: has %llu bytes, %llu are to be injected by '%s' of inject: in "
            "crystal.yaml; give it that many, or the rule a bytes=",
            rule->path, (unsigned long long)have, (unsigned long long)bytes,
            rule->text);
    while (!code && at < bytes) {
        ssize_t got = read(fd, (char *)data + at, bytes - at);

        if (got <= 0)
            code = crystal_error_set(err, got ? errno : EIO, "%s: %s", rule->path,
                                     got ? strerror(errno) : "ends early");
        else
            at += (uint64_t)got;
    }
    (void)close(fd);
    return code;
}

int crystal_inject_rule_fill(const struct crystal_inject_rule *rule, unsigned dtype,
                             void *data, uint64_t bytes, struct crystal_error *err)
{
    const uint32_t elt_bytes = crystal_dtype_bytes(dtype);
    const uint64_t bits = crystal_reduce_bits(dtype, rule->constant);

    if (rule->value == CRYSTAL_INJECT_FILE)
        return fill_from_file(rule, data, bytes, err);
    for (uint64_t at = 0; elt_bytes && at + elt_bytes <= bytes; at += elt_bytes)
        memcpy((char *)data + at, &bits, elt_bytes); /* little endian */
    return 0;
}
