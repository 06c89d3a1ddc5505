/* The roll: who began, of ranks that saw each other end. */
#include "config.h"

#include "replay/roll.h"

#include "tests/check.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

static char directory[] = "/tmp/crystal-roll.XXXXXX";

static struct crystal_roll *make(void)
{
    struct crystal_error err = {0};
    struct crystal_roll *roll;
    char path[64];

    snprintf(path, sizeof path, "%s/roll", directory);
    unlink(path);
    roll = crystal_roll_create(directory, &err);
    if (!roll) {
        printf("Bail out! %s\n", err.text);
        exit(1);
    }
    return roll;
}

static void joined(uint32_t lrank, uint64_t comm_id, uint32_t crank)
{
    crystal_roll_write(directory, CRYSTAL_ROLL_JOINED, lrank, comm_id, crank);
}

static void parted(uint32_t lrank, uint64_t comm_id, uint32_t crank)
{
    crystal_roll_write(directory, CRYSTAL_ROLL_PARTED, lrank, comm_id, crank);
}

static void it_is_private(void)
{
    struct crystal_roll *roll = make();
    struct crystal_error err = {0};
    char path[64];
    struct stat s;

    snprintf(path, sizeof path, "%s/roll", directory);
    CHECK_EQ(stat(path, &s), 0);
    CHECK_EQ(s.st_mode & 07777, 0600);
    CHECK(crystal_roll_create(directory, &err) == NULL); /* another agent's */
    CHECK_EQ(err.code, EEXIST);
    CHECK(crystal_roll_create("/nowhere", &err) == NULL);
    CHECK_STR(err.text, "'/nowhere/roll': No such file or directory");
    crystal_roll_destroy(roll);
    crystal_roll_destroy(NULL);
}

static void stopped(uint32_t lrank)
{
    crystal_roll_write(directory, CRYSTAL_ROLL_STOPPED, lrank, 0, 0);
}

/* What began it: so, and this rank (UINT32_MAX: none). */
static void began(struct crystal_roll *roll, enum crystal_roll_first first,
                  uint32_t lrank)
{
    const struct crystal_roll_cause cause = crystal_roll_cause(roll);

    CHECK_EQ(cause.first, first);
    CHECK_EQ(cause.lrank, lrank);
}

/* Ranks 10 to 13 are cranks 0 to 3 of one communicator and, by pairs, of others. */
static void all_join(void)
{
    for (uint32_t i = 0; i < 4; i++) {
        joined(10 + i, 1, i);
        joined(10 + i, 2 + i / 2, i % 2);
    }
}

static void the_first_of_a_chain(void)
{
    struct crystal_roll *roll = make();

    began(roll, CRYSTAL_FIRST_NONE, UINT32_MAX);
    all_join();
    began(roll, CRYSTAL_FIRST_NONE, UINT32_MAX);
    CHECK_EQ(crystal_roll_has_seen(roll, 11), 0);
    parted(11, 1, 1); /* its own end is none */
    began(roll, CRYSTAL_FIRST_NONE, UINT32_MAX);
    CHECK_EQ(crystal_roll_has_seen(roll, 11), 0);
    parted(11, 1, 2); /* 12 */
    began(roll, CRYSTAL_FIRST_RANK, 12);
    parted(10, 2, 1); /* 11 */
    parted(12, 1, 1); /* 11, which it made fail */
    parted(13, 3, 0); /* 12 */
    parted(13, 1, 0); /* 10, later */
    began(roll, CRYSTAL_FIRST_RANK, 12);
    for (uint32_t lrank = 10; lrank < 14; lrank++)
        CHECK_EQ(crystal_roll_has_seen(roll, lrank), 1);
    CHECK_EQ(crystal_roll_has_seen(roll, 14), 0);
    crystal_roll_destroy(roll);
}

/* 10 dies of 11, which dies of one of another node; what that node's ranks do then is
 * seen, too. */
static void a_chain_that_leads_away(void)
{
    struct crystal_roll *roll = make();

    all_join();
    parted(11, 1, 7);
    began(roll, CRYSTAL_FIRST_STRANGER, UINT32_MAX);
    parted(10, 2, 1);
    parted(12, 1, 9);
    began(roll, CRYSTAL_FIRST_STRANGER, UINT32_MAX);
    CHECK_EQ(crystal_roll_has_seen(roll, 11), 1);
    crystal_roll_destroy(roll);
}

/* One of this node began: another node's ranks that died of it were seen first. */
static void a_chain_that_leads_away_and_back(void)
{
    struct crystal_roll *roll = make();

    all_join();
    parted(10, 1, 7);
    parted(11, 2, 0); /* 10 */
    parted(13, 3, 0); /* 12 */
    began(roll, CRYSTAL_FIRST_RANK, 12);
    CHECK_EQ(crystal_roll_has_seen(roll, 12), 0);
    crystal_roll_destroy(roll);
}

/* Whoever has stopped the job says why; ranks that have not heard of it yet see others
 * end. */
static void the_job_was_stopped(void)
{
    struct crystal_roll *roll = make();

    all_join();
    stopped(12);
    began(roll, CRYSTAL_FIRST_STOP, UINT32_MAX);
    CHECK_EQ(crystal_roll_has_seen(roll, 12), 1);
    parted(13, 3, 0); /* 12 */
    parted(10, 1, 9); /* of another node */
    began(roll, CRYSTAL_FIRST_STOP, UINT32_MAX);
    crystal_roll_destroy(roll);
    roll = make(); /* because of an end: that is what began it */
    all_join();
    parted(13, 3, 0); /* 12 */
    stopped(10);
    began(roll, CRYSTAL_FIRST_RANK, 12);
    crystal_roll_destroy(roll);
}

static void what_is_no_record_ends_it(void)
{
    struct crystal_roll *roll = make();
    char path[64];
    int fd;

    joined(0, 1, 0);
    joined(1, 1, 1);
    snprintf(path, sizeof path, "%s/roll", directory);
    fd = open(path, O_WRONLY | O_APPEND);
    CHECK_EQ(write(fd, "half a record", 13), 13);
    close(fd);
    parted(0, 1, 1); /* off by 13 bytes */
    parted(0, 1, 1);
    began(roll, CRYSTAL_FIRST_NONE, UINT32_MAX);
    crystal_roll_destroy(roll);
    crystal_roll_write("/nowhere", CRYSTAL_ROLL_PARTED, 0, 1, 1); /* in vain */
}

/* More than is read at once. */
static void many_records(void)
{
    struct crystal_roll *roll = make();

    for (uint32_t i = 0; i < 1000; i++)
        joined(i, i / 2, i % 2);
    parted(998, 499, 1);
    began(roll, CRYSTAL_FIRST_RANK, 999);
    parted(999, 499, 0);
    began(roll, CRYSTAL_FIRST_RANK, 999);
    crystal_roll_destroy(roll);
}

int main(void)
{
    char path[64];

    check_begin();
    if (!mkdtemp(directory))
        return 1;
    CHECK_RUN(it_is_private);
    CHECK_RUN(the_first_of_a_chain);
    CHECK_RUN(a_chain_that_leads_away);
    CHECK_RUN(a_chain_that_leads_away_and_back);
    CHECK_RUN(the_job_was_stopped);
    CHECK_RUN(what_is_no_record_ends_it);
    CHECK_RUN(many_records);
    snprintf(path, sizeof path, "%s/roll", directory);
    unlink(path);
    rmdir(directory);
    return check_end();
}
