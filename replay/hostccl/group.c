/* From calls to launches: one launch per communicator in a group, which stands in every
 * stream that the group names for it. */
#include "config.h"

#include "replay/hostccl/group.h"

#include "replay/hostccl/comm.h"
#include "replay/hostccl/engine.h"
#include "replay/hostccl/result.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local struct {
    int depth;
    ncclResult_t result; /* the first failure */
    struct hostccl_task *tasks, **last_task;
    struct hostccl_job *jobs, **last_job;
    void *event; /* profiler: group API */
    const struct hostccl_profile *event_profile;
} group;

/* A launch that is being put together. */
struct draft {
    struct draft *next;
    ncclComm_t comm;
    struct hostccl_task *lists[2], **last[2]; /* collectives, p2p */
    struct hostccl_stream **streams;
    uint32_t stream_count;
    struct hostccl_launch *launch;
};

void hostccl_group_start(void)
{
    if (group.depth++)
        return;
    group.result = ncclSuccess;
    group.last_task = &group.tasks;
    group.last_job = &group.jobs;
}

bool hostccl_group_is_open(void)
{
    return group.depth > 0;
}

ncclResult_t hostccl_group_add(const struct hostccl_task *model, const char *name)
{
    const struct hostccl_profile *profile = &model->comm->profile;
    struct hostccl_stream *queue = hostccl_stream_find(model->stream);
    struct hostccl_task *task;

    if (!queue)
        return hostccl_fail(ncclInvalidArgument, "hostccl: %s: no stream of ours",
                            name);
    task = malloc(sizeof *task);
    if (!task)
        return hostccl_fail(ncclSystemError, "hostccl: out of memory");
    *task = *model;
    task->queue = queue;
    if (!group.event) {
        group.event = hostccl_profile_group_start(profile, group.depth);
        group.event_profile = profile;
    }
    task->api_event = hostccl_profile_api_start(profile, group.event, task, name);
    *group.last_task = task;
    group.last_task = &task->next;
    hostccl_profile_stop(profile, task->api_event);
    return ncclSuccess;
}

ncclResult_t hostccl_group_add_job(struct hostccl_job *job)
{
    *group.last_job = job;
    group.last_job = &job->next;
    return ncclSuccess;
}

static void tasks_free(struct hostccl_task *task)
{
    while (task) {
        struct hostccl_task *next = task->next;

        free(task);
        task = next;
    }
}

static void drafts_free(struct draft *draft)
{
    while (draft) {
        struct draft *next = draft->next;

        tasks_free(draft->lists[0]);
        tasks_free(draft->lists[1]);
        free(draft->streams);
        free(draft->launch);
        free(draft);
        draft = next;
    }
}

static struct draft *draft_of(struct draft **first, ncclComm_t comm)
{
    struct draft **at = first;

    while (*at && (*at)->comm != comm)
        at = &(*at)->next;
    if (!*at && (*at = calloc(1, sizeof **at))) {
        (*at)->comm = comm;
        for (int i = 0; i < 2; i++)
            (*at)->last[i] = &(*at)->lists[i];
    }
    return *at;
}

static bool add_stream(struct draft *draft, struct hostccl_stream *stream)
{
    struct hostccl_stream **more;

    for (uint32_t i = 0; i < draft->stream_count; i++)
        if (draft->streams[i] == stream)
            return true;
    more = realloc(draft->streams, (draft->stream_count + 1) * sizeof *more);
    if (!more)
        return false;
    draft->streams = more;
    draft->streams[draft->stream_count++] = stream;
    return true;
}

/* Sorts the group's tasks by communicator. Takes those that it has sorted. */
static bool make_drafts(struct hostccl_task **tasks, struct draft **ret_first)
{
    while (*tasks) {
        struct hostccl_task *task = *tasks;
        struct draft *draft = draft_of(ret_first, task->comm);
        int kind = task->func == CRYSTAL_FUNC_SEND || task->func == CRYSTAL_FUNC_RECV;

        if (!draft || !add_stream(draft, task->queue))
            return false;
        *tasks = task->next;
        task->next = NULL;
        *draft->last[kind] = task;
        draft->last[kind] = &task->next;
    }
    return true;
}

