/* The common part of the stages; see stage.h. */
#include "config.h"

#include "commands/stage.h"

#include "commands/commands.h"

#include "runtime/coord_file.h"
#include "runtime/file_limit.h"
#include "runtime/library.h"
#include "runtime/log.h"
#include "runtime/space.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECOND_MS      5000 /* the coordinator's answer to a failure */
#define GRACE_MS       3000 /* between SIGTERM and SIGKILL */
#define SENTENCE_BYTES (2 * CRYSTAL_ERROR_TEXT_BYTES)

static const char *const names[] = {
    [STAGE_CAPTURE] = "capture", [STAGE_PLAN] = "plan", [STAGE_EMULATE] = "emulate"};

const char *stage_name(enum stage_kind kind)
{
    return names[kind];
}

int stage_kind_parse(const char *text, enum stage_kind *ret)
{
    for (int kind = STAGE_CAPTURE; kind <= STAGE_EMULATE; kind++)
        if (strcmp(text, names[kind]) == 0) {
            *ret = (enum stage_kind)kind;
            return 0;
        }
    return -EINVAL;
}

int stage_path(const struct stage *stage, char out[PATH_MAX], struct crystal_error *err,
               const char *format, ...)
{
    char name[256];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(name, sizeof name, format, args); /* our own short names */
    va_end(args);
    return crystal_jobdir_file(stage->dir, out, PATH_MAX, err, "%s", name);
}

const struct crystal_stage_rules *stage_rules(const struct stage *stage)
{
    return &stage->layout.stage[stage->kind - 1];
}

/* --- opening --- */

int stage_open(struct stage *stage, enum stage_kind kind, const char *job_dir,
               char **program, struct crystal_error *err)
{
    char path[PATH_MAX];
    int code;

    memset(stage, 0, sizeof *stage);
    stage->kind = kind;
    stage->name = names[kind];
    if (crystal_file_limit_raise(err))
        return -err->code;
    stage->dir = crystal_jobdir_open(job_dir, 0, err);
    if (!stage->dir)
        return -err->code;
    (void)snprintf(stage->job_dir, sizeof stage->job_dir, "%s",
                   crystal_jobdir_path(stage->dir));
    code = stage_path(stage, path, err, "layout.yaml");
    if (!code)
        code = crystal_layout_read(path, &stage->layout, err);
    if (!code)
        code = stage_path(stage, stage->coord_file, err, "coord");
    if (!code)
        code = stage_path(stage, stage->token_file, err, "token");
    if (code) {
        crystal_layout_fini(&stage->layout);
        crystal_jobdir_close(stage->dir);
        stage->dir = NULL;
        return code;
    }
    stage->program = program && program[0] ? program : stage->layout.program;
    if (stage->program && !stage->program[0])
        stage->program = NULL;
    return 0;
}

int stage_check_libraries(struct crystal_error *err)
{
    static const char *const libraries[] = {
        "libcrystal-nccl.so", "libcrystal-hostccl.so", "libnccl-net-crystal.so"};
    char path[PATH_MAX];
    int code = 0;

    for (size_t i = 0; !code && i < sizeof libraries / sizeof libraries[0]; i++)
        code = crystal_library_path(libraries[i], path, sizeof path, err);
    return code;
}

int stage_find_store(struct stage *stage, struct crystal_error *err)
{
    const char *file = stage->coord_file;
    int code = crystal_coord_file_value(file, "host", stage->master_addr,
                                        sizeof stage->master_addr, err);

    return code ? code
                : crystal_coord_file_value(file, "store_port", stage->master_port,
                                           sizeof stage->master_port, err);
}

/* Which of the nodes are whose: assistants are the last ones. */
static int deal_nodes(struct stage *stage, uint32_t all_count,
                      struct crystal_error *err)
{
    const uint32_t assistants =
        stage->kind == STAGE_EMULATE ? stage->layout.assistant_count : 0;

    if (assistants >= all_count)
        return crystal_error_set(err, EINVAL,
                                 "the wire is real, with %u assistant node%s beside "
                                 "those of the sandbox, and the stage has %u node%s; "
                                 "give it more or use --wire=modelled",
                                 assistants, assistants == 1 ? "" : "s", all_count,
                                 all_count == 1 ? "" : "s");
    stage->assistant_count = assistants;
    stage->node_count = all_count - assistants;
    if (stage->node < stage->node_count)
        stage->own = crystal_share_of(stage->layout.sandbox_count, stage->node,
                                      stage->node_count);
    return 0;
}

