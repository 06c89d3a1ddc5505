/* The stage of a coordinator: what it is made of, which ranks run, and what the
 * exchange of capture tells. See coord.h. */
#include "config.h"

#include "runtime/coord.h"

#include "runtime/coord_state.h"
#include "runtime/inject.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void on_comm_ready(void *context, uint32_t lrank, uint32_t request,
                          uint32_t comm, const char *name)
{
    struct crystal_coord *coord = context;
    struct client *c = crystal_coord_rank(coord, lrank);
    struct crystal_msg_comm_ready ready = {comm, (uint32_t)strlen(name)};
    uint8_t body[sizeof ready + 512];
    size_t length = ready.name_bytes < 512 ? ready.name_bytes : 512;

    ready.name_bytes = (uint32_t)length;
    memcpy(body, &ready, sizeof ready);
    memcpy(body + sizeof ready, name, length);
    if (c)
        crystal_link_send(c->link, CRYSTAL_MSG_COMM_READY, request, body,
                          sizeof ready + length);
}

/* Whether an earlier rank of a list has made it, too; remembers it. */
static int name_is_known(struct crystal_coord *coord, const char *name)
{
    char **more;

    for (uint32_t i = 0; i < coord->made_count; i++)
        if (strcmp(coord->made[i], name) == 0)
            return 1;
    if (!coord->inject)
        return 0;
    more = realloc(coord->made, (coord->made_count + 1) * sizeof *more);
    if (more)
        coord->made = more;
    if (more && (more[coord->made_count] = strdup(name)) != NULL)
        coord->made_count++; /* else it is there twice, which the graph takes */
    return 0;
}

/* One more line for comms.tab. */
static void on_comm_made(void *context, const char *name, const uint32_t *members,
                         uint32_t nranks)
{
    struct crystal_coord *coord = context;
    struct crystal_error err = {0};
    char path[PATH_MAX], *list = crystal_ranks_format(members, nranks);
    FILE *f = NULL;
    int failed;

    if (name_is_known(coord, name)) {
        free(list);
        return;
    }
    if (!list || crystal_jobdir_file(coord->config.dir, path, sizeof path, &err,
                                     "comms.tab") < 0)
        goto out;
    f = fopen(path, "ae");
    if (!f) {
        (void)crystal_error_set(&err, errno, "coordinator: %s: %s", path,
                                strerror(errno));
        goto out;
    }
    failed = fprintf(f, "%s\t%" PRIu32 "\t%s\n", name, nranks, list) < 0;
    failed = fclose(f) != 0 || failed;
    if (failed)
        (void)crystal_error_set(&err, errno, "coordinator: cannot write %s: %s", path,
                                strerror(errno));
out:
    if (!list)
        (void)crystal_error_set(&err, ENOMEM, "coordinator: out of memory");
    if (err.code)
        crystal_coord_fail(coord, crystal_error_text(&err));
    free(list);
}

static void on_result(void *context, uint32_t lrank, uint32_t request,
                      const struct crystal_slice *results, uint32_t count)
{
    struct client *c = crystal_coord_rank(context, lrank);

    if (c)
        crystal_link_send_results(c->link, request, results, count);
}

const char *crystal_coord_stage_name(enum stage stage)
{
    static const char *const names[] = {"no stage", "capture", "plan", "emulate"};

    return names[stage];
}

void crystal_coord_stage_clear(struct crystal_coord *coord)
{
    crystal_coord_watch_end(coord);
    crystal_coord_early_end(coord);
    crystal_timer_stop(&coord->reset_timer);
    crystal_coord_forget_forges(coord);
    crystal_coord_forget_inits(coord);
    crystal_coord_forget_nodes(coord);
    crystal_exchange_destroy(coord->exchange);
    coord->exchange = NULL;
    crystal_groups_destroy(coord->groups);
    coord->groups = NULL;
    free(coord->is_real);
    coord->is_real = NULL;
    coord->real_count = 0;
    coord->stage = STAGE_NONE;
    coord->failed = 0;
    coord->lost = 0;
}

static int truncate_comms(struct crystal_coord *coord, struct crystal_error *err)
{
    char path[PATH_MAX];
    int rc =
        crystal_jobdir_file(coord->config.dir, path, sizeof path, err, "comms.tab");
    int fd;

    if (rc < 0)
        return rc;
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return crystal_error_set(err, errno, "coordinator: %s: %s", path,
                                 strerror(errno));
    (void)close(fd); /* nothing was written */
    return 0;
}

