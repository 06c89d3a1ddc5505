/* What the environment tells the net plugin. All return 0, or -EINVAL and a sentence
 * that names the variable (-ENODEV where there is no such device).
 */
#ifndef CRYSTAL_NET_ENVIRONMENT_H
#define CRYSTAL_NET_ENVIRONMENT_H

#include "replay/net.h"

/* CRYSTAL_LRANK: this process's logical rank; UINT32_MAX where it is not set. */
int crystal_net_read_lrank(uint32_t *ret, struct crystal_error *err);
/* CRYSTAL_WIRE: "BYTES_PER_S,LATENCY_NS"; zeros where it is not set. */
int crystal_net_read_wire(struct crystal_wire *wire, struct crystal_error *err);
/* Whether the variable has the value choice, and not other, as where it is not set. */
int crystal_net_read_choice(const char *name, const char *choice, const char *other,
                            int *ret, struct crystal_error *err);
/* CRYSTAL_NICS: 1 to CRYSTAL_NICS_MAX. */
int crystal_net_read_nics(unsigned *ret, struct crystal_error *err);
/* CRYSTAL_NIC_PCI: where the NICs are in sysfs; each is the caller's to free, also on
 * failure; left as they were where it is not set. */
int crystal_net_read_pci(char *paths[CRYSTAL_NICS_MAX], unsigned count,
                         struct crystal_error *err);
/* CRYSTAL_COPIERS: threads that copy, 0 to CRYSTAL_COPIERS_MOST. */
int crystal_net_read_copiers(unsigned *ret, struct crystal_error *err);

#endif
