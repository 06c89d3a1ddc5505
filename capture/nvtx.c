/* The tool behind NVTX. See nvtx.h for what, nvtx_abi.h for how.
 *
 * A range costs its caller the comparison of its message. A registered string is
 * compared once, when it is registered: what the program gets for it says which of the
 * two sorts it is. All domains are one.
 */
#include "config.h"

#include "capture/nvtx.h"

#include "capture/entry.h"

#include "runtime/env.h"
#include "runtime/utf8.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

static struct {
    const char *name; /* without its '*'; NULL: no range is named */
    size_t name_bytes;
    int is_prefix;
    int has_begun;        /* relaxed: a hint too many does no harm */
    uint64_t start_count; /* relaxed; ids of started ranges */
} range;
static pthread_once_t range_once = PTHREAD_ONCE_INIT;

/* What handles point to. */
static char the_domain, string_of_range, other_string;

static void range_read(void)
{
    const char *text = getenv(CRYSTAL_ENV_ITERATION_RANGE);
    size_t bytes = text ? strlen(text) : 0;

    if (!bytes)
        return;
    range.is_prefix = text[bytes - 1] == '*';
    range.name_bytes = bytes - (size_t)range.is_prefix;
    range.name = strdup(text); /* the program may change its environment */
}

int nvtx_has_begun(void)
{
    return __atomic_load_n(&range.has_begun, __ATOMIC_RELAXED);
}

static int is_named(void)
{
    const char *name = getenv(CRYSTAL_ENV_ITERATION_RANGE);

    return name && *name;
}

static int is_ours(void)
{
    const char *tool = getenv(NVTX_ENV_INJECTION);
    const char *own = getenv(CRYSTAL_ENV_NCCL_LIBRARY);

    return tool && own && strcmp(tool, own) == 0;
}

int nvtx_is_asked(void)
{
    return is_named() && is_ours();
}

int nvtx_is_hidden(void)
{
    return is_named() && !is_ours();
}

/* --- messages --- */

static int is_range(const char *message)
{
    return message && strncmp(message, range.name, range.name_bytes) == 0 &&
           (range.is_prefix || !message[range.name_bytes]);
}

static int is_wide_range(const wchar_t *message)
{
    for (size_t at = 0; message && at < range.name_bytes; message++) {
        uint32_t character;
        size_t bytes = crystal_utf8_next(range.name + at, &character);

        if (!bytes || (uint32_t)*message != character)
            return 0;
        at += bytes;
    }
    return message && (range.is_prefix || !*message);
}

static int is_range_event(const struct nvtx_event *event)
{
    if (!event || event->struct_bytes < sizeof *event)
        return 0;
    switch (event->message_type) {
    case NVTX_MESSAGE_ASCII:
        return is_range(event->message);
    case NVTX_MESSAGE_UNICODE:
        return is_wide_range(event->message);
    case NVTX_MESSAGE_REGISTERED:
        return event->message == &string_of_range;
    default:
        return 0;
    }
}

/* --- what programs call --- */

static void begins(int is_it)
{
    if (!is_it)
        return;
    __atomic_store_n(&range.has_begun, 1, __ATOMIC_RELAXED);
    entry_range_begins();
}

static int push(const char *message)
{
    begins(is_range(message));
    return NVTX_NO_LEVELS;
}

static int push_wide(const wchar_t *message)
{
    begins(is_wide_range(message));
    return NVTX_NO_LEVELS;
}

static int push_event(const struct nvtx_event *event)
{
    begins(is_range_event(event));
    return NVTX_NO_LEVELS;
}

static int push_in_domain(void *domain, const struct nvtx_event *event)
{
    (void)domain;
    return push_event(event);
}

static uint64_t started(int is_it)
{
    begins(is_it);
    return __atomic_add_fetch(&range.start_count, 1, __ATOMIC_RELAXED);
}

static uint64_t start(const char *message)
{
    return started(is_range(message));
}

static uint64_t start_wide(const wchar_t *message)
{
    return started(is_wide_range(message));
}

static uint64_t start_event(const struct nvtx_event *event)
{
    return started(is_range_event(event));
}

static uint64_t start_in_domain(void *domain, const struct nvtx_event *event)
{
    (void)domain;
    return start_event(event);
}

static void *register_string(void *domain, const char *text)
{
    (void)domain;
    return is_range(text) ? &string_of_range : &other_string;
}

static void *register_wide(void *domain, const wchar_t *text)
{
    (void)domain;
    return is_wide_range(text) ? &string_of_range : &other_string;
}

static void *create_domain(const char *name)
{
    (void)name;
    return &the_domain;
}

static void *create_wide_domain(const wchar_t *name)
{
    (void)name;
    return &the_domain;
}

/* --- the way in --- */

struct place {
    unsigned id;
    nvtx_function function;
};
#define PLACE(id, function)           \
    {                                 \
        id, (nvtx_function)(function) \
    }

static const struct place core[] = {
    PLACE(NVTX_RANGE_START_EX, start_event), PLACE(NVTX_RANGE_START_A, start),
    PLACE(NVTX_RANGE_START_W, start_wide),   PLACE(NVTX_RANGE_PUSH_EX, push_event),
    PLACE(NVTX_RANGE_PUSH_A, push),          PLACE(NVTX_RANGE_PUSH_W, push_wide)};
static const struct place core2[] = {
    PLACE(NVTX_DOMAIN_RANGE_START_EX, start_in_domain),
    PLACE(NVTX_DOMAIN_RANGE_PUSH_EX, push_in_domain),
    PLACE(NVTX_DOMAIN_REGISTER_STRING_A, register_string),
    PLACE(NVTX_DOMAIN_REGISTER_STRING_W, register_wide),
    PLACE(NVTX_DOMAIN_CREATE_A, create_domain),
    PLACE(NVTX_DOMAIN_CREATE_W, create_wide_domain)};

static int fill(const struct nvtx_callbacks *callbacks, int module,
                const struct place *functions, size_t function_count)
{
    nvtx_function **places = NULL;
    unsigned count = 0;

    if (!callbacks->get_functions(module, &places, &count) || !places)
        return 0;
    for (size_t i = 0; i < function_count; i++)
        if (functions[i].id < count && places[functions[i].id])
            *places[functions[i].id] = functions[i].function;
    return 1;
}

__attribute__((visibility("default"))) int
InitializeInjectionNvtx2(nvtx_get_table *get_table)
{
    const struct nvtx_callbacks *callbacks;

    (void)pthread_once(&range_once, range_read); /* valid arguments */
    if (!range.name || !get_table)
        return 0;
    callbacks = get_table(NVTX_TABLE_CALLBACKS);
    if (!callbacks || callbacks->struct_bytes < sizeof *callbacks)
        return 0;
    return fill(callbacks, NVTX_MODULE_CORE, core, sizeof core / sizeof core[0]) &&
           fill(callbacks, NVTX_MODULE_CORE2, core2, sizeof core2 / sizeof core2[0]);
}
