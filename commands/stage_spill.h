/* Where capture puts contents of messages, which may be far larger than everything else
 * of a job: in the job directory, or in the spill_dir of crystal.yaml, behind the link
 * ranks/spill (runtime/payload.h). The directory stays as long as the job directory is
 * used: a graph is made of both.
 */
#ifndef CRYSTAL_STAGE_SPILL_H
#define CRYSTAL_STAGE_SPILL_H

#include "commands/stage.h"

#include "runtime/error.h"

/* Makes layout's spill directory (0700, and what is missing above it), where there is
 * one, checks whose it is and that it takes data, and lets ranks/spill lead there; else
 * removes that link. ranks is there. */
int stage_spill_open(const struct stage *stage, struct crystal_error *err);

#endif
