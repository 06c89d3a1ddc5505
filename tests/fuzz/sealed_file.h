/* For fuzzers of readers that take a path. */
#ifndef CRYSTAL_FUZZ_SEALED_FILE_H
#define CRYSTAL_FUZZ_SEALED_FILE_H

#include <stddef.h>
#include <stdint.h>

/* Writes data to a file of this process, removed at its exit, and returns its path. A
 * crystal_filehead at its begin gets the right size and checksum: they would hide the
 * rest from the fuzzer. */
const char *fuzz_sealed_file(const uint8_t *data, size_t size);

#endif
