/* Whose a job directory is from the moment its layout is written: the layout is written
 * before the coordinator serves it, by another process and maybe on another node, and
 * the lock is not held in between. So the layout leaves the words of whoever asked for
 * it (srun) in DIR/claim, and a coordinator that was started with other words refuses;
 * it repeats them in DIR/coord, so that nobody takes another one's coordinator for its
 * own.
 */
#ifndef CRYSTAL_CLAIM_H
#define CRYSTAL_CLAIM_H

#include <stdbool.h>

#define CRYSTAL_CLAIM_BYTES 128

/* This process in this job of Slurm: "JOB.HOST.PID". */
void crystal_claim_own(char text[CRYSTAL_CLAIM_BYTES]);

/* Whether the coordinator of this file (DIR/coord) was started with these words. */
bool crystal_claim_has(const char *coord_file, const char *text);

#endif
