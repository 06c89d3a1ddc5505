/* See roll.h. Ranks are few and ends are rare: what was read is kept as it came and
 * searched from the front. */
#include "config.h"

#include "replay/roll.h"

#include "runtime/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RECORDS_MAX  (1U << 20) /* what one agent keeps; later ones are left */
#define READ_AT_ONCE 256

struct crystal_roll {
    int fd;
    struct crystal_roll_record *records; /* owned, in the order of the file */
    uint32_t count, capacity;
};

static int roll_path(const char *directory, char *out, size_t out_bytes)
{
    return snprintf(out, out_bytes, "%s/roll", directory) < (int)out_bytes
               ? 0
               : -ENAMETOOLONG;
}

void crystal_roll_write(const char *directory, enum crystal_roll_kind kind,
                        uint32_t lrank, uint64_t comm_id, uint32_t crank)
{
    const struct crystal_roll_record record = {.magic = CRYSTAL_ROLL_MAGIC,
                                               .kind = (uint32_t)kind,
                                               .lrank = lrank,
                                               .pid = (uint32_t)getpid(),
                                               .comm_id = comm_id,
                                               .crank = crank,
                                               .time_ns = crystal_now_ns()};
    char path[4096];
    int fd;

    if (roll_path(directory, path, sizeof path))
        return;
    fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return;
    if (write(fd, &record, sizeof record) != (ssize_t)sizeof record)
        (void)fd;    /* the reader stops at half a record; it knows less, no more */
    (void)close(fd); /* nothing to be done about it */
}

struct crystal_roll *crystal_roll_create(const char *directory,
                                         struct crystal_error *err)
{
    struct crystal_roll *roll = calloc(1, sizeof *roll);
    char path[4096];

    if (!roll || roll_path(directory, path, sizeof path)) {
        (void)crystal_error_set(err, roll ? ENAMETOOLONG : ENOMEM,
                                "roll in '%.200s': %s", directory,
                                strerror(roll ? ENAMETOOLONG : ENOMEM));
        free(roll);
        return NULL;
    }
    roll->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (roll->fd < 0) {
        (void)crystal_error_set(err, errno, "'%s': %s", path, strerror(errno));
        free(roll);
        return NULL;
    }
    return roll;
}

void crystal_roll_destroy(struct crystal_roll *roll)
{
    if (!roll)
        return;
    (void)close(roll->fd); /* goes with its directory */
    free(roll->records);
    free(roll);
}

static int make_room(struct crystal_roll *roll)
{
    uint32_t capacity = roll->capacity ? 2 * roll->capacity : READ_AT_ONCE;
    struct crystal_roll_record *bigger;

    if (roll->capacity - roll->count >= READ_AT_ONCE)
        return 0;
    if (capacity > RECORDS_MAX)
        return -ENOSPC;
    bigger = realloc(roll->records, capacity * sizeof *bigger);
    if (!bigger)
        return -ENOMEM;
    roll->records = bigger;
    roll->capacity = capacity;
    return 0;
}

/* Takes in whole records; what is no record ends the roll. */
static void read_on(struct crystal_roll *roll)
{
    while (make_room(roll) == 0) {
        struct crystal_roll_record *to = roll->records + roll->count;
        ssize_t got = pread(roll->fd, to, READ_AT_ONCE * sizeof *to,
                            (off_t)(roll->count * sizeof *to));
        uint32_t whole = got > 0 ? (uint32_t)((size_t)got / sizeof *to) : 0;

        if (got < 0 && errno == EINTR)
            continue;
        for (uint32_t i = 0; i < whole; i++) {
            if (to[i].magic != CRYSTAL_ROLL_MAGIC)
                return;
            roll->count++;
        }
        if (!whole)
            return;
    }
}

const struct crystal_roll_record *crystal_roll_records(struct crystal_roll *roll,
                                                       uint32_t *ret_count)
{
    read_on(roll);
    *ret_count = roll->count;
    return roll->records;
}

