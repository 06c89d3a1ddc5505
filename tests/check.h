/* Checks for the unit tests: TAP on standard output, alive in every build type.
 *
 * A test program is a list of CHECK_RUN(function) between check_begin() and
 * check_end(). A failing check prints its place and both values and marks the running
 * test function as failed; the others go on. Every program ends itself after 60 s.
 */
#ifndef CRYSTAL_TESTS_CHECK_H
#define CRYSTAL_TESTS_CHECK_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int check_count, check_failed_count;
static bool check_ok;

#define CHECK(condition)                                             \
    do {                                                             \
        if (!(condition)) {                                          \
            printf("# %s:%d: %s\n", __FILE__, __LINE__, #condition); \
            check_ok = false;                                        \
        }                                                            \
    } while (0)

#define CHECK_EQ(got, want)                                                            \
    do {                                                                               \
        long long got_ = (long long)(got), want_ = (long long)(want);                  \
        if (got_ != want_) {                                                           \
            printf("# %s:%d: %s is %lld, want %lld\n", __FILE__, __LINE__, #got, got_, \
                   want_);                                                             \
            check_ok = false;                                                          \
        }                                                                              \
    } while (0)

#define CHECK_STR(got, want)                                                     \
    do {                                                                         \
        const char *got_ = (got), *want_ = (want);                               \
        if (!got_ || strcmp(got_, want_) != 0) {                                 \
            printf("# %s:%d: %s is '%s', want '%s'\n", __FILE__, __LINE__, #got, \
                   got_ ? got_ : "(null)", want_);                               \
            check_ok = false;                                                    \
        }                                                                        \
    } while (0)

/* got contains part */
#define CHECK_HAS(got, part)                                                           \
    do {                                                                               \
        const char *got_ = (got), *part_ = (part);                                     \
        if (!got_ || !strstr(got_, part_)) {                                           \
            printf("# %s:%d: %s is '%s', want '%s' in it\n", __FILE__, __LINE__, #got, \
                   got_ ? got_ : "(null)", part_);                                     \
            check_ok = false;                                                          \
        }                                                                              \
    } while (0)

#define CHECK_RUN(function)                                                         \
    do {                                                                            \
        check_ok = true;                                                            \
        function();                                                                 \
        check_count++;                                                              \
        if (!check_ok)                                                              \
            check_failed_count++;                                                   \
        printf("%s %d - %s\n", check_ok ? "ok" : "not ok", check_count, #function); \
        fflush(stdout);                                                             \
    } while (0)

static inline void check_begin(void)
{
    alarm(60);
}

static inline int check_end(void)
{
    printf("1..%d\n", check_count);
    return check_failed_count ? 1 : 0;
}

#endif
