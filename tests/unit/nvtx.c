/* The tool behind NVTX: every way to begin a range, and every form of its message, with
 * the places that a copy of NVTX has.
 */
#include "config.h"

#include "capture/entry.h"
#include "capture/nvtx.h"
#include "runtime/env.h"

#include "tests/check.h"
#include "tests/nvtx_client.h"

#include <wchar.h>

static int begin_count;

void entry_range_begins(void)
{
    begin_count++;
}

/* How often the range begins in what follows. */
#define BEGINS(call) (begin_count = 0, (void)(call), begin_count)

static struct nvtx_event event(int32_t type, const void *message)
{
    return (struct nvtx_event){.version = 3,
                               .struct_bytes = sizeof(struct nvtx_event),
                               .message_type = type,
                               .message = message};
}

#define AS(type, function) ((type)(function))

static int push(const char *message)
{
    return AS(int (*)(const char *), nvtx_core[NVTX_RANGE_PUSH_A])(message);
}

static int push_wide(const wchar_t *message)
{
    return AS(int (*)(const wchar_t *), nvtx_core[NVTX_RANGE_PUSH_W])(message);
}

static int push_event(struct nvtx_event e)
{
    return AS(int (*)(const struct nvtx_event *), nvtx_core[NVTX_RANGE_PUSH_EX])(&e);
}

static int push_in(void *domain, struct nvtx_event e)
{
    return AS(int (*)(void *, const struct nvtx_event *),
              nvtx_core2[NVTX_DOMAIN_RANGE_PUSH_EX])(domain, &e);
}

static uint64_t start(const char *message)
{
    return AS(uint64_t(*)(const char *), nvtx_core[NVTX_RANGE_START_A])(message);
}

static uint64_t start_wide(const wchar_t *message)
{
    return AS(uint64_t(*)(const wchar_t *), nvtx_core[NVTX_RANGE_START_W])(message);
}

static uint64_t start_event(struct nvtx_event e)
{
    return AS(uint64_t(*)(const struct nvtx_event *),
              nvtx_core[NVTX_RANGE_START_EX])(&e);
}

static uint64_t start_in(void *domain, struct nvtx_event e)
{
    return AS(uint64_t(*)(void *, const struct nvtx_event *),
              nvtx_core2[NVTX_DOMAIN_RANGE_START_EX])(domain, &e);
}

static void *registered(const char *text)
{
    return AS(void *(*)(void *, const char *),
              nvtx_core2[NVTX_DOMAIN_REGISTER_STRING_A])(NULL, text);
}

static void *registered_wide(const wchar_t *text)
{
    return AS(void *(*)(void *, const wchar_t *),
              nvtx_core2[NVTX_DOMAIN_REGISTER_STRING_W])(NULL, text);
}

/* A NULL domain is the one that all share; the tool's own is none of these. */
static void *domain(void)
{
    return AS(void *(*)(const char *), nvtx_core2[NVTX_DOMAIN_CREATE_A])("mine");
}

/* The range is "Schritt ü*". */
static void each_call_begins_it(void)
{
    CHECK_EQ(BEGINS(push("Schritt ü 1")), 1);
    CHECK_EQ(BEGINS(push_wide(L"Schritt \u00fc 2")), 1);
    CHECK_EQ(BEGINS(push_event(event(NVTX_MESSAGE_ASCII, "Schritt ü 3"))), 1);
    CHECK_EQ(BEGINS(push_in(domain(), event(NVTX_MESSAGE_ASCII, "Schritt ü"))), 1);
    CHECK_EQ(BEGINS(push_in(NULL, event(NVTX_MESSAGE_ASCII, "Schritt ü"))), 1);
    CHECK_EQ(BEGINS(start("Schritt ü 4")), 1);
    CHECK_EQ(BEGINS(start_wide(L"Schritt \u00fc")), 1);
    CHECK_EQ(BEGINS(start_event(event(NVTX_MESSAGE_UNICODE, L"Schritt \u00fc 5"))), 1);
    CHECK_EQ(BEGINS(start_in(domain(), event(NVTX_MESSAGE_ASCII, "Schritt ü"))), 1);
    CHECK_EQ(
        BEGINS(push_event(event(NVTX_MESSAGE_REGISTERED, registered("Schritt ü 6")))),
        1);
    CHECK_EQ(BEGINS(push_in(domain(), event(NVTX_MESSAGE_REGISTERED,
                                            registered_wide(L"Schritt \u00fc")))),
             1);
    CHECK_EQ(nvtx_has_begun(), 1);
}

