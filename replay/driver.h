/* The timeline's node part in emulate: a thread that reads the sandbox's arrivals from
 * the board, advances the virtual ranks through the graph with the profile's durations,
 * and publishes their arrivals before the sandbox needs them.
 */
#ifndef CRYSTAL_DRIVER_H
#define CRYSTAL_DRIVER_H

#include "replay/board.h"
#include "runtime/error.h"
#include "runtime/layout.h"

struct crystal_driver;

/* Starts the thread. board and layout are borrowed until destroy. profile_path may be
 * NULL: every virtual rank has always arrived. NULL on failure. */
struct crystal_driver *crystal_driver_create(struct crystal_board *board,
                                             const struct crystal_layout *layout,
                                             const char *graph_path,
                                             const char *profile_path,
                                             struct crystal_error *err);
void crystal_driver_destroy(struct crystal_driver *driver);

#endif
