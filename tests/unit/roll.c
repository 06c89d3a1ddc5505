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

/* Ranks 10 to 13 are cranks 0 to 3 of one communicator and, by pairs, of others. */
static void the_first_of_a_chain(void)
{
    struct crystal_roll *roll = make();

    CHECK_EQ(crystal_roll_cause(roll, 12), 12);
    CHECK_EQ(crystal_roll_cause(roll, UINT32_MAX), UINT32_MAX);
    for (uint32_t i = 0; i < 4; i++) {
        joined(10 + i, 1, i);
        joined(10 + i, 2 + i / 2, i % 2);
    }
    CHECK_EQ(crystal_roll_cause(roll, 12), 12);
    parted(11, 1, 2); /* 12 */
    parted(10, 2, 1); /* 11 */
    parted(12, 1, 1); /* 11, which it made fail */
    parted(13, 3, 0); /* 12 */
    parted(13, 1, 0); /* 10, later */
    CHECK_EQ(crystal_roll_cause(roll, 10), 12);
    CHECK_EQ(crystal_roll_cause(roll, 11), 12);
    CHECK_EQ(crystal_roll_cause(roll, 12), 12);
    CHECK_EQ(crystal_roll_cause(roll, 13), 12);
    CHECK_EQ(crystal_roll_cause(roll, 14), 12);
    CHECK_EQ(crystal_roll_cause(roll, UINT32_MAX), 12);
    crystal_roll_destroy(roll);
}

/* Ranks of other nodes, virtual ranks: nobody here has said who they are. */
static void strangers_are_no_cause(void)
{
    struct crystal_roll *roll = make();

    joined(0, 1, 0);
    joined(1, 1, 1);
    CHECK_EQ(crystal_roll_saw_stranger(roll), 0);
    parted(0, 1, 1);
    CHECK_EQ(crystal_roll_saw_stranger(roll), 0);
    crystal_roll_destroy(roll);
    roll = make();
    joined(0, 1, 0);
    joined(1, 1, 1);
    parted(0, 1, 7);
    CHECK_EQ(crystal_roll_saw_stranger(roll), 1);
    parted(0, 9, 1);
    CHECK_EQ(crystal_roll_cause(roll, 0), 0);
    parted(0, 1, 1);
    CHECK_EQ(crystal_roll_cause(roll, 0), 1);
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
    CHECK_EQ(crystal_roll_cause(roll, 0), 0);
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
    CHECK_EQ(crystal_roll_cause(roll, 998), 999);
    parted(999, 499, 0);
    CHECK_EQ(crystal_roll_cause(roll, 998), 999);
    CHECK_EQ(crystal_roll_cause(roll, 999), 999);
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
    CHECK_RUN(strangers_are_no_cause);
    CHECK_RUN(what_is_no_record_ends_it);
    CHECK_RUN(many_records);
    snprintf(path, sizeof path, "%s/roll", directory);
    unlink(path);
    rmdir(directory);
    return check_end();
}
