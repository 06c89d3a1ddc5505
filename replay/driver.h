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
struct crystal_links;

struct crystal_driver_config {
    struct crystal_board *board; /* borrowed until destroy, as layout and links */
    const struct crystal_layout *layout;
    struct crystal_links *links; /* NULL: this node has the whole sandbox */
    const char *graph_path;
    const char *profile_path; /* NULL: every virtual rank has always arrived */
};

/* Starts the thread. NULL on failure. */
struct crystal_driver *crystal_driver_create(const struct crystal_driver_config *config,
                                             struct crystal_error *err);
/* A message of another node's driver: CRYSTAL_LINK_ARRIVAL and the like. Any thread.
 * -EBADMSG where it is none. */
int crystal_driver_far(struct crystal_driver *driver, unsigned type, const void *body,
                       uint32_t bytes);
void crystal_driver_destroy(struct crystal_driver *driver);

#endif
