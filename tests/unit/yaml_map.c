/* YAML: nesting becomes dots, lists repeat, and every fault names line and column. */
#include "config.h"

#include "runtime/yaml_map.h"

#include "tests/check.h"

#include <errno.h>

static struct crystal_yaml_map map;
static struct crystal_error err;

static int parse(const char *text)
{
    memset(&err, 0, sizeof err);
    return crystal_yaml_parse("job.yaml", text, strlen(text), &map, &err);
}

static void nesting_and_lists(void)
{
    const char *text = "wire:\n  bandwidth: 10GB/s\n  latency: \"5us\"\n"
                       "ranks: [0-7, 16]\nstage:\n  plan:\n    env: {A: 1, B: two}\n"
                       "after: x\n";

    CHECK_EQ(parse(text), 0);
    CHECK_EQ(map.item_count, 7);
    CHECK_STR(crystal_yaml_get(&map, "wire.bandwidth")->value, "10GB/s");
    CHECK_STR(crystal_yaml_get(&map, "wire.latency")->value, "5us");
    CHECK_STR(map.items[2].key, "ranks[]");
    CHECK_STR(map.items[3].value, "16");
    CHECK_STR(crystal_yaml_get(&map, "stage.plan.env.B")->value, "two");
    CHECK_STR(crystal_yaml_get(&map, "after")->value, "x");
    CHECK_EQ(crystal_yaml_get(&map, "after")->line, 8);
    CHECK(crystal_yaml_get(&map, "wire") == NULL);
    crystal_yaml_fini(&map);
}

static void empty_file(void)
{
    CHECK_EQ(parse(""), 0);
    CHECK_EQ(map.item_count, 0);
    crystal_yaml_fini(&map);
    CHECK_EQ(parse("# nothing\n"), 0);
    crystal_yaml_fini(&map);
}

/* Nothing of what stands in a file is lost without a word. */
static void empty_mappings_and_lists(void)
{
    static const char *const want[] = {"a", "b", "c.d", "c.e", "f"};

    CHECK_EQ(parse("a: {}\nb: []\nc: {d: {}, e: []}\nf:\n"), 0);
    CHECK_EQ(map.item_count, 5);
    for (unsigned i = 0; i < 5 && i < map.item_count; i++) {
        CHECK_STR(map.items[i].key, want[i]);
        CHECK_STR(map.items[i].value, "");
    }
    CHECK_EQ(map.items[3].line, 3);
    crystal_yaml_fini(&map);
    CHECK_EQ(parse("{}\n"), 0);
    CHECK_EQ(map.item_count, 0);
    crystal_yaml_fini(&map);
    CHECK(parse("a: {}\na: []\n") < 0);
    CHECK_HAS(crystal_error_text(&err), "key 'a' is given twice");
}

static void faults_name_their_place(void)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"a: 1\na: 2\n", "job.yaml:2:4: key 'a' is given twice"},
        {"- a\n", "job.yaml:1:1: a mapping is expected, not a list"},
        {"a: [1, {b: 2}]\n", "job.yaml:1:8: a list may only hold plain values"},
        {"a: 1\n  b: 2\n", "job.yaml:2:4: mapping values are not allowed"},
        {"a: \"x\n", "job.yaml:"},
        {"a: &x 1\nb: *x\n", "job.yaml:2:4: aliases are not supported"},
        {"text\n", "job.yaml:1:1: a mapping is expected"},
        {"a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}\n", "nested too deeply"},
        {"{[1]: 2}\n", "a key must be plain text"},
        {"a: 1\nb: \xc3\xa9\xff\n", "job.yaml:2:5: invalid leading UTF-8 octet"},
        {"a: 1\nb: x\x01\n", "job.yaml:2:5: control characters are not allowed"},
    };

    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK(parse(cases[i].text) < 0);
        CHECK_HAS(crystal_error_text(&err), cases[i].want);
    }
}

/* Each key is looked for among those before it, so there is a limit; elements of lists
 * do not count. */
static void as_many_keys_as_may_be(void)
{
    static char text[64 * (CRYSTAL_YAML_KEYS_MAX + 1)];
    int used = 0;

    for (unsigned i = 0; i < CRYSTAL_YAML_KEYS_MAX; i++)
        used += sprintf(text + used, "key%u: [a, b]\nflag%u: c\n", i, i);
    CHECK_EQ(parse(text), 0);
    CHECK_EQ(map.item_count, 3 * CRYSTAL_YAML_KEYS_MAX);
    crystal_yaml_fini(&map);
    (void)sprintf(text + used, "last: [d, e]\nmore: f\n");
    CHECK_EQ(parse(text), -EINVAL);
    CHECK_HAS(crystal_error_text(&err),
              "job.yaml:8194:7: more than 4096 keys, no file has so many");
}

static void missing_file(void)
{
    memset(&err, 0, sizeof err);
    CHECK(crystal_yaml_read("/nonexistent/x.yaml", &map, &err) < 0);
    CHECK_STR(crystal_error_text(&err),
              "/nonexistent/x.yaml: No such file or directory");
}

int main(void)
{
    check_begin();
    CHECK_RUN(nesting_and_lists);
    CHECK_RUN(empty_file);
    CHECK_RUN(empty_mappings_and_lists);
    CHECK_RUN(faults_name_their_place);
    CHECK_RUN(as_many_keys_as_may_be);
    CHECK_RUN(missing_file);
    return check_end();
}