int stage_begin(struct stage *stage, uint32_t node, uint32_t all_count,
                struct crystal_error *err)
{
    int code;

    stage->node = node;
    stage->node_count = all_count;
    /* first: it blocks the signals that all later threads must not take */
    stage->launch = crystal_launch_create(err);
    if (!stage->launch)
        return -err->code;
    stage->client = crystal_client_open(stage->coord_file, stage->token_file,
                                        CRYSTAL_ROLE_AGENT, node, NULL, err);
    if (!stage->client)
        return -err->code;
    code = deal_nodes(stage, all_count, err);
    if (!code)
        code = crystal_client_begin(stage->client, stage->kind, err);
    return code ? code : stage_find_store(stage, err);
}

void stage_close(struct stage *stage)
{
    crystal_launch_destroy(stage->launch);
    crystal_client_close(stage->client);
    stage_env_fini(&stage->env);
    crystal_words_fini(&stage->line);
    free(stage->ends);
    if (stage->dir) {
        crystal_layout_fini(&stage->layout);
        crystal_jobdir_close(stage->dir);
    }
    memset(stage, 0, sizeof *stage);
}

/* --- files --- */

int stage_sweep(const struct stage *stage, const char *sub, const char *suffix,
                struct crystal_error *err)
{
    char path[PATH_MAX];
    size_t suffix_bytes = strlen(suffix);
    struct dirent *entry;
    DIR *dir;
    int code = stage_path(stage, path, err, "%s", sub);

    if (code)
        return code;
    dir = opendir(path);
    if (!dir)
        return crystal_error_set(err, errno, "%s: %s", path, strerror(errno));
    while (!code && (entry = readdir(dir)) != NULL) {
        size_t bytes = strlen(entry->d_name);

        if (bytes > suffix_bytes &&
            strcmp(entry->d_name + bytes - suffix_bytes, suffix) == 0 &&
            unlinkat(dirfd(dir), entry->d_name, 0) < 0 && errno != ENOENT)
            code = crystal_error_set(err, errno, "%s/%s: %s", path, entry->d_name,
                                     strerror(errno));
    }
    (void)closedir(dir); /* nothing was written to it */
    return code;
}

/* --- ranks --- */

int stage_log_path(const struct stage *stage, uint32_t lrank, char out[PATH_MAX],
                   struct crystal_error *err)
{
    const char *pattern = stage_rules(stage)->log, *place;
    char name[PATH_MAX];

    if (!pattern)
        return stage_path(stage, out, err, "log/%s.%u.log", stage->name, lrank);
    place = strstr(pattern, "%r"); /* the rules have none without */
    if (snprintf(name, sizeof name, "%.*s%u%s", (int)(place - pattern), pattern, lrank,
                 place + 2) >= (int)sizeof name)
        return crystal_error_set(err, ENAMETOOLONG, "stage.%s.log: path too long",
                                 stage->name);
    if (name[0] != '/')
        return crystal_jobdir_file(stage->dir, out, PATH_MAX, err, "%s", name);
    memcpy(out, name, strlen(name) + 1);
    return 0;
}

/* wrapper, program, arguments of the stage */
static int make_line(struct stage *stage, struct crystal_error *err)
{
    const struct crystal_stage_rules *rules = stage_rules(stage);
    struct crystal_words *line = &stage->line;
    int code = 0;

    crystal_words_fini(line);
    for (uint32_t i = 0; i < rules->wrapper.count && !code; i++)
        code = crystal_words_add(line, rules->wrapper.v[i]);
    for (char **word = stage->program; *word && !code; word++)
        code = crystal_words_add(line, *word);
    for (uint32_t i = 0; i < rules->args.count && !code; i++)
        code = crystal_words_add(line, rules->args.v[i]);
    return code ? crystal_error_set(err, -code, "out of memory") : 0;
}