int crystal_roll_has_joined(struct crystal_roll *roll, uint32_t lrank)
{
    read_on(roll);
    for (uint32_t i = 0; i < roll->count; i++)
        if (roll->records[i].kind == CRYSTAL_ROLL_JOINED &&
            roll->records[i].lrank == lrank)
            return 1;
    return 0;
}

uint32_t crystal_roll_member(const struct crystal_roll *roll, uint64_t comm_id,
                             uint32_t crank)
{
    for (uint32_t i = 0; i < roll->count; i++) {
        const struct crystal_roll_record *r = &roll->records[i];

        if (r->kind == CRYSTAL_ROLL_JOINED && r->comm_id == comm_id &&
            r->crank == crank)
            return r->lrank;
    }
    return UINT32_MAX;
}

/* Has this record's rank seen something end in it? Its own end on another connection is
 * none. */
static int is_sight(const struct crystal_roll *roll,
                    const struct crystal_roll_record *r)
{
    return r->kind == CRYSTAL_ROLL_STOPPED ||
           (r->kind == CRYSTAL_ROLL_PARTED &&
            crystal_roll_member(roll, r->comm_id, r->crank) != r->lrank);
}

/* What lrank (UINT32_MAX: anybody) saw first, before that time; NULL: nothing. */
static const struct crystal_roll_record *first_sight(const struct crystal_roll *roll,
                                                     uint32_t lrank, uint64_t before_ns)
{
    const struct crystal_roll_record *found = NULL;

    for (uint32_t i = 0; i < roll->count; i++) {
        const struct crystal_roll_record *r = &roll->records[i];

        if ((r->lrank != lrank && lrank != UINT32_MAX) || !is_sight(roll, r) ||
            r->time_ns >= before_ns)
            continue;
        found = r;
        before_ns = r->time_ns;
    }
    return found;
}

/* What led to this sight; *ret_ns when that was seen. */
static struct crystal_roll_cause cause_of(const struct crystal_roll *roll,
                                          const struct crystal_roll_record *sight,
                                          uint64_t *ret_ns)
{
    struct crystal_roll_cause cause = {CRYSTAL_FIRST_STOP, UINT32_MAX};

    for (;;) {
        const struct crystal_roll_record *before;

        *ret_ns = sight->time_ns;
        if (sight->kind == CRYSTAL_ROLL_STOPPED)
            return cause;
        cause.lrank = crystal_roll_member(roll, sight->comm_id, sight->crank);
        cause.first =
            cause.lrank == UINT32_MAX ? CRYSTAL_FIRST_STRANGER : CRYSTAL_FIRST_RANK;
        if (cause.first == CRYSTAL_FIRST_STRANGER)
            return cause;
        /* what it saw later than it was seen to end is a consequence */
        before = first_sight(roll, cause.lrank, sight->time_ns);
        if (!before)
            return cause;
        sight = before;
        cause = (struct crystal_roll_cause){CRYSTAL_FIRST_STOP, UINT32_MAX};
    }
}

struct crystal_roll_cause crystal_roll_cause(struct crystal_roll *roll)
{
    struct crystal_roll_cause best = {CRYSTAL_FIRST_NONE, UINT32_MAX};
    const struct crystal_roll_record *first;
    uint64_t best_ns = UINT64_MAX, seen_ns;

    read_on(roll);
    first = first_sight(roll, UINT32_MAX, UINT64_MAX);
    if (first)
        best = cause_of(roll, first, &seen_ns);
    if (best.first == CRYSTAL_FIRST_RANK)
        best_ns = seen_ns;
    for (uint32_t i = 0; i < roll->count; i++) {
        struct crystal_roll_cause cause;

        if (!is_sight(roll, &roll->records[i]))
            continue;
        cause = cause_of(roll, &roll->records[i], &seen_ns);
        if (cause.first != CRYSTAL_FIRST_RANK || seen_ns >= best_ns)
            continue;
        best = cause;
        best_ns = seen_ns;
    }
    return best;
}

int crystal_roll_has_seen(struct crystal_roll *roll, uint32_t lrank)
{
    read_on(roll);
    return first_sight(roll, lrank, UINT64_MAX) != NULL;
}
