/* A layout for people: as YAML, or as a drawing of the sandbox node. */
#ifndef CRYSTAL_LAYOUT_PRINT_H
#define CRYSTAL_LAYOUT_PRINT_H

#include "runtime/error.h"
#include "runtime/layout.h"

/* On standard output. topology: an hwloc XML file, NULL = this machine. 0 or negative
 * errno. */
int layout_print(const struct crystal_layout *layout, const char *topology,
                 struct crystal_error *err);
int layout_draw(const struct crystal_layout *layout, const char *topology,
                struct crystal_error *err);

#endif
