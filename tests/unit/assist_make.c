/* What an assistant makes of a plugin's description of a message: contributions of a
 * job.graph, messages that it has kept, and what names neither. Sums are compared with
 * straight ones.
 */
#include "config.h"

#include "replay/assist_kept.h"
#include "replay/assist_make.h"
#include "replay/assist_recipe.h"
#include "runtime/graph.h"
#include "runtime/nccl_abi.h"
#include "runtime/wire_form.h"

#include "tests/check.h"
#include "tests/job.h"

#include <errno.h>

#define N     4
#define COUNT 500
#define BYTES ((uint64_t)COUNT * 4)

enum { WHOLE, REAL, KINDS }; /* int32, float32 */

static struct job job;
static struct crystal_graph *graph;
static struct crystal_recipe recipe;
static struct assist_kept_table table;
static struct crystal_assist_message message = {.type = CRYSTAL_ASSIST_SEND};
static struct crystal_error err;

static int32_t value(uint32_t rank, int i)
{
    return (int32_t)(rank + 1) * 1000 - i * 8;
}

static void graph_make(void)
{
    char path[160];

    job_begin(&job, N, NULL, "0-3", "0-3");
    job_text(&job, "comms.tab", "world\t4\t0-3\n");
    for (uint32_t r = 0; r < N; r++) {
        int32_t whole[COUNT];
        float real[COUNT];

        for (int i = 0; i < COUNT; i++)
            real[i] = (float)(whole[i] = value(r, i));
        job_rank(&job, "ranks", r);
        job_comm(&job, "world", r, N);
        job_coll(&job, CRYSTAL_FUNC_ALLREDUCE, 0, COUNT);
        job_payload(&job, whole, sizeof whole);
        job_coll(&job, CRYSTAL_FUNC_ALLREDUCE, 0, COUNT);
        job_payload(&job, real, sizeof real);
        job_rank_end(&job);
    }
    JOB_MUST(crystal_graph_build(job.dir, &job_err));
    job_path(&job, path, sizeof path, "job.graph");
    graph = crystal_graph_open(path, &job_err);
    JOB_MUST(!graph);
    recipe.graph = graph;
}

static const void *contribution(uint32_t rank, int kind)
{
    const void *ret = NULL;
    uint64_t bytes;

    CHECK_EQ(crystal_graph_payload(graph, 0, (uint64_t)kind, rank, &ret, &bytes), 1);
    CHECK_EQ(bytes, BYTES);
    return ret;
}

/* Of ranks 1, 2 and 3; the first of them begins unless something is there. */
static void three_added(int kind, uint32_t redop, uint32_t flags, int is_started)
{
    crystal_recipe_reduce(&recipe, kind == REAL ? ncclFloat32 : ncclInt32, redop, N);
    for (uint32_t r = 1; r < N; r++)
        crystal_recipe_add(
            &recipe, contribution(r, kind),
            flags | (is_started || r > 1 ? (uint32_t)CRYSTAL_ASSIST_ADDED : 0));
}

static int make(unsigned char **ret)
{
    message.bytes = crystal_form_bytes((enum crystal_proto)recipe.source.proto, BYTES);
    CHECK(recipe.is_known);
    CHECK_EQ(crystal_assist_check_source(&message, &recipe.source, NULL), 0);
    err = (struct crystal_error){0};
    return assist_make(graph, &table, &message, &recipe.source, recipe.terms, ret,
                       &err);
}

static void sums_are_straight_ones(void)
{
    unsigned char *made = NULL;

    crystal_recipe_open(&recipe, BYTES);
    three_added(WHOLE, ncclSum, 0, 0);
    CHECK_EQ(make(&made), 0);
    for (int i = 0; made && i < COUNT; i++)
        CHECK_EQ(((int32_t *)made)[i], value(1, i) + value(2, i) + value(3, i));
    free(made);
    crystal_recipe_open(&recipe, BYTES);
    three_added(REAL, ncclMax, 0, 0);
    CHECK_EQ(make(&made), 0);
    for (int i = 0; made && i < COUNT; i++)
        CHECK_EQ((int64_t)((float *)made)[i], value(3, i));
    free(made);
}

/* Of floats each adds its quarter, which is exact; integers are divided in the end. */
static void averages_are_straight_ones(void)
{
    unsigned char *made = NULL;

    crystal_recipe_open(&recipe, BYTES);
    three_added(REAL, ncclAvg, CRYSTAL_ASSIST_SCALED, 0);
    CHECK_EQ(make(&made), 0);
    for (int i = 0; made && i < COUNT; i++)
        CHECK_EQ((int64_t)(4 * ((float *)made)[i]),
                 value(1, i) + value(2, i) + value(3, i));
    free(made);
    crystal_recipe_open(&recipe, BYTES);
    three_added(WHOLE, ncclAvg, 0, 0);
    crystal_recipe_divide(&recipe);
    CHECK_EQ(make(&made), 0);
    for (int i = 0; made && i < COUNT; i++)
        CHECK_EQ(((int32_t *)made)[i], (value(1, i) + value(2, i) + value(3, i)) / N);
    free(made);
}

