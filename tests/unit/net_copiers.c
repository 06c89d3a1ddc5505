/* Copying threads: every byte, whatever the size, from several callers at once. */
#include "config.h"

#include "replay/net_copiers.h"

#include "tests/check.h"

#include <pthread.h>

#define CALLERS 3
#define COPIES  400 /* of each caller, more than have room at once */

static struct crystal_copiers *copiers; /* of kept: the one that is tested */
static struct crystal_copiers *kept[2];

static unsigned char byte_at(uint64_t copy, uint64_t i)
{
    return (unsigned char)(copy * 89 + i * 7 + (i >> 16));
}

struct caller {
    uint64_t number, wrong;
};

static void *caller_main(void *argument)
{
    static const uint64_t sizes[] = {0, 1, 65535, 65536, 65537, 200000, 3};
    struct caller *caller = argument;
    uint64_t tickets[COPIES], bytes[COPIES];
    unsigned char *from[COPIES], *to[COPIES];

    for (uint64_t i = 0; i < COPIES; i++) {
        bytes[i] = sizes[(i + caller->number) % 7];
        from[i] = malloc(bytes[i] + 1);
        to[i] = calloc(1, bytes[i] + 1);
        for (uint64_t k = 0; k < bytes[i]; k++)
            from[i][k] = byte_at(i + caller->number, k);
        to[i][bytes[i]] = 'e';
        tickets[i] = crystal_copiers_copy(copiers, to[i], from[i], bytes[i]);
    }
    for (uint64_t i = COPIES; i-- > 0;) { /* the last one first */
        while (!crystal_copiers_is_done(copiers, tickets[i]))
            ;
        caller->wrong += to[i][bytes[i]] != 'e';
        for (uint64_t k = 0; k < bytes[i]; k++)
            caller->wrong += to[i][k] != byte_at(i + caller->number, k);
        free(from[i]);
        free(to[i]);
    }
    return NULL;
}

static void copies_all(void)
{
    struct caller callers[CALLERS] = {{0, 0}};
    pthread_t threads[CALLERS];

    for (unsigned count = 0; count <= 2; count += 2) {
        copiers = kept[count / 2] = crystal_copiers_create(count);
        CHECK(copiers != NULL);
        for (uint64_t i = 0; i < CALLERS; i++) {
            callers[i] = (struct caller){i, 0};
            CHECK_EQ(pthread_create(&threads[i], NULL, caller_main, &callers[i]), 0);
        }
        for (unsigned i = 0; i < CALLERS; i++) {
            CHECK_EQ(pthread_join(threads[i], NULL), 0);
            CHECK_EQ(callers[i].wrong, 0);
        }
    }
}

static void counts_few(void)
{
    CHECK(crystal_copiers_count() <= 4);
}

int main(void)
{
    check_begin();
    CHECK_RUN(copies_all);
    CHECK_RUN(counts_few);
    return check_end();
}