/* Sends to oneself and receives from oneself pair up in order. */
static ncclResult_t pair_selves(struct draft *draft)
{
    struct hostccl_task *recv = draft->lists[1];
    uint32_t self = draft->comm->crank;

    for (struct hostccl_task *send = draft->lists[1]; send; send = send->next) {
        if (send->peer != self || send->func != CRYSTAL_FUNC_SEND)
            continue;
        while (recv && (recv->peer != self || recv->func != CRYSTAL_FUNC_RECV))
            recv = recv->next;
        if (!recv)
            break;
        if (send->count * crystal_dtype_bytes(send->dtype) !=
            recv->count * crystal_dtype_bytes(recv->dtype))
            return hostccl_fail(ncclInvalidUsage,
                                "hostccl: rank %u sends itself one size and receives "
                                "another",
                                self);
        send->self = recv;
        recv->self = send;
        recv = recv->next;
    }
    for (struct hostccl_task *task = draft->lists[1]; task; task = task->next)
        if (task->peer == self && !task->self)
            return hostccl_fail(ncclInvalidUsage,
                                "hostccl: rank %u sends to itself without receiving, "
                                "or the other way round, in one group",
                                self);
    return ncclSuccess;
}

/* --- the order of sends and receives --- */

struct turn {
    uint32_t round, index;
    struct hostccl_task *task;
};

