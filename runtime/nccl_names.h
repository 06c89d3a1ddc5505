/* Names of functions, types and reductions for people, and which of them need what. */
#ifndef CRYSTAL_NCCL_NAMES_H
#define CRYSTAL_NCCL_NAMES_H

#include "runtime/nccl_abi.h"

/* "allreduce", "send", ...; "unknown" outside enum crystal_func. */
const char *crystal_func_name(unsigned func);
/* "float32", ...; "unknown" outside ncclDataType_t. */
const char *crystal_dtype_name(unsigned dtype);
/* "sum", ..., "premulsum" for 5; "custom" above. */
const char *crystal_redop_name(unsigned redop);

/* 1 where the function has a root (broadcast, reduce, gather, scatter). */
int crystal_func_has_root(unsigned func);
/* 1 where the function reduces (reduce, reducescatter, allreduce). */
int crystal_func_reduces(unsigned func);

/* "2.28.9" of an NCCL_VERSION_CODE; text has room for CRYSTAL_NCCL_VERSION_TEXT. */
#define CRYSTAL_NCCL_VERSION_TEXT 32
const char *crystal_nccl_version_text(int version,
                                      char text[CRYSTAL_NCCL_VERSION_TEXT]);

#endif
