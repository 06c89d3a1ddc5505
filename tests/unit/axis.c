/* Ticks of axes: round, not too many, up to the end. */
#include "config.h"

#include "runtime/axis.h"

#include "tests/check.h"

static void is(double span, unsigned most, double step, unsigned count, int places)
{
    struct crystal_axis a = crystal_axis_of(span, most);

    CHECK(a.step > step * (1 - 1e-9) && a.step < step * (1 + 1e-9));
    CHECK_EQ(a.count, count);
    CHECK_EQ(a.decimal_places, places);
}

static void ticks_are_round(void)
{
    is(15.67, 10, 2, 7, 0);
    is(0.563, 10, 0.1, 5, 1);
    is(100, 10, 10, 10, 0);
    is(101, 10, 20, 5, 0);
    is(20, 10, 2, 10, 0);
    is(21, 10, 5, 4, 0);
    is(0.0004, 10, 0.00005, 8, 5);
    is(2.5e12, 10, 5e11, 5, 0);
}

int main(void)
{
    check_begin();
    CHECK_RUN(ticks_are_round);
    return check_end();
}