/* What belongs to all ranks of a list. */
static void list_clear(struct crystal_coord *coord)
{
    crystal_inject_destroy(coord->inject);
    coord->inject = NULL;
    while (coord->made_count)
        free(coord->made[--coord->made_count]);
    free(coord->made);
    coord->made = NULL;
}

void crystal_coord_stage_end(struct crystal_coord *coord)
{
    crystal_coord_stage_clear(coord);
    list_clear(coord);
}

int crystal_coord_stage_has_slice(const struct crystal_coord *coord, enum stage stage,
                                  uint32_t slice)
{
    const struct crystal_layout *layout = coord->config.layout;

    if (stage == STAGE_CAPTURE && layout->live_mode == CRYSTAL_LIVE_LIST)
        for (uint32_t i = 0; i < layout->live_count; i++)
            if (slice == layout->live[i] + 1)
                return 1;
    return slice == 0 || (stage == STAGE_PLAN &&
                          slice <= layout->lrank_count / layout->ranks_per_node);
}

/* Whom the exchange takes for live. */
static int exchange_make(struct crystal_coord *coord, uint32_t slice,
                         struct crystal_error *err)
{
    const struct crystal_exchange_hooks hooks = {
        coord,    on_comm_ready, on_comm_made, crystal_coord_site, crystal_coord_notice,
        on_result};
    const struct crystal_layout *layout = coord->config.layout;
    int code = 0;

    coord->exchange_layout = *layout;
    if (slice) {
        coord->only_live = slice - 1;
        coord->exchange_layout.live = &coord->only_live;
        coord->exchange_layout.live_count = 1;
    }
    coord->exchange = crystal_exchange_create(&coord->exchange_layout, &hooks);
    if (slice && !coord->inject)
        coord->inject = crystal_inject_create();
    if (!coord->exchange || (slice && !coord->inject))
        return crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    if (!slice)
        return 0;
    crystal_exchange_inject(coord->exchange, coord->inject);
    for (uint32_t i = 0; !code && layout->live[i] != coord->only_live; i++)
        code = crystal_inject_add(coord->inject, crystal_jobdir_path(coord->config.dir),
                                  layout->live[i], err);
    return code;
}

/* Marks the ranks that run in this stage. slice as in struct crystal_msg_begin. */
static void mark_real(struct crystal_coord *coord, enum stage stage, uint32_t slice)
{
    const struct crystal_layout *layout = coord->config.layout;
    const uint32_t *real = layout->sandbox;
    uint32_t count = layout->sandbox_count, first = 0;

    if (stage == STAGE_CAPTURE) {
        real = coord->exchange_layout.live;
        count = coord->exchange_layout.live_count;
    } else if (slice) {
        real = NULL;
        count = layout->ranks_per_node;
        first = (slice - 1) * layout->ranks_per_node;
    }
    coord->real_count = count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t lrank = real ? real[i] : first + i;

        if (lrank < layout->lrank_count)
            coord->is_real[lrank] = 1;
    }
}

static void end_old(struct crystal_coord *coord, const struct client *beginner)
{
    for (struct client *c = coord->clients; c; c = c->next)
        if (c->in_stage && c != beginner) { /* left over from the stage before */
            crystal_coord_tell_stop(c, "coordinator: another stage begins");
            c->in_stage = 0;
            if (c->role == CRYSTAL_ROLE_RANK)
                crystal_link_end(c->link);
        }
}

int crystal_coord_stage_begin(struct crystal_coord *coord, enum stage stage,
                              uint32_t slice, const struct client *beginner,
                              struct crystal_error *err)
{
    const struct crystal_layout *layout = coord->config.layout;
    const int is_first =
        stage != STAGE_CAPTURE || slice == 0 || slice == layout->live[0] + 1;
    int code = 0;

    end_old(coord, beginner);
    crystal_coord_stage_clear(coord);
    if (is_first)
        list_clear(coord);
    crystal_store_reset(coord->store);
    coord->is_real = calloc((size_t)layout->lrank_count + 1, 1);
    coord->groups = crystal_groups_create(layout->lrank_count);
    if (!coord->is_real || !coord->groups)
        code = crystal_error_set(err, ENOMEM, "coordinator: out of memory");
    if (!code && stage == STAGE_CAPTURE)
        code = exchange_make(coord, slice, err);
    if (!code && stage == STAGE_CAPTURE && is_first)
        code = truncate_comms(coord, err);
    if (code) {
        crystal_coord_stage_clear(coord);
        return code;
    }
    mark_real(coord, stage, slice);
    coord->stage = stage;
    coord->emulated |= stage == STAGE_EMULATE;
    crystal_coord_early(coord);
    return 0;
}
