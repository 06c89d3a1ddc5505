/* The coordinator of one job: the store, the agents' stages, capture's exchange, ids of
 * communicators whose root does not run, and the end of the job. One thread, one event
 * loop for everything; see message.h for what clients say.
 *
 * It holds the job's lock from create to destroy, and writes DIR/token and DIR/coord
 * when it listens; both go away with it. Where plan runs on several nodes, each has
 * another coordinator for the slices that it measures, with files DIR/token.NODE and
 * DIR/coord.NODE, below the job's.
 */
#ifndef CRYSTAL_COORD_H
#define CRYSTAL_COORD_H

#include "runtime/error.h"
#include "runtime/jobdir.h"
#include "runtime/layout.h"

#include <stdint.h>

struct crystal_coord;

struct crystal_coord_config {
    struct crystal_jobdir *dir;          /* locked; borrowed until destroy */
    const char *suffix;                  /* of its files' names; NULL = none */
    const struct crystal_layout *layout; /* borrowed until destroy */
    uint16_t port;                       /* 0 = any */
    uint16_t store_port;                 /* MASTER_PORT; 0 = any */
    const char *host; /* name or address under which clients find us; NULL = loopback */
    const char
        *allow; /* hosts beside this one that may connect, with commas; or NULL */
    const char *claim; /* of DIR/coord (claim.h); NULL = none */
    uint64_t hang_ns;  /* capture: how long a rank may keep others waiting without using
                          the CPU; 0 = CRYSTAL_HANG_SECONDS, else ten minutes */
    uint64_t nodes_ns; /* from the first agent of several nodes to the last; 0 = 60 s */
    int handle_signals; /* SIGTERM, SIGINT and SIGHUP end run with -EINTR */
    /* Called at the end of a job that has emulated; may be NULL. */
    int (*report)(const char *job_dir, struct crystal_error *err);
};

/* NULL on failure. */
struct crystal_coord *crystal_coord_create(const struct crystal_coord_config *config,
                                           struct crystal_error *err);
uint16_t crystal_coord_store_port(const struct crystal_coord *coord);
/* Serves until a control client says FINISH (0), a signal (-EINTR; the clients were
 * told to stop), or an error of its own. */
int crystal_coord_run(struct crystal_coord *coord, struct crystal_error *err);
/* Removes DIR/coord and DIR/token. NULL is fine. */
void crystal_coord_destroy(struct crystal_coord *coord);

/* From CRYSTAL_HANG_SECONDS; NULL or no number: the default. */
uint64_t crystal_coord_hang_ns(const char *seconds);

#endif
