/* Errors: the code comes back negative, prefixes stand in front, long text is cut. */
#include "config.h"

#include "runtime/error.h"

#include "tests/check.h"

#include <errno.h>

static void sets_code_and_text(void)
{
    struct crystal_error err = {0};

    CHECK_EQ(crystal_error_set(&err, EINVAL, "job.yaml:%d: no", 12), -EINVAL);
    CHECK_EQ(err.code, EINVAL);
    CHECK_STR(crystal_error_text(&err), "job.yaml:12: no");
    CHECK_EQ(crystal_error_set(NULL, ENOMEM, "x"), -ENOMEM);
}

static void prefixes_nest(void)
{
    struct crystal_error err = {0};

    crystal_error_prefix(&err, "nothing");
    CHECK_STR(crystal_error_text(&err), "unknown error");
    (void)crystal_error_set(&err, EIO, "disk full");
    crystal_error_prefix(&err, "graph");
    crystal_error_prefix(&err, "job %s", "a");
    CHECK_STR(crystal_error_text(&err), "job a: graph: disk full");
}

static void long_text_is_cut(void)
{
    struct crystal_error err = {0};
    char text[2 * CRYSTAL_ERROR_TEXT_BYTES];

    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    (void)crystal_error_set(&err, EIO, "%s", text);
    CHECK_EQ(strlen(err.text), CRYSTAL_ERROR_TEXT_BYTES - 1);
    crystal_error_prefix(&err, "front");
    CHECK_EQ(strlen(err.text), CRYSTAL_ERROR_TEXT_BYTES - 1);
    CHECK(strncmp(err.text, "front: xxx", 10) == 0);
}

int main(void)
{
    check_begin();
    CHECK_RUN(sets_code_and_text);
    CHECK_RUN(prefixes_nest);
    CHECK_RUN(long_text_is_cut);
    return check_end();
}
