/* Parsing, printing and applying injection rules. See inject_rules.h. */
#include "config.h"

#include "runtime/inject_rules.h"

#include "runtime/nccl_names.h"
#include "runtime/op.h"

#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void rule_fini(struct crystal_inject_rule *rule)
{
    free(rule->text);
    free(rule->comm);
    free(rule->site);
    free(rule->path);
}

void crystal_inject_rules_fini(struct crystal_inject_rules *rules)
{
    for (uint32_t i = 0; i < rules->count; i++)
        rule_fini(&rules->v[i]);
    free(rules->v);
    *rules = (struct crystal_inject_rules){0};
}

/* --- words --- */

static int copy_text(char **ret, const char *value)
{
    *ret = strdup(value);
    return *ret ? 0 : -ENOMEM;
}

static int set_func(struct crystal_inject_rule *rule, const char *value)
{
    for (unsigned f = 1; f < CRYSTAL_FUNC_COUNT; f++)
        if (f != CRYSTAL_FUNC_SEND && strcmp(value, crystal_func_name(f)) == 0) {
            rule->func = f;
            return 0;
        }
    return -EINVAL;
}

static int set_dtype(struct crystal_inject_rule *rule, const char *value)
{
    for (unsigned t = 0; t < ncclNumTypes; t++)
        if (strcmp(value, crystal_dtype_name(t)) == 0) {
            rule->dtype = t;
            return 0;
        }
    return -EINVAL;
}

/* "A" or "A-B", each at most `most`. */
static int parse_range(const char *value, uint64_t most, uint64_t *ret_least,
                       uint64_t *ret_most)
{
    char *end;

    if (!isdigit((unsigned char)*value))
        return -EINVAL;
    errno = 0;
    *ret_least = *ret_most = strtoull(value, &end, 10);
    if (*end == '-' && isdigit((unsigned char)end[1]))
        *ret_most = strtoull(end + 1, &end, 10);
    return *end || errno || *ret_most > most || *ret_least > *ret_most ? -EINVAL : 0;
}

static int set_from(struct crystal_inject_rule *rule, const char *value)
{
    uint64_t least, most;

    if (parse_range(value, UINT32_MAX, &least, &most))
        return -EINVAL;
    rule->from_least = (uint32_t)least;
    rule->from_most = (uint32_t)most;
    return 0;
}

static int set_value(struct crystal_inject_rule *rule, const char *value)
{
    char *end;

    if (strcmp(value, "own") == 0) {
        rule->value = CRYSTAL_INJECT_OWN;
        return 0;
    }
    if (strcmp(value, "replicate") == 0) {
        rule->value = CRYSTAL_INJECT_REPLICATE;
        return 0;
    }
    if (strncmp(value, "file:/", 6) == 0) {
        rule->value = CRYSTAL_INJECT_FILE;
        return copy_text(&rule->path, value + 5);
    }
    if (strncmp(value, "constant:", 9) != 0 || !value[9])
        return -EINVAL;
    rule->value = CRYSTAL_INJECT_CONSTANT;
    rule->constant = strtod(value + 9, &end);
    return *end || !isfinite(rule->constant) ? -EINVAL : 0;
}

static const char *const words[] = {"comm", "op",   "dtype", "bytes",
                                    "from", "site", "value"};
enum { COMM, OP, DTYPE, BYTES, FROM, SITE, VALUE, WORD_COUNT };

static int set_word(struct crystal_inject_rule *rule, int which, const char *value)
{
    switch (which) {
    case COMM:
        return copy_text(&rule->comm, value);
    case OP:
        return set_func(rule, value);
    case DTYPE:
        return set_dtype(rule, value);
    case BYTES:
        return parse_range(value, UINT64_MAX, &rule->bytes_least, &rule->bytes_most);
    case FROM:
        return set_from(rule, value);
    case SITE:
        return copy_text(&rule->site, value);
    default:
        return set_value(rule, value);
    }
}

/* word is NAME=VALUE; seen: bits of the names before it. */
static int take_word(struct crystal_inject_rule *rule, char *word, unsigned *seen,
                     struct crystal_error *err)
{
    char *equals = strchr(word, '=');
    int which = 0, code;

