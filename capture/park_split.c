/* ncclCommSplit and ncclCommShrink in capture.
 *
 * All members of the parent tell each other rank, colour and key by an all-gather that
 * the coordinator performs like any other, but that is not recorded. From it each
 * computes the child's members; its id is made of the parent's name, the number of the
 * parent's children so far and the colour, so that all make the same one, and names the
 * child:
 *
 *   0   8  "CRCHILD1"
 *   8   8  hash of what follows behind it
 *  16 112  "PARENT/split2:7" or "PARENT/shrink3", zero-filled; cut in front
 *
 * The members must all be live: of a rank that does not run neither colour nor key can
 * be known.
 */
#include "config.h"

#include "capture/park.h"
#include "capture/recorder.h"
#include "capture/site.h"

#include "runtime/filehead.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What each member tells the others. */
struct told {
    uint32_t lrank;
    int32_t color, key;
    uint32_t crank; /* in the parent; filled in behind */
};

/* Rank, colour and key of all members, by crank of the parent. Caller frees *ret. */
static int gather(struct ncclComm *parent, int color, int key, struct told **ret,
                  struct crystal_error *err)
{
    struct told mine = {recorder_get()->lrank, color, key, parent->crank};
    struct told *all = calloc(parent->nranks, sizeof *all);
    struct park_stream *stream = all ? park_queue_stream_create(err) : NULL;
    struct park_op op;
    struct park_mark end = {0};
    int code;

    memset(&op, 0, sizeof op);
    if (!stream) {
        free(all);
        return crystal_error_set(err, ENOMEM, "recorder: out of memory");
    }
    op.comm = parent;
    op.stream = stream;
    op.client.op.comm = parent->number;
    op.client.op.func = CRYSTAL_FUNC_ALLGATHER;
    op.client.op.dtype = ncclUint8;
    op.client.op.count = sizeof mine;
    op.client.op.send_bytes = sizeof mine;
    op.client.op.recv_bytes = parent->nranks * sizeof mine;
    op.client.op.call_site = site_number(entry_call_site);
    op.client.send = &mine;
    op.client.recv = all;
    code = park_queue_issue(&op, 1, err);
    if (!code) {
        park_queue_mark_set(&end, stream);
        if (park_queue_mark_wait(&end))
            code = crystal_error_set(err, ECANCELED, "%s", recorder_last_error());
        park_queue_mark_clear(&end);
    }
    park_queue_stream_release(stream);
    if (code)
        free(all);
    else
        *ret = all;
    return code;
}

/* A rank that does not run has told what its representative did: a rank twice. */
static int all_live(const struct ncclComm *parent, const struct told *all,
                    const char *what, struct crystal_error *err)
{
    for (uint32_t i = 0; i < parent->nranks; i++)
        for (uint32_t k = 0; k < i; k++)
            if (all[i].lrank == all[k].lrank)
                return crystal_error_set(
                    err, ENOTSUP,
                    "recorder: %s of communicator '%s': its rank %u is not live, so "
                    "that its part cannot be known; use --crystal-live=all",
                    what, parent->name, i);
    return 0;
}

static int told_compare(const void *a, const void *b)
{
    const struct told *x = a, *y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->crank < y->crank ? -1 : x->crank > y->crank;
}

static void id_make(ncclUniqueId *id, const struct ncclComm *parent, const char *suffix)
{
    const size_t room = sizeof id->internal - 16 - 1;
    size_t length = strlen(parent->name) + strlen(suffix);
    char text[CRYSTAL_COMM_NAME_BYTES + 64];
    uint64_t hash;

    memset(id, 0, sizeof *id);
    (void)snprintf(text, sizeof text, "%s%s", parent->name, suffix);
    hash = crystal_hash(text, strlen(text));
    memcpy(id->internal, "CRCHILD1", 8);
    memcpy(id->internal + 8, &hash, sizeof hash);
    (void)snprintf(id->internal + 16, room + 1, "%s",
                   text + (length > room ? length - room : 0));
}

ncclResult_t park_CommSplit(ncclComm_t comm, int color, int key, ncclComm_t *child,
                            ncclConfig_t *config)
{
    struct crystal_error err = {0};
    ncclUniqueId id;
    struct told *all = NULL;
    char suffix[48];
    int count = 0, crank = -1;

    (void)config; /* blocking or not, the child is ready on return */
    if (!comm || !child || (color < 0 && color != NCCL_SPLIT_NOCOLOR))
        return PARK_FAIL(ncclInvalidArgument,
                         "recorder: ncclCommSplit: bad argument (color %d)", color);
    *child = NULL;
    if (gather(comm, color, key, &all, &err))
        return park_fail(&err, ncclRemoteError);
    (void)snprintf(suffix, sizeof suffix, "/split%u:%d", comm->child_count++, color);
    if (all_live(comm, all, "ncclCommSplit", &err)) {
        free(all);
        return park_fail(&err, ncclInvalidUsage);
    }
    qsort(all, comm->nranks, sizeof *all, told_compare);
    for (uint32_t i = 0; i < comm->nranks; i++)
        if (all[i].color == color) {
            crank = all[i].crank == comm->crank ? count : crank;
            count++;
        }
    free(all);
    if (color == NCCL_SPLIT_NOCOLOR)
        return ncclSuccess;
    id_make(&id, comm, suffix);
    return park_comm_init(child, count, &id, crank);
}

static int is_excluded(const int *exclude, int exclude_count, uint32_t crank)
{
    for (int i = 0; i < exclude_count; i++)
        if (exclude[i] == (int)crank)
            return 1;
    return 0;
}

/* Only those who stay call it. */
ncclResult_t park_CommShrink(ncclComm_t comm, int *exclude, int exclude_count,
                             ncclComm_t *child, ncclConfig_t *config, int flags)
{
    ncclUniqueId id;
    char suffix[48];
    int count = 0, crank = 0;

    (void)config;
    (void)flags; /* nothing of the parent has to be aborted here */
    if (!comm || !child || exclude_count < 1 || !exclude)
        return PARK_FAIL(ncclInvalidArgument, "recorder: ncclCommShrink: bad argument");
    if (is_excluded(exclude, exclude_count, comm->crank))
        return PARK_FAIL(ncclInvalidArgument,
                         "recorder: ncclCommShrink: rank %u excludes itself; only "
                         "those who stay call it",
                         comm->crank);
    for (uint32_t i = 0; i < comm->nranks; i++)
        if (!is_excluded(exclude, exclude_count, i)) {
            crank += i < comm->crank;
            count++;
        }
    *child = NULL;
    (void)snprintf(suffix, sizeof suffix, "/shrink%u", comm->child_count++);
    id_make(&id, comm, suffix);
    return park_comm_init(child, count, &id, crank);
}
