/* See axis.h. */
#include "config.h"

#include "runtime/axis.h"

#include <math.h>

struct crystal_axis crystal_axis_of(double span, unsigned most)
{
    static const double steps[] = {1, 2, 5, 10};
    double least = span / most, power = floor(log10(least));
    struct crystal_axis axis;
    int i = 0;

    /* rounding may leave a step just below least: one tick more is no harm */
    while (i < 3 && steps[i] * pow(10, power) < least * (1 - 1e-9))
        i++;
    if (i == 3)
        power += 1;
    axis.step = (i == 3 ? 1 : steps[i]) * pow(10, power);
    axis.count = (unsigned)floor(span / axis.step * (1 + 1e-9));
    axis.decimal_places = power < 0 ? (int)-power : 0;
    return axis;
}
