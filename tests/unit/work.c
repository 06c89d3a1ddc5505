/* capture/work.c with a CUPTI of our own in the place of cupti_api_open: what stands in
 * the trace for given numbers, streams and times. (With the real one:
 * tests/gpu/capture, part work.)
 */
#include "config.h"

#include "capture/cuda_api.h"
#include "capture/cupti_api.h"
#include "capture/recorder.h"
#include "capture/work.h"
#include "runtime/env.h"

#include "tests/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- CUPTI and CUDA --- */

static struct {
    uint32_t number; /* of the latest call */
    cupti_callback *callback;
    cupti_requested *requested;
    cupti_completed *completed;
    uint32_t kinds;
    int subscribe_code;
    unsigned char records[64][216];
    uint32_t count;
    int synchronized;
    size_t dropped;
} fake;

static int subscribe(void **ret, cupti_callback *callback, void *data)
{
    CHECK(data == NULL);
    *ret = &fake;
    fake.callback = callback;
    return fake.subscribe_code;
}

static int unsubscribe(void *subscriber)
{
    CHECK(subscriber == &fake);
    return 0;
}

static int enable_callback(uint32_t enable, void *subscriber, int domain, uint32_t id)
{
    CHECK(enable == 1 && subscriber == &fake && domain == 1 && id == 2);
    return 0;
}

static int register_callbacks(cupti_requested *requested, cupti_completed *completed)
{
    fake.requested = requested;
    fake.completed = completed;
    return 0;
}

static int enable(int kind)
{
    fake.kinds |= 1U << kind;
    return 0;
}

static int next_record(uint8_t *buffer, size_t valid_bytes, uint8_t **record)
{
    uint8_t *next = *record ? *record + 216 : buffer;

    if (next >= buffer + valid_bytes)
        return 12; /* CUPTI_ERROR_MAX_LIMIT_REACHED */
    *record = next;
    return 0;
}

static int count_dropped(void *context, uint32_t stream, size_t *ret)
{
    (void)context;
    (void)stream;
    *ret = fake.dropped;
    fake.dropped = 0;
    return 0;
}

/* Gives what there is as one buffer. */
static int flush(uint32_t flag)
{
    uint8_t *buffer = NULL;
    size_t bytes = 0, most = 1;

    (void)flag;
    if (!fake.count)
        return 0;
    fake.requested(&buffer, &bytes, &most);
    CHECK(buffer != NULL && most == 0 && bytes >= fake.count * 216);
    memcpy(buffer, fake.records, fake.count * 216);
    fake.completed(NULL, 0, buffer, bytes, fake.count * 216);
    fake.count = 0;
    return 0;
}

static int stream_id(void *context, void *stream, uint8_t per_thread, uint32_t *ret)
{
    CHECK(context == &fake && per_thread == 0);
    *ret = 7 + (uint32_t)(uintptr_t)stream;
    return 0;
}

static int driver_version(int *ret)
{
    unsigned char call[128] = {0};

    fake.number++;
    memcpy(call + CUPTI_CALLBACK_ID, &fake.number, sizeof fake.number);
    fake.callback(NULL, 1, 2, call);
    *ret = 13000;
    return 0;
}

static int current_context(void **ret)
{
    *ret = &fake;
    return 0;
}

int cupti_api_open(struct cupti_api *ret, struct crystal_error *err)
{
    (void)err;
    *ret = (struct cupti_api){subscribe,          unsubscribe,    enable_callback,
                              register_callbacks, enable,         next_record,
                              count_dropped,      flush,          stream_id,
                              driver_version,     current_context};
    return 0;
}

static int synchronize(void)
{
    fake.synchronized++;
    return 0;
}

const struct cuda_api *cuda_api_get(void)
{
    static struct cuda_api api;

    api.cudaDeviceSynchronize = synchronize;
    return &api;
}

/* Work is launched now, with the next number. */
static void put(int kind, uint32_t stream, uint64_t begin, uint64_t end,
                const char *name)
{
    unsigned char *r = fake.records[fake.count++];
    uint64_t pointer = (uintptr_t)name;

    fake.number++;
    memset(r, 0, 216);
    memcpy(r, &kind, 4);
    memcpy(r + 16, &begin, 8);
    memcpy(r + 24, &end, 8);
    memcpy(r + (kind == CUPTI_KERNEL ? 48 : 40), &stream, 4);
    memcpy(r + (kind == CUPTI_KERNEL      ? 92
                : kind == CUPTI_PEER_COPY ? 60
                                          : 44),
           &fake.number, 4);
    if (kind == CUPTI_KERNEL)
        memcpy(r + 104, &pointer, 8);
}

/* --- the cases --- */

static char directory[64], path[128];

static void begin(void)
{
    (void)snprintf(directory, sizeof directory, "/tmp/crystal-work.XXXXXX");
    CHECK(mkdtemp(directory) != NULL);
    (void)snprintf(path, sizeof path, "%s/0.trace", directory);
    (void)setenv(CRYSTAL_ENV_TRACE_DIR, directory, 1);
    (void)setenv(CRYSTAL_ENV_LRANK, "0", 1);
    (void)setenv(CRYSTAL_ENV_PASS_LIBRARY, "/nowhere", 1); /* no payload file */
}

