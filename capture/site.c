/* The table of places, and its file. See site.h. */
#include "config.h"

#include "capture/site.h"

#include "capture/recorder.h"
#include "runtime/crystal_site.h"
#include "runtime/env.h"
#include "runtime/message.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SITES_MAX  4096 /* more are told as addresses */
#define BUCKETS    8192 /* a power of two, and not full with SITES_MAX */
#define LINE_BYTES 256

static _Thread_local const char *told; /* by the program, for this thread */

static struct {
    pthread_mutex_t lock;
    struct {
        const char *text; /* NULL: free */
        uint64_t address;
        uint32_t line;
    } buckets[BUCKETS];
    uint32_t count;
    int fd;      /* 0: not opened yet */
    int is_shut; /* the file cannot be written: addresses from now on */
} sites = {.lock = PTHREAD_MUTEX_INITIALIZER};

__attribute__((visibility("default"))) int crystal_call_site(const char *text)
{
    const char *library = getenv(CRYSTAL_ENV_PASS_LIBRARY);

    told = text;
    return text || !library || !*library;
}

static int file_open(void)
{
    const char *directory = getenv(CRYSTAL_ENV_TRACE_DIR);
    char path[4096];

    if (!directory || snprintf(path, sizeof path, "%s/%u.sites", directory,
                               recorder_get()->lrank) >= (int)sizeof path)
        return -1;
    return open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
}

/* Lock held. Adds a line; nonzero where that is not possible. */
static int file_add(const char *text, uint64_t address)
{
    char line[LINE_BYTES];
    int bytes =
        snprintf(line, sizeof line - 1, "%llx %s", (unsigned long long)address, text);

    if (!sites.fd)
        sites.fd = file_open();
    if (sites.fd < 0)
        return -1;
    if (bytes > LINE_BYTES - 2)
        bytes = LINE_BYTES - 2; /* cut */
    line[bytes++] = '\n';
    return write(sites.fd, line, (size_t)bytes) == bytes ? 0 : -1;
}

/* Lock held. Its bucket, or the free one where it belongs. */
static uint32_t bucket_of(const char *text, uint64_t address)
{
    uint64_t key = (uintptr_t)text * UINT64_C(0x9e3779b97f4a7c15) ^
                   address * UINT64_C(0xc2b2ae3d27d4eb4f);
    uint32_t at = (uint32_t)(key >> 40) % BUCKETS;

    while (sites.buckets[at].text &&
           (sites.buckets[at].text != text || sites.buckets[at].address != address))
        at = (at + 1) % BUCKETS;
    return at;
}

uint64_t site_number(uint64_t address)
{
    const char *text = told;
    uint64_t number = address;
    uint32_t at;

    if (!text)
        return address;
    (void)pthread_mutex_lock(&sites.lock);
    at = bucket_of(text, address);
    if (!sites.buckets[at].text && sites.count < SITES_MAX && !sites.is_shut) {
        sites.is_shut = file_add(text, address) != 0;
        if (!sites.is_shut) {
            sites.buckets[at].text = text;
            sites.buckets[at].address = address;
            sites.buckets[at].line = sites.count++;
        }
    }
    if (sites.buckets[at].text)
        number = CRYSTAL_SITE_TOLD | sites.buckets[at].line;
    (void)pthread_mutex_unlock(&sites.lock);
    return number;
}