static int start_rank(struct stage *stage, const struct stage_rank *which, int with_log,
                      int keeps_stdin, struct crystal_error *err)
{
    uint32_t lrank = which->lrank;
    struct crystal_launch_rank rank = {
        .lrank = lrank, .argv = stage->line.v, .keeps_stdin = keeps_stdin};
    struct stage_env env = {0};
    char log[PATH_MAX];
    int code = 0;

    for (size_t i = 0; i < stage->env.count; i++)
        stage_env_add(&env, "%s", stage->env.entries[i]);
    stage_env_rank(stage, which, &env);
    stage_env_rules(stage, &env);
    if (env.failed || stage->env.failed)
        code = crystal_error_set(err, ENOMEM, "out of memory");
    if (!code && with_log) {
        code = stage_log_path(stage, lrank, log, err);
        rank.log_path = log;
    }
    rank.env = env.entries;
    if (!code)
        code = crystal_launch_start(stage->launch, &rank, err);
    stage_env_fini(&env);
    return code;
}

int stage_start_ranks(struct stage *stage, const uint32_t *lranks, uint32_t count,
                      int with_logs, struct crystal_error *err)
{
    int code;

    if (!stage->program)
        return crystal_error_set(
            err, EINVAL,
            "no program is known; give it behind --, as in scrystal "
            "%s --job DIR -- python train.py",
            stage->name);
    code = make_line(stage, err);
    for (uint32_t i = 0; !code && i < count; i++) {
        struct stage_rank rank = {lranks[i], i, count};

        code = start_rank(stage, &rank, with_logs,
                          !with_logs && i == 0 && !isatty(STDIN_FILENO), err);
    }
    if (code)
        crystal_launch_stop(stage->launch, GRACE_MS);
    return code;
}

/* The sentence; what a full disk leads to is told as that, and what too many open files
 * need. */
static void full_sentence(const struct stage *stage, const struct crystal_error *err,
                          char out[SENTENCE_BYTES])
{
    struct crystal_error space = {0};

    if (!stage->stop_signal && crystal_space_check(stage->job_dir, &space))
        (void)snprintf(out, SENTENCE_BYTES, "%s (%s)", crystal_error_text(&space),
                       crystal_error_text(err));
    else
        (void)snprintf(out, SENTENCE_BYTES, "%s%s", crystal_error_text(err),
                       crystal_file_limit_hint(err->code));
}

/* Once, and not what it has told itself. */
static void tell_coordinator(struct stage *stage, const char *sentence)
{
    if (stage->client && !stage->was_told && !stage->has_told)
        (void)crystal_client_fail(stage->client, sentence);
    stage->has_told = 1;
}

void stage_tell(struct stage *stage, const struct crystal_error *err)
{
    char text[SENTENCE_BYTES];

    full_sentence(stage, err, text);
    tell_coordinator(stage, text);
}

/* The coordinator has ended the stage with another agent's sentence, which came before
 * ours. */
static int is_second(const struct stage *stage, const char *text)
{
    struct crystal_error first = {0};

    return stage->client &&
           crystal_client_wait_stop(stage->client, SECOND_MS, &first) == -ECANCELED &&
           strncmp(first.text, "the coordinator is gone", 23) != 0 &&
           strncmp(first.text, text, strlen(first.text)) != 0;
}

/* Of several agents one says the sentence: who found it, and the first node's what the
 * coordinator did. All of them see when that is gone. */
static int is_said_elsewhere(const struct stage *stage, const char *text)
{
    if (stage->node_count + stage->assistant_count <= 1)
        return 0;
    if (!stage->was_told)
        return is_second(stage, text);
    if (stage->coord_found)
        return stage->node > 0;
    return strncmp(text, "the coordinator is gone", 23) != 0 || stage->node > 0;
}

int stage_failed(struct stage *stage, const struct crystal_error *err)
{
    char text[SENTENCE_BYTES];

    full_sentence(stage, err, text);
    tell_coordinator(stage, text);
    if (is_said_elsewhere(stage, text))
        stage->code = 0; /* the job's is of what is said */
    else
        crystal_log(CRYSTAL_LOG_ERROR, stage->name, "%s", text);
    return stage->stop_signal ? 128 + stage->stop_signal : CRYSTAL_EXIT_STAGE;
}
