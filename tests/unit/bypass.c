/* An NCCL around us is told of as soon as it looks for its net plugin. (With the real
 * one: tests/gpu/capture, part edges.)
 */
#include "config.h"

#include "capture/recorder.h"
#include "runtime/env.h"
#include "runtime/nccl_net_abi.h"

#include "tests/check.h"

struct old_net {
    const char *name;
    ncclResult_t (*init)(ncclDebugLogger_t log, ncclProfilerCallback_t profile);
};

extern const ncclNet_v11_t ncclNetPlugin_v11;
extern const struct old_net ncclNetPlugin_v10, ncclNetPlugin_v8;

static void every_version_is_refused(void)
{
    static const char sentence[] = "recorder: the program makes a communicator with an "
                                   "NCCL that is linked into it or opened by its path";
    void *context = NULL;

    CHECK_STR(ncclNetPlugin_v11.name, CRYSTAL_BYPASS_NET);
    CHECK_STR(ncclNetPlugin_v10.name, CRYSTAL_BYPASS_NET);
    CHECK_STR(ncclNetPlugin_v8.name, CRYSTAL_BYPASS_NET);
    CHECK_STR(recorder_last_error(), "");
    CHECK_EQ(ncclNetPlugin_v11.init(&context, 1, NULL, NULL, NULL), ncclInvalidUsage);
    CHECK_HAS(recorder_last_error(), sentence);
    CHECK_EQ(ncclNetPlugin_v10.init(NULL, NULL), ncclInvalidUsage);
    CHECK_EQ(ncclNetPlugin_v8.init(NULL, NULL), ncclInvalidUsage);
    CHECK(context == NULL);
}

int main(void)
{
    check_begin();
    CHECK_RUN(every_version_is_refused);
    return check_end();
}