static void other_ranges_do_not(void)
{
    struct nvtx_event old = event(NVTX_MESSAGE_ASCII, "Schritt ü");

    CHECK_EQ(BEGINS(push("Schritt u")), 0);
    CHECK_EQ(BEGINS(push("Schritt")), 0);
    CHECK_EQ(BEGINS(push("")), 0);
    CHECK_EQ(BEGINS(push(NULL)), 0);
    CHECK_EQ(BEGINS(push_wide(L"Schritt ")), 0);
    CHECK_EQ(BEGINS(push_wide(L"Schritt u")), 0);
    CHECK_EQ(BEGINS(push_wide(L"Schritt \U0001f600")), 0);
    CHECK_EQ(BEGINS(push_wide(L"")), 0);
    CHECK_EQ(BEGINS(push_wide(NULL)), 0);
    CHECK_EQ(BEGINS(push_event(event(NVTX_MESSAGE_REGISTERED, registered("forward")))),
             0);
    CHECK_EQ(BEGINS(push_event(event(NVTX_MESSAGE_REGISTERED, NULL))), 0);
    CHECK_EQ(BEGINS(push_event(event(0, "Schritt ü"))), 0);
    CHECK_EQ(BEGINS(push_event(event(77, "Schritt ü"))), 0);
    old.struct_bytes = 32; /* no message */
    CHECK_EQ(BEGINS(push_event(old)), 0);
    CHECK_EQ(BEGINS(start("forward")), 0);
}

/* What programs get back: no levels, ids that differ, handles that are not NULL. */
static void answers(void)
{
    uint64_t first = start("Schritt ü"), second = start("forward");

    CHECK_EQ(push("Schritt ü"), NVTX_NO_LEVELS);
    CHECK(first && second && first != second);
    CHECK(domain() != NULL);
    CHECK(AS(void *(*)(const wchar_t *), nvtx_core2[NVTX_DOMAIN_CREATE_W])(L"x") !=
          NULL);
    CHECK(registered("a") && registered("a") == registered("b"));
    CHECK(nvtx_core[11] == NULL); /* pop: nobody asks */
}

static void only_its_tool_sees(void)
{
    CHECK_EQ(nvtx_is_hidden(), 0);
    CHECK_EQ(nvtx_is_asked(), 1);
    CHECK_EQ(setenv(NVTX_ENV_INJECTION, "/opt/nsight/libToolsInjection64.so", 1), 0);
    CHECK_EQ(nvtx_is_hidden(), 1);
    CHECK_EQ(nvtx_is_asked(), 0);
    CHECK_EQ(unsetenv(NVTX_ENV_INJECTION), 0);
    CHECK_EQ(nvtx_is_hidden(), 1);
    CHECK_EQ(unsetenv(CRYSTAL_ENV_ITERATION_RANGE), 0);
    CHECK_EQ(nvtx_is_hidden(), 0);
    CHECK_EQ(nvtx_is_asked(), 0);
}

static const void *no_table(uint32_t table)
{
    (void)table;
    return NULL;
}

/* In a process of its own each: what names a range is read once. */
static int answer_with(const char *name, nvtx_get_table *get_table)
{
    int status = -1;
    pid_t pid = fork();

    if (pid == 0) {
        if (name)
            (void)setenv(CRYSTAL_ENV_ITERATION_RANGE, name, 1);
        _exit(InitializeInjectionNvtx2(get_table));
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void refuses(void)
{
    CHECK_EQ(answer_with(NULL, nvtx_table_of), 0);
    CHECK_EQ(answer_with("", nvtx_table_of), 0);
    CHECK_EQ(answer_with("step", NULL), 0);
    CHECK_EQ(answer_with("step", no_table), 0);
    CHECK_EQ(answer_with("step", nvtx_table_of), 1);
}

/* A copy of NVTX that has fewer functions keeps what is behind them. */
static void fits_older_copies(void)
{
    memset(nvtx_core2, 0, sizeof nvtx_core2);
    nvtx_core2_count = NVTX_DOMAIN_CREATE_A;
    CHECK_EQ(InitializeInjectionNvtx2(nvtx_table_of), 1);
    CHECK(nvtx_core2[NVTX_DOMAIN_REGISTER_STRING_W] != NULL);
    CHECK(nvtx_core2[NVTX_DOMAIN_CREATE_A] == NULL);
}

static void begin_with_range(void)
{
    CHECK_EQ(setenv(CRYSTAL_ENV_ITERATION_RANGE, "Schritt ü*", 1), 0);
    CHECK_EQ(setenv(CRYSTAL_ENV_NCCL_LIBRARY, "/lib/libcrystal-nccl.so", 1), 0);
    CHECK_EQ(setenv(NVTX_ENV_INJECTION, "/lib/libcrystal-nccl.so", 1), 0);
    CHECK_EQ(nvtx_has_begun(), 0);
    CHECK_EQ(InitializeInjectionNvtx2(nvtx_table_of), 1);
}

int main(void)
{
    check_begin();
    CHECK_RUN(refuses);
    CHECK_RUN(begin_with_range);
    CHECK_RUN(each_call_begins_it);
    CHECK_RUN(other_ranges_do_not);
    CHECK_RUN(answers);
    CHECK_RUN(fits_older_copies);
    CHECK_RUN(only_its_tool_sees);
    return check_end();
}
