/* What a tool has to know of NVTX 3, whose implementation is compiled into each program
 * and library that calls it: names, numbers and layouts as NVIDIA/NVTX's public headers
 * have them, for 64-bit processes.
 *
 * The first call of such an implementation loads the library that NVTX_INJECTION64_PATH
 * names and calls its InitializeInjectionNvtx2 with a function that gives tables. That
 * puts its own functions into the places of the tables; calls without one do nothing.
 */
#ifndef CRYSTAL_NVTX_ABI_H
#define CRYSTAL_NVTX_ABI_H

#include <stddef.h>
#include <stdint.h>

#define NVTX_ENV_INJECTION "NVTX_INJECTION64_PATH"

typedef void (*nvtx_function)(void); /* to be cast to what it is */
/* The address of the table of that number, or NULL. */
typedef const void *nvtx_get_table(uint32_t table);

#define NVTX_TABLE_CALLBACKS 1

struct nvtx_callbacks {
    size_t struct_bytes;
    /* places[id] is where the function `id` of a module is kept, id < count; returns 1,
     * or 0 for a module that it does not know. */
    int (*get_functions)(int module, nvtx_function ***ret_places, unsigned *ret_count);
};

enum { NVTX_MODULE_CORE = 1, NVTX_MODULE_CORE2 = 5 };

/* Functions of NVTX_MODULE_CORE ... */
enum {
    NVTX_RANGE_START_EX = 4, /* uint64_t (const struct nvtx_event *) */
    NVTX_RANGE_START_A = 5,  /* uint64_t (const char *) */
    NVTX_RANGE_START_W = 6,  /* uint64_t (const wchar_t *) */
    NVTX_RANGE_PUSH_EX = 8,  /* int (const struct nvtx_event *) */
    NVTX_RANGE_PUSH_A = 9,   /* int (const char *) */
    NVTX_RANGE_PUSH_W = 10   /* int (const wchar_t *) */
};
/* ... and of NVTX_MODULE_CORE2: the same in domains. Domains and registered strings are
 * pointers that only the tool looks into. */
enum {
    NVTX_DOMAIN_RANGE_START_EX = 2, /* uint64_t (void *, const struct nvtx_event *) */
    NVTX_DOMAIN_RANGE_PUSH_EX = 4,  /* int (void *, const struct nvtx_event *) */
    NVTX_DOMAIN_REGISTER_STRING_A = 10, /* void *(void *, const char *) */
    NVTX_DOMAIN_REGISTER_STRING_W = 11, /* void *(void *, const wchar_t *) */
    NVTX_DOMAIN_CREATE_A = 12,          /* void *(const char *) */
    NVTX_DOMAIN_CREATE_W = 13           /* void *(const wchar_t *) */
};

/* What a push gives where the tool does not count levels. */
#define NVTX_NO_LEVELS (-2)

enum { NVTX_MESSAGE_ASCII = 1, NVTX_MESSAGE_UNICODE = 2, NVTX_MESSAGE_REGISTERED = 3 };

struct nvtx_event {
    uint16_t version;
    uint16_t struct_bytes; /* of the caller's headers; a newer one has more behind */
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type;
    int32_t reserved;
    uint64_t payload;
    int32_t message_type;
    const void *message; /* const char *, const wchar_t * or a registered string */
};
_Static_assert(offsetof(struct nvtx_event, message_type) == 32, "NVTX's");
_Static_assert(offsetof(struct nvtx_event, message) == 40, "NVTX's");
_Static_assert(sizeof(struct nvtx_event) == 48, "NVTX's");

#endif
