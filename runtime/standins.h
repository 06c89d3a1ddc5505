/* What the user is told at the end of a run in which virtual ranks' data were not real.
 */
#ifndef CRYSTAL_STANDINS_H
#define CRYSTAL_STANDINS_H

#include <stddef.h>

/* 1: operations of the run that DIR/report.json is about met stand-ins, and text is the
 * sentence; 0: none did, or that is not known. prefix: of the options' names,
 * "crystal-" for srun's, "" for scrystal layout's. */
int crystal_standins_text(const char *job_dir, const char *prefix, char *text,
                          size_t text_bytes);

#endif
