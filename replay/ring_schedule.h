/* The ring's schedule moved to runtime/, where the timeline counts by it, too. */
#include "runtime/ring_schedule.h"