static int turn_compare(const void *a, const void *b)
{
    const struct turn *x = a, *y = b;

    if (x->round != y->round)
        return x->round < y->round ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* Rounds, as NCCL's: in each a rank sends to one and receives from one other, both
 * equally far away, so that ranks which all list their peers alike do not all send to
 * the same one. Transfers with one peer keep their order. */
static ncclResult_t take_turns(struct draft *draft)
{
    uint32_t count = 0, n = draft->comm->nranks, crank = draft->comm->crank;
    struct turn *turns;

    for (struct hostccl_task *t = draft->lists[1]; t; t = t->next)
        count++;
    if (count < 2)
        return ncclSuccess;
    turns = malloc(count * sizeof *turns);
    if (!turns)
        return hostccl_fail(ncclSystemError, "hostccl: out of memory");
    count = 0;
    for (struct hostccl_task *t = draft->lists[1]; t; t = t->next, count++)
        turns[count] = (struct turn){
            (t->func == CRYSTAL_FUNC_SEND ? t->peer + n - crank : crank + n - t->peer) %
                n,
            count, t};
    qsort(turns, count, sizeof *turns, turn_compare);
    draft->last[1] = &draft->lists[1];
    for (uint32_t i = 0; i < count; i++) {
        *draft->last[1] = turns[i].task;
        draft->last[1] = &turns[i].task->next;
    }
    *draft->last[1] = NULL;
    free(turns);
    return ncclSuccess;
}

static ncclResult_t prepare(struct draft *draft)
{
    struct crystal_error err = {0};
    ncclResult_t result = pair_selves(draft);

    if (!result)
        result = take_turns(draft);

    if (result)
        return result;
    draft->launch = calloc(1, sizeof *draft->launch +
                                  draft->stream_count * sizeof draft->launch->items[0]);
    if (!draft->launch)
        return hostccl_fail(ncclSystemError, "hostccl: out of memory");
    if (draft->lists[1] && draft->comm->nranks > 1 &&
        hostccl_connect_p2p(draft->comm, draft->lists[1], &err))
        return hostccl_comm_fail(draft->comm, &err);
    return ncclSuccess;
}

/* The draft's contents move into its launch. */
static struct hostccl_launch *finish(struct draft *draft)
{
    struct hostccl_launch *launch = draft->launch;

    launch->comm = draft->comm;
    launch->colls = draft->lists[0];
    launch->p2ps = draft->lists[1];
    draft->lists[0] = draft->lists[1] = NULL;
    for (int i = 0; i < 2; i++)
        for (struct hostccl_task *t = i ? launch->p2ps : launch->colls; t; t = t->next)
            t->launch = launch;
    launch->stream_count = draft->stream_count;
    for (uint32_t i = 0; i < draft->stream_count; i++) {
        launch->items[i].kind = HOSTCCL_ITEM_LAUNCH;
        launch->items[i].launch = launch;
        launch->items[i].stream = draft->streams[i];
    }
    draft->launch = NULL;
    return launch;
}

static ncclResult_t launch_tasks(struct hostccl_task **tasks)
{
    struct draft *first = NULL;
    struct hostccl_launch *launches = NULL, **last = &launches;
    ncclResult_t result = ncclSuccess;

    if (!make_drafts(tasks, &first))
        result = hostccl_fail(ncclSystemError, "hostccl: out of memory");
    for (struct draft *d = first; d && !result; d = d->next)
        result = prepare(d);
    for (struct draft *d = first; d && !result; d = d->next) {
        *last = finish(d);
        last = &(*last)->next;
    }
    drafts_free(first);
    hostccl_engine_submit(launches);
    return result;
}

static void *run_job(void *context)
{
    struct hostccl_job *job = context;

    if (job->is_excluded)
        job->result = hostccl_comm_shrink(job->shell, job->parent, job->is_excluded,
                                          job->ret_comm, job->config);
    else if (job->parent)
        job->result = hostccl_comm_split(job->shell, job->parent, job->color, job->key,
                                         job->ret_comm, job->config);
    else
        job->result =
            hostccl_comm_create(job->shell, job->ret_comm, job->nranks, job->crank,
                                job->ids, job->id_count, job->config);
    return NULL;
}

static void job_free(struct hostccl_job *job)
{
    free(job->ids);
    free(job->is_excluded);
    free(job);
}

/* The thread of a non-blocking communicator; owns its job. */
static void *make_shell(void *job)
{
    (void)run_job(job); /* the communicator keeps its result */
    job_free(job);
    return NULL;
}

/* A rank that gets no communicator only takes part in the exchange: that blocks. */
static bool is_blocking(const struct hostccl_job *job)
{
    const ncclConfig_t *config = job->config;

    return !config || config->size <= offsetof(ncclConfig_t, blocking) ||
           config->blocking != 0 ||
           (job->parent && !job->is_excluded && job->color < 0);
}

static ncclResult_t begin_shell(struct hostccl_job *job)
{
    struct crystal_error err = {0};
    size_t bytes = job->config->size < sizeof job->own_config ? job->config->size
                                                              : sizeof job->own_config;
    ncclComm_t shell = hostccl_comm_shell(&err);

    if (!shell) {
        job_free(job);
        return hostccl_fail_error(&err);
    }
    memcpy(&job->own_config, job->config, bytes);
    job->config = &job->own_config;
    job->shell = shell;
    *job->ret_comm = shell;
    shell->has_maker = true;
    if (pthread_create(&shell->maker, NULL, make_shell, job) == 0)
        return ncclInProgress;
    shell->has_maker = false;
    job_free(job);
    (void)crystal_error_set(&err, EAGAIN, "hostccl: no thread to be had");
    return hostccl_comm_fail(shell, &err);
}

/* Starts those that do not block and takes them from the list. */
static ncclResult_t begin_shells(struct hostccl_job **jobs)
{
    ncclResult_t result = ncclSuccess;
    struct hostccl_job *job;

    while ((job = *jobs)) {
        ncclResult_t one;

        if (is_blocking(job)) {
            jobs = &job->next;
            continue;
        }
        *jobs = job->next;
        one = begin_shell(job);
        if (one != ncclInProgress || !result)
            result = one;
    }
    return result;
}

/* Several communicators of one group need each other: a thread each. */
static ncclResult_t run_jobs(struct hostccl_job *jobs)
{
    pthread_t *threads;
    uint32_t count = 0, started = 0;
    ncclResult_t result = ncclSuccess;

    for (struct hostccl_job *job = jobs; job; job = job->next)
        count++;
    if (count == 1) {
        (void)run_job(jobs); /* the result is in the job */
        return jobs->result;
    }
    threads = calloc(count, sizeof *threads);
    if (!threads)
        return hostccl_fail(ncclSystemError, "hostccl: out of memory");
    for (struct hostccl_job *job = jobs; job; job = job->next)
        if (pthread_create(&threads[started], NULL, run_job, job) == 0)
            started++;
        else
            job->result = hostccl_fail(ncclSystemError, "hostccl: no thread to be had");
    for (uint32_t i = 0; i < started; i++)
        (void)pthread_join(threads[i], NULL);
    free(threads);
    for (struct hostccl_job *job = jobs; job; job = job->next)
        if (!result)
            result = job->result;
    return result;
}

static void jobs_free(struct hostccl_job *job)
{
    while (job) {
        struct hostccl_job *next = job->next;

        job_free(job);
        job = next;
    }
}

ncclResult_t hostccl_group_end(ncclResult_t result)
{
    struct hostccl_task *tasks = group.tasks;
    struct hostccl_job *jobs = group.jobs;
    void *event = group.event;
    ncclResult_t begun = ncclSuccess;

    if (result && !group.result)
        group.result = result;
    if (--group.depth > 0)
        return result;
    result = group.result;
    group.tasks = NULL;
    group.jobs = NULL;
    group.event = NULL;
    if (!result)
        begun = begin_shells(&jobs);
    if (begun && begun != ncclInProgress)
        result = begun;
    if (!result && jobs)
        result = run_jobs(jobs);
    if (!result && tasks)
        result = launch_tasks(&tasks);
    tasks_free(tasks);
    jobs_free(jobs);
    if (event)
        hostccl_profile_stop(group.event_profile, event);
    return result ? result : begun;
}
