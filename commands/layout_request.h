/* What `scrystal layout --request` prints for the plugin: the seam that
 * doc/architecture.md describes. */
#ifndef CRYSTAL_LAYOUT_REQUEST_H
#define CRYSTAL_LAYOUT_REQUEST_H

#include "runtime/conf.h"
#include "runtime/layout.h"

/* dir is absolute; run_stages as capture,plan,emulate; empty notices are left out. */
void layout_request(const struct crystal_layout *l, const struct crystal_conf *conf,
                    const char *dir, const char *run_stages,
                    const char *const notices[2]);

#endif
