/* See stage_rules.h. */
#include "config.h"

#include "runtime/stage_rules.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *const crystal_stage_names[CRYSTAL_STAGE_COUNT] = {"capture", "plan",
                                                              "emulate"};
enum { EMULATE = 2 };

int crystal_words_add(struct crystal_words *words, const char *word)
{
    char **v = realloc(words->v, (words->count + 2) * sizeof *v);
    char *copy = strdup(word);

    if (v)
        words->v = v;
    if (!v || !copy) {
        free(copy);
        return -ENOMEM;
    }
    v[words->count++] = copy;
    v[words->count] = NULL;
    return 0;
}

void crystal_words_fini(struct crystal_words *words)
{
    for (uint32_t i = 0; i < words->count; i++)
        free(words->v[i]);
    free(words->v);
    memset(words, 0, sizeof *words);
}

int crystal_words_split(struct crystal_words *words, const char *text,
                        const char *apart)
{
    char *copy = strdup(text), *save = NULL, *word;
    int code = copy ? 0 : -ENOMEM;

    for (word = copy ? strtok_r(copy, apart, &save) : NULL; word && !code;
         word = strtok_r(NULL, apart, &save))
        code = crystal_words_add(words, word);
    free(copy);
    return code;
}

static int set_env(struct crystal_words *env, const char *name, const char *value)
{
    size_t bytes = strlen(name) + strlen(value) + 2;
    char *setting;
    int code;

    if (!*name || strchr(name, '=') || strchr(name, '\n') || strchr(value, '\n'))
        return -EINVAL; /* the plugin gets them as lines NAME=VALUE */
    setting = malloc(bytes);
    if (!setting)
        return -ENOMEM;
    (void)snprintf(setting, bytes, "%s=%s", name, value);
    code = crystal_words_add(env, setting);
    free(setting);
    return code;
}

/* Ranks must not share a file. */
static int set_log(char **log, const char *value)
{
    char *copy;

    if (!strstr(value, "%r"))
        return -EINVAL;
    copy = strdup(value);
    if (!copy)
        return -ENOMEM;
    free(*log);
    *log = copy;
    return 0;
}

/* key behind "stage.NAME.", empty for the section itself */
static int set_one(struct crystal_stage_rules *rules, int stage, const char *key,
                   const char *value)
{
    if (!*key || (strcmp(key, "env") == 0 && !*value))
        return *value ? -ENOENT : 0; /* a section without keys */
    if (strncmp(key, "env.", 4) == 0 && key[4])
        return set_env(&rules->env, key + 4, value);
    if (strcmp(key, "args[]") == 0)
        return crystal_words_add(&rules->args, value);
    if (strcmp(key, "args") == 0)
        return crystal_words_split(&rules->args, value, " \t");
    if (strcmp(key, "wrapper[]") == 0)
        return crystal_words_add(&rules->wrapper, value);
    if (strcmp(key, "wrapper") == 0)
        return crystal_words_split(&rules->wrapper, value, " \t");
    if (strcmp(key, "log") == 0 && stage != EMULATE)
        return set_log(&rules->log, value);
    return -ENOENT;
}

int crystal_stage_rules_set(struct crystal_stage_rules rules[CRYSTAL_STAGE_COUNT],
                            const char *key, const char *value)
{
    if (strcmp(key, "stage") == 0)
        return *value ? -ENOENT : 0;
    if (strncmp(key, "stage.", 6) != 0)
        return -ENOENT;
    key += 6;
    for (int i = 0; i < CRYSTAL_STAGE_COUNT; i++) {
        size_t bytes = strlen(crystal_stage_names[i]);

        if (strncmp(key, crystal_stage_names[i], bytes) == 0 &&
            (key[bytes] == '.' || !key[bytes]))
            return set_one(&rules[i], i, key + bytes + (key[bytes] == '.'), value);
    }
    return -ENOENT;
}

static void print_words(const char *key, const struct crystal_words *words, FILE *out,
                        void (*print_quoted)(FILE *out, const char *text))
{
    if (words->count)
        fprintf(out, "    %s:\n", key);
    for (uint32_t i = 0; i < words->count; i++) {
        fprintf(out, "      - ");
        print_quoted(out, words->v[i]);
        putc('\n', out);
    }
}

static void print_env(const struct crystal_words *env, FILE *out,
                      void (*print_quoted)(FILE *out, const char *text))
{
    if (env->count)
        fprintf(out, "    env:\n");
    for (uint32_t i = 0; i < env->count; i++) {
        char *equals = strchr(env->v[i], '=');

        fprintf(out, "      ");
        *equals = '\0';
        print_quoted(out, env->v[i]);
        *equals = '=';
        fprintf(out, ": ");
        print_quoted(out, equals + 1);
        putc('\n', out);
    }
}

static int is_empty(const struct crystal_stage_rules *rules)
{
    return !rules->env.count && !rules->args.count && !rules->wrapper.count &&
           !rules->log;
}

void crystal_stage_rules_print(
    const struct crystal_stage_rules rules[CRYSTAL_STAGE_COUNT], FILE *out,
    void (*print_quoted)(FILE *out, const char *text))
{
    int any = 0;

    for (int i = 0; i < CRYSTAL_STAGE_COUNT; i++) {
        if (is_empty(&rules[i]))
            continue;
        fprintf(out, "%s  %s:\n", any++ ? "" : "stage:\n", crystal_stage_names[i]);
        print_env(&rules[i].env, out, print_quoted);
        print_words("args", &rules[i].args, out, print_quoted);
        print_words("wrapper", &rules[i].wrapper, out, print_quoted);
        if (rules[i].log) {
            fprintf(out, "    log: ");
            print_quoted(out, rules[i].log);
            putc('\n', out);
        }
    }
}

static int copy_words(const struct crystal_words *from, struct crystal_words *ret)
{
    int code = 0;

    for (uint32_t i = 0; i < from->count && !code; i++)
        code = crystal_words_add(ret, from->v[i]);
    return code;
}

int crystal_stage_rules_copy(const struct crystal_stage_rules from[CRYSTAL_STAGE_COUNT],
                             struct crystal_stage_rules ret[CRYSTAL_STAGE_COUNT])
{
    for (int i = 0; i < CRYSTAL_STAGE_COUNT; i++)
        if (copy_words(&from[i].env, &ret[i].env) ||
            copy_words(&from[i].args, &ret[i].args) ||
            copy_words(&from[i].wrapper, &ret[i].wrapper) ||
            (from[i].log && !(ret[i].log = strdup(from[i].log))))
            return -ENOMEM;
    return 0;
}

void crystal_stage_rules_fini(struct crystal_stage_rules rules[CRYSTAL_STAGE_COUNT])
{
    for (int i = 0; i < CRYSTAL_STAGE_COUNT; i++) {
        crystal_words_fini(&rules[i].env);
        crystal_words_fini(&rules[i].args);
        crystal_words_fini(&rules[i].wrapper);
        free(rules[i].log);
        rules[i].log = NULL;
    }
}
