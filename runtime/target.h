/* What a sandbox's NCCL is, and what it is shown of the target's machine: the sections
 * nccl, gpu and nic of crystal.yaml, as layout.yaml keeps them for later stages, and
 * the environment variables that they become for the sandbox ranks.
 */
#ifndef CRYSTAL_TARGET_H
#define CRYSTAL_TARGET_H

#include "runtime/error.h"

#include <stdint.h>
#include <stdio.h>

#define CRYSTAL_NICS_MAX 32

struct crystal_yaml_map;

struct crystal_target {
    uint32_t nccl_version; /* NCCL_VERSION_CODE; 0: the newest tested */
    int nccl_untested;     /* versions whose messages were only read are taken, too */
    int gpu_buffers;       /* NCCL's network buffers are on the GPU */
    int is_valueless;      /* no contents of virtual ranks' floating-point messages */
    uint32_t nic_count;    /* NICs of a node that a rank sees, 1 .. CRYSTAL_NICS_MAX */
    char *nic_pci;         /* PCI addresses with commas; NULL: none; owned */
    char *topology;        /* NCCL's topology file; NULL: none; owned */
    char *backend;         /* net plugin between real ranks; NULL: TCP; owned */
};

/* PCI addresses (0000:18:00.0) with commas: how many there are, -EINVAL where one is
 * none. */
int crystal_target_pci_count(const char *text);
/* "2.28.9" -> 22809; "newest" -> 0. 0 or -EINVAL. */
int crystal_target_version_parse(const char *text, uint32_t *ret);
/* Sections of layout.yaml: prints what is not the default; reads the same. */
void crystal_target_print(const struct crystal_target *target, FILE *out,
                          void (*print_quoted)(FILE *out, const char *text));
int crystal_target_read(const struct crystal_yaml_map *map, const char *path,
                        struct crystal_target *ret, struct crystal_error *err);
/* Calls add with each NAME=VALUE that a sandbox rank needs; strings are the call's. */
void crystal_target_each_env(const struct crystal_target *target,
                             void (*add)(void *context, const char *assignment),
                             void *context);
/* 0 or -ENOMEM. */
int crystal_target_copy(const struct crystal_target *target,
                        struct crystal_target *ret);
void crystal_target_fini(struct crystal_target *target);

#endif