    if (equals)
        *equals = 0;
    while (which < WORD_COUNT && strcmp(word, words[which]) != 0)
        which++;
    if (!equals || which == WORD_COUNT)
        return crystal_error_set(err, EINVAL,
                                 "'%s' is none of comm=, op=, dtype=, bytes=, from=, "
                                 "site= and value=",
                                 word);
    if (*seen & 1U << which)
        return crystal_error_set(err, EINVAL, "%s= stands there twice", word);
    *seen |= 1U << which;
    code = set_word(rule, which, equals + 1);
    if (code == -EINVAL && which == VALUE)
        return crystal_error_set(err, EINVAL,
                                 "'%s' is none of own, replicate, constant:NUMBER and "
                                 "file:/PATH",
                                 equals + 1);
    if (code == -EINVAL)
        return crystal_error_set(err, EINVAL, "%s: '%s' is no %s", word, equals + 1,
                                 which == OP      ? "collective, and not recv"
                                 : which == DTYPE ? "type of NCCL's"
                                                  : "number A or range A-B");
    return code ? crystal_error_set(err, -code, "out of memory") : 0;
}

static int parse(struct crystal_inject_rule *rule, char *text,
                 struct crystal_error *err)
{
    unsigned seen = 0;
    char *save = NULL;
    int code = 0;

    for (char *word = strtok_r(text, " \t", &save); word && !code;
         word = strtok_r(NULL, " \t", &save))
        code = take_word(rule, word, &seen, err);
    if (!code && !(seen & 1U << VALUE))
        code = crystal_error_set(err, EINVAL,
                                 "value= is missing, which says what is injected");
    return code;
}

int crystal_inject_rules_add(struct crystal_inject_rules *rules, const char *text,
                             struct crystal_error *err)
{
    struct crystal_inject_rule *v, rule = {.dtype = CRYSTAL_INJECT_ANY_TYPE,
                                           .bytes_most = UINT64_MAX,
                                           .from_most = UINT32_MAX};
    char *copy = strdup(text);
    int code = copy ? copy_text(&rule.text, text) : -ENOMEM;

    if (!code)
        code = parse(&rule, copy, err);
    free(copy);
    v = code ? NULL : realloc(rules->v, (rules->count + 1) * sizeof *v);
    if (!v) {
        rule_fini(&rule);
        return code == -EINVAL ? code : crystal_error_set(err, ENOMEM, "out of memory");
    }
    rules->v = v;
    rules->v[rules->count++] = rule;
    rules->site_count += rule.site != NULL;
    return 0;
}

int crystal_inject_rules_copy(const struct crystal_inject_rules *from,
                              struct crystal_inject_rules *ret)
{
    struct crystal_error err = {0};

    for (uint32_t i = 0; i < from->count; i++)
        if (crystal_inject_rules_add(ret, from->v[i].text, &err))
            return -ENOMEM; /* it was parsed before */
    return 0;
}

void crystal_inject_rules_print(const struct crystal_inject_rules *rules, FILE *out,
                                void (*print_quoted)(FILE *out, const char *text))
{
    if (rules->count)
        fprintf(out, "inject:\n");
    for (uint32_t i = 0; i < rules->count; i++) {
        fprintf(out, "  - ");
        print_quoted(out, rules->v[i].text);
        putc('\n', out);
    }
}

/* --- applying --- */

static int fits(const struct crystal_inject_rule *rule,
                const struct crystal_inject_ask *ask)
{
    return (!rule->func || rule->func == ask->func) &&
           (rule->dtype == CRYSTAL_INJECT_ANY_TYPE || rule->dtype == ask->dtype) &&
           ask->bytes >= rule->bytes_least && ask->bytes <= rule->bytes_most &&
           ask->from >= rule->from_least && ask->from <= rule->from_most &&
           (!rule->comm || fnmatch(rule->comm, ask->comm, 0) == 0) &&
           (!rule->site || fnmatch(rule->site, ask->site, 0) == 0);
}

const struct crystal_inject_rule *
crystal_inject_rules_find(const struct crystal_inject_rules *rules,
                          const struct crystal_inject_ask *ask)
{
    for (uint32_t i = 0; i < rules->count; i++)
        if (fits(&rules->v[i], ask))
            return &rules->v[i];
    return NULL;
}
