/* Which stages of a job are to run: those asked for less those whose output is current.
 */
#ifndef CRYSTAL_LAYOUT_STAGES_H
#define CRYSTAL_LAYOUT_STAGES_H

#include "runtime/error.h"
#include "runtime/layout.h"

#include <stddef.h>

struct layout_stages {
    const char *asked; /* "capture,emulate"; NULL = all */
    const char *dir;   /* the job directory; NULL: it is not known yet, nothing is
                          current and nothing is missing */
    int needs_capture; /* a stage without the ones before it is an error */
};

/* Writes "plan,emulate" into out, which may be empty, and what the user should know
 * into notice. 0 or negative errno. */
int layout_stages(const struct layout_stages *stages, const struct crystal_layout *l,
                  char *out, size_t out_bytes, char *notice, size_t notice_bytes,
                  struct crystal_error *err);

#endif
