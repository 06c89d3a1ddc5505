/* The machine that a sandbox node is: processes of the sandbox placed on its GPUs,
 * NICs, NUMA nodes and cores, through hwloc (the running machine or an XML file).
 */
#ifndef CRYSTAL_TOPOLOGY_H
#define CRYSTAL_TOPOLOGY_H

#include "runtime/error.h"

#include <stdint.h>

#define CRYSTAL_TOPOLOGY_NAME 32

struct crystal_place {
    char gpu[CRYSTAL_TOPOLOGY_NAME]; /* PCI address "0000:1b:00.0"; empty = none */
    char nic[CRYSTAL_TOPOLOGY_NAME]; /* OS name "mlx5_0"; empty = none */
    char nic_distance[8]; /* PIX one switch, PXB several, PHB one root, NODE, SYS */
    uint32_t numa;        /* logical index */
    char cpus[256];       /* CPU list "0-15,64-79" */
};

/* Places for `count` processes, in order: process i gets GPU i modulo the GPUs, the NIC
 * nearest to it by PCI distance (InfiniBand and RoCE only, where there are any; of
 * equals the one given least often), the GPU's NUMA node and an equal share of that
 * node's cores; without GPUs the NUMA nodes take turns. xml_path NULL = this machine.
 * Caller frees *ret. */
int crystal_topology_place(const char *xml_path, uint32_t count,
                           struct crystal_place **ret, struct crystal_error *err);

#endif