/* Rank 0's message in one form, passed on in another with the flags of its step. */
static void what_is_passed_on(enum crystal_proto from, enum crystal_proto to)
{
    const struct crystal_assist_key key = {1, 2, 3, 4, 0};
    const struct crystal_assist_source source = {.data_bytes = BYTES,
                                                 .step = 6,
                                                 .key = key,
                                                 .flags = CRYSTAL_ASSIST_KEPT,
                                                 .proto = from,
                                                 .nranks = 1};
    struct assist_kept *kept =
        assist_kept_create(&source, crystal_form_bytes(from, BYTES));
    int32_t sum[COUNT];
    unsigned char *made = NULL;

    CHECK(kept != NULL);
    crystal_form_pack(from, 6, contribution(0, WHOLE), BYTES, kept->data);
    assist_kept_put(&table, kept);
    crystal_recipe_open(&recipe, BYTES);
    crystal_recipe_keep(&recipe, &key);
    three_added(WHOLE, ncclSum, 0, 1);
    recipe.source.proto = to;
    recipe.source.step = 9;
    CHECK_EQ(make(&made), 0);
    if (made) {
        CHECK_EQ(crystal_form_step(to, made), to == CRYSTAL_PROTO_SIMPLE ? 0 : 9);
        crystal_form_unpack(to, made, BYTES, sum);
        for (int i = 0; i < COUNT; i++)
            CHECK_EQ(sum[i], value(0, i) + value(1, i) + value(2, i) + value(3, i));
    }
    free(made);
    CHECK_EQ(make(&made), -EBADMSG); /* it was for one message */
    CHECK_HAS(err.text, "is made of one that this assistant has not kept; let one");
}

static void messages_are_passed_on(void)
{
    what_is_passed_on(CRYSTAL_PROTO_SIMPLE, CRYSTAL_PROTO_SIMPLE);
    what_is_passed_on(CRYSTAL_PROTO_LL, CRYSTAL_PROTO_LL);
    what_is_passed_on(CRYSTAL_PROTO_LL128, CRYSTAL_PROTO_LL);
}

static void a_block_as_it_is(void)
{
    unsigned char *made = NULL;

    crystal_recipe_set(&recipe, contribution(2, REAL), BYTES);
    CHECK_EQ(make(&made), 0);
    CHECK(made && memcmp(made, contribution(2, REAL), BYTES) == 0);
    free(made);
    crystal_recipe_open(&recipe, BYTES); /* zeros are the assistant's own */
    CHECK_EQ(make(&made), 0);
    CHECK(made == NULL);
}

static void what_the_plugin_makes_itself(void)
{
    const int elsewhere = 0;

    crystal_recipe_set(&recipe, &elsewhere, sizeof elsewhere);
    CHECK_EQ(recipe.is_known, 0);
    crystal_recipe_add(&recipe, contribution(0, WHOLE), 0);
    CHECK_EQ(recipe.is_known, 0);
    crystal_recipe_open(&recipe, BYTES);
    for (unsigned i = 0; i < CRYSTAL_ASSIST_TERMS_MAX; i++)
        crystal_recipe_add(&recipe, contribution(0, WHOLE), 0);
    CHECK_EQ(recipe.is_known, 1);
    crystal_recipe_add(&recipe, contribution(0, WHOLE), 0);
    CHECK_EQ(recipe.is_known, 0);
}

static void what_is_not_there(void)
{
    unsigned char *made = NULL;
    uint64_t body_bytes;

    (void)crystal_graph_body(graph, &body_bytes);
    crystal_recipe_set(&recipe, contribution(0, WHOLE), BYTES);
    recipe.terms[0].at = body_bytes - BYTES;
    CHECK_EQ(make(&made), 0);
    free(made);
    recipe.terms[0].at++;
    CHECK_EQ(make(&made), -EBADMSG);
    CHECK_HAS(err.text, "is made of what does not lie in job.graph; let one");
    recipe.terms[0].at = UINT64_MAX;
    CHECK_EQ(make(&made), -EBADMSG);
    recipe.terms[0] = (struct crystal_assist_term){.flags = 4};
    CHECK_EQ(make(&made), -EBADMSG);
    recipe.terms[0] = (struct crystal_assist_term){.zero = 1};
    CHECK_EQ(make(&made), -EBADMSG);
    crystal_recipe_set(&recipe, contribution(0, WHOLE), BYTES);
    recipe.source.graph++;
    CHECK_EQ(make(&made), -EBADMSG);
    CHECK_HAS(err.text, "is made of contributions of another job.graph; let one");
}

int main(void)
{
    check_begin();
    graph_make();
    CHECK_RUN(sums_are_straight_ones);
    CHECK_RUN(averages_are_straight_ones);
    CHECK_RUN(messages_are_passed_on);
    CHECK_RUN(a_block_as_it_is);
    CHECK_RUN(what_the_plugin_makes_itself);
    CHECK_RUN(what_is_not_there);
    assist_kept_fini(&table);
    crystal_graph_close(graph);
    job_end(&job);
    return check_end();
}
