/* The options inside a batch script. sbatch reads them behind its command line and lets
 * plugins see neither; what they say about the job's shape counts for us, too.
 */
#ifndef CRYSTAL_SPANK_BATCH_SCRIPT_H
#define CRYSTAL_SPANK_BATCH_SCRIPT_H

#include "spank/argv.h"

/* Appends the words of the #SBATCH lines of the script at path, NULL = standard input
 * (a file: it is read without moving its offset). Those behind the first command do not
 * count, as for sbatch. What cannot be read has none. */
void crystal_batch_script_options(const char *path, struct crystal_argv *out);

#endif