static void end(void)
{
    (void)unlink(path);
    (void)rmdir(directory);
}

static void sums_stand_behind_their_records(void)
{
    static const struct {
        uint32_t peer;
        uint64_t ns;
        uint8_t what;
        uint16_t stream;
        uint32_t count;
    } want[] = {{1, 30, CRYSTAL_WORK_KERNEL, 0, 2}, {1, 5, CRYSTAL_WORK_KERNEL, 4, 1},
                {1, 7, CRYSTAL_WORK_COPY, 0, 1},    {2, 100, CRYSTAL_WORK_KERNEL, 0, 1},
                {2, 9, CRYSTAL_WORK_OWN, 0, 1},     {2, 11, CRYSTAL_WORK_MEMSET, 0, 1},
                {2, 13, CRYSTAL_WORK_COPY, 4, 1}};
    struct crystal_error err = {0};
    struct crystal_trace trace = {0};
    uint32_t found = 0, works = 0;
    struct recorder *r;

    begin();
    r = recorder_get();
    put(CUPTI_KERNEL, 7, 0, 1000, "before"); /* before all: of no record */
    work_start(0);
    CHECK_EQ(fake.kinds, 1U << 10 | 1U << 1 | 1U << 2 | 1U << 22);
    put(CUPTI_KERNEL, 7, 0, 1000, "early");
    recorder_group(r, 1); /* record 1 */
    work_stream((void *)3, 4);
    put(CUPTI_KERNEL, 7, 100, 110, "a");
    put(CUPTI_KERNEL, 10, 100, 105, "b");
    put(CUPTI_KERNEL, 7, 110, 130, "a");
    put(CUPTI_MEMCPY, 7, 130, 137, NULL);
    put(CUPTI_KERNEL, 7, 130, 900, "_Z9ncclDevKernel_AllReduce");
    put(CUPTI_KERNEL, 99, 130, 900, "in a stream that nobody names");
    recorder_group(r, 0); /* record 2 */
    work_own_begin();
    put(CUPTI_MEMCPY, 7, 200, 209, NULL);
    put(CUPTI_KERNEL, 7, 200, 300, "of another thread");
    work_own_end();
    put(CUPTI_MEMSET, 7, 300, 311, NULL);
    put(CUPTI_PEER_COPY, 10, 300, 313, NULL);
    recorder_finish(r, 0);
    CHECK_EQ(fake.synchronized, 1);
    CHECK_EQ(crystal_trace_read(path, &trace, &err), 0);
    for (uint64_t i = 0; i < trace.op_count; i++) {
        const struct crystal_op *op = &trace.ops[i];

        works += op->kind == CRYSTAL_OP_WORK;
        for (size_t k = 0; k < sizeof want / sizeof want[0]; k++)
            found += op->kind == CRYSTAL_OP_WORK && op->peer == want[k].peer &&
                     op->value == want[k].ns && op->func == want[k].what &&
                     op->stream == want[k].stream && op->aux == want[k].count;
    }
    CHECK_EQ(works, sizeof want / sizeof want[0]);
    CHECK_EQ(found, sizeof want / sizeof want[0]);
    CHECK_EQ(trace.ops[trace.op_count - 1].kind, CRYSTAL_OP_END);
    crystal_trace_fini(&trace);
    end();
}

/* Nothing is marked, nothing is asked of CUPTI. */
static void nothing_is_recorded(int is_shared)
{
    struct crystal_error err = {0};
    struct crystal_trace trace = {0};

    work_start(is_shared);
    recorder_group(recorder_get(), 1);
    CHECK_EQ(fake.number, 0);
    recorder_finish(recorder_get(), 0);
    CHECK_EQ(fake.synchronized, 0);
    CHECK_EQ(crystal_trace_read(path, &trace, &err), 0);
    CHECK_EQ(trace.op_count, 3);
    crystal_trace_fini(&trace);
    end();
}

static void off_leaves_cupti_alone(void)
{
    begin();
    (void)setenv(CRYSTAL_ENV_CUPTI, "off", 1);
    nothing_is_recorded(0);
    CHECK_EQ(fake.kinds, 0);
}

static void a_profiler_was_first(void)
{
    begin();
    fake.subscribe_code = CUPTI_IN_USE;
    nothing_is_recorded(0);
}

/* In plan the device may be busy with what waits for others. */
static void a_shared_device_is_not_waited_for(void)
{
    begin();
    work_start(1);
    recorder_finish(recorder_get(), 0);
    CHECK_EQ(fake.synchronized, 0);
    end();
}

int main(void)
{
    static const struct check_case cases[] = {
        CHECK_CASE(sums_stand_behind_their_records), CHECK_CASE(off_leaves_cupti_alone),
        CHECK_CASE(a_profiler_was_first),
        CHECK_CASE(a_shared_device_is_not_waited_for)};

    check_begin();
    check_together(cases, sizeof cases / sizeof cases[0]); /* one recorder a process */
    return check_end();
}
