/* The program of a layout: what it may be, and by what a capture of it is known again.
 */
#ifndef CRYSTAL_LAYOUT_PROGRAM_H
#define CRYSTAL_LAYOUT_PROGRAM_H

#include "runtime/layout.h"

#include <stdint.h>

/* program, ended by NULL, or NULL: it must be a rank itself, no launcher, and all its
 * arguments what layout.yaml can hold. Negative errno with the sentence. */
int crystal_layout_program_check(char *const *program, struct crystal_error *err);

/* Sets l->program; -ENOMEM leaves what crystal_layout_fini frees. */
int crystal_layout_program_copy(struct crystal_layout *l, char **argv);

/* Of program, arguments, the contents of arguments that are files, and the options that
 * decide what a capture holds; parallel is the grid as it was given, or NULL. Never 0.
 */
uint64_t crystal_layout_fingerprint(const struct crystal_layout *l,
                                    const char *parallel);

#endif
