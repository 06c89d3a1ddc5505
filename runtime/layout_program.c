/* See layout_program.h. */
#include "config.h"

#include "runtime/layout_program.h"

#include "runtime/infile.h"
#include "runtime/launcher.h"
#include "runtime/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

#define FILE_BYTES_MAX (16L << 20) /* of an argument whose contents count */

int crystal_layout_program_check(char *const *program, struct crystal_error *err)
{
    const char *launcher = program ? crystal_launcher_find(program) : NULL;

    for (size_t i = 0; program && program[i]; i++)
        if (!crystal_utf8_is_text(program[i]))
            return crystal_error_set(err, EILSEQ,
                                     "argument %zu of the program is not UTF-8, the "
                                     "only text that layout.yaml holds; pass it in a "
                                     "file or in the environment",
                                     i);
    return !launcher ? 0
                     : crystal_error_set(err, ENOTSUP,
                                         "the program is started by '%s', which would "
                                         "start ranks of its own; let srun or torchrun "
                                         "start it",
                                         launcher);
}

static void hash_file(XXH3_state_t *state, const char *path)
{
    struct stat st;
    char bytes[65536];
    size_t got;
    FILE *file;

    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > FILE_BYTES_MAX)
        return;
    file = crystal_infile_stream(path, NULL);
    while (file && (got = fread(bytes, 1, sizeof bytes, file)) > 0)
        (void)XXH3_64bits_update(state, bytes, got); /* fails on NULL only */
    if (file)
        (void)fclose(file); /* read-only */
}

/* The wire decides nothing of what a capture holds. */
uint64_t crystal_layout_fingerprint(const struct crystal_layout *l,
                                    const char *parallel)
{
    XXH3_state_t *state = XXH3_createState();
    char options[256];
    uint64_t hash;
    int used;

    if (!state)
        return 1;
    (void)XXH3_64bits_reset(state);
    used =
        snprintf(options, sizeof options, "%s|%u|%u|%.128s|%d|%u|%d", PACKAGE_VERSION,
                 l->lrank_count, l->ranks_per_node, parallel ? parallel : "",
                 (int)l->live_mode, l->iterations, l->payload_all);
    (void)XXH3_64bits_update(state, options, (size_t)used + 1);
    if (l->slurm_view != CRYSTAL_SLURM_LOGICAL) {
        const char *name = crystal_slurm_view_names[l->slurm_view];

        (void)XXH3_64bits_update(state, name, strlen(name) + 1);
    }
    if (l->live_mode == CRYSTAL_LIVE_LIST)
        (void)XXH3_64bits_update(state, l->live, l->live_count * sizeof *l->live);
    for (char **arg = l->program; arg && *arg; arg++) {
        (void)XXH3_64bits_update(state, *arg, strlen(*arg) + 1);
        hash_file(state, *arg);
    }
    hash = XXH3_64bits_digest(state);
    (void)XXH3_freeState(state);
    return hash ? hash : 1;
}

int crystal_layout_program_copy(struct crystal_layout *l, char **argv)
{
    size_t count = 0;

    while (argv && argv[count])
        count++;
    l->program = calloc(count + 1, sizeof *l->program);
    if (!l->program)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++)
        if (!(l->program[i] = strdup(argv[i])))
            return -ENOMEM;
    return 0;
}
