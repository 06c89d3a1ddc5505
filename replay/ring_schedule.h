/* The ring's schedule moved to runtime/, where the timeline counts by it, too. */
#ifndef CRYSTAL_REPLAY_RING_SCHEDULE_H
#define CRYSTAL_REPLAY_RING_SCHEDULE_H

#include "runtime/ring_schedule.h"

#endif
