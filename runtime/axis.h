/* Round numbers along an axis of a drawing: 0, step, 2 * step, ... up to span. The step
 * is 1, 2 or 5 times a power of ten. Pure, thread-safe.
 */
#ifndef CRYSTAL_AXIS_H
#define CRYSTAL_AXIS_H

struct crystal_axis {
    double step;
    unsigned count;     /* of steps that fit: the last tick is count * step */
    int decimal_places; /* with which all ticks are exact */
};

/* At most `most` steps (at least 1) over a span greater than 0. */
struct crystal_axis crystal_axis_of(double span, unsigned most);

#endif
