/* See sealed_file.h. */
#include "config.h"

#include "tests/fuzz/sealed_file.h"

#include "runtime/filehead.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[64];

static void remove_file(void)
{
    (void)unlink(path); /* nothing to do about it at exit */
}

const char *fuzz_sealed_file(const uint8_t *data, size_t size)
{
    struct crystal_filehead head;
    FILE *file;

    if (!path[0]) {
        (void)snprintf(path, sizeof path, "/tmp/crystal-fuzz.%ld", (long)getpid());
        (void)atexit(remove_file);
    }
    file = fopen(path, "wb");
    if (!file)
        abort();
    if (size >= sizeof head) {
        memcpy(&head, data, sizeof head);
        head.file_bytes = size;
        head.body_hash = crystal_hash(data + sizeof head, size - sizeof head);
        if (head.head_hash)
            head.head_hash =
                crystal_hash(&head, offsetof(struct crystal_filehead, head_hash));
        if (fwrite(&head, 1, sizeof head, file) != sizeof head)
            abort();
        data += sizeof head;
        size -= sizeof head;
    }
    if (fwrite(data, 1, size, file) != size || fclose(file) != 0)
        abort();
    return path;
}
