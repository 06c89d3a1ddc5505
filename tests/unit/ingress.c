/* The receiving side of a NIC against one that gives out every nanosecond by itself. */
#include "config.h"

#include "runtime/ingress.h"

#include "tests/check.h"

#define SPACE 4000U

static void by_hand(void)
{
    struct crystal_ingress in = {0};

    CHECK_EQ(crystal_ingress_take(&in, 1000, 100), 1100);
    CHECK_EQ(crystal_ingress_take(&in, 1000, 100), 1200); /* behind it */
    CHECK_EQ(crystal_ingress_take(&in, 5000, 100), 5100); /* a late one */
    CHECK_EQ(crystal_ingress_take(&in, 1500, 100), 1600); /* does not hold up others */
    CHECK_EQ(crystal_ingress_take(&in, 4950, 100), 5150); /* in two pieces */
    CHECK_EQ(crystal_ingress_take(&in, 900, 100), 1000);  /* just fits */
    CHECK_EQ(crystal_ingress_take(&in, 900, 50), 1250);
    CHECK_EQ(crystal_ingress_take(&in, 7, 0), 7);
    CHECK_EQ(in.count, 3); /* 900 to 1250, 1500 to 1600, 4950 to 5150 */
}

static void at_random(void)
{
    struct crystal_ingress in = {0};
    static unsigned char taken[16 * SPACE];
    uint32_t state = 12345;
    unsigned wrong = 0;

    for (unsigned i = 0; i < 200; i++) {
        uint64_t ready, left, at;

        state = state * 1664525U + 1013904223U;
        ready = (state >> 8) % SPACE;
        left = (state >> 20) % 40;
        at = ready;
        for (uint64_t rest = left; rest; at++)
            if (!taken[at]) {
                taken[at] = 1;
                rest--;
            }
        wrong += crystal_ingress_take(&in, ready, left) != at;
    }
    CHECK_EQ(wrong, 0);
    CHECK(in.count <= CRYSTAL_INGRESS_SPANS);
}

/* More spans than are kept: the oldest are forgotten, new ones are right. */
static void many_spans(void)
{
    struct crystal_ingress in = {0};

    for (uint64_t i = 0; i < 1000; i++)
        CHECK_EQ(crystal_ingress_take(&in, 100 * i, 10), 100 * i + 10);
    CHECK_EQ(in.count, CRYSTAL_INGRESS_SPANS);
    CHECK_EQ(crystal_ingress_take(&in, 99895, 10), 99915);
    CHECK_EQ(crystal_ingress_take(&in, 5, 10), 15);
}

int main(void)
{
    check_begin();
    CHECK_RUN(by_hand);
    CHECK_RUN(at_random);
    CHECK_RUN(many_spans);
    return check_end();
}
