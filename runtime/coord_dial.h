/* The first words of a client with the coordinator: finding it, connecting, HELLO. */
#ifndef CRYSTAL_COORD_DIAL_H
#define CRYSTAL_COORD_DIAL_H

#include "runtime/error.h"
#include "runtime/message.h"

#include <stdbool.h>
#include <stdint.h>

/* The job's token, from its file of hexadecimal digits. */
int crystal_token_read(const char *path, uint8_t token[CRYSTAL_TOKEN_BYTES],
                       struct crystal_error *err);

/* Whether two tokens are the same, in the same time for any. */
bool crystal_token_is(const uint8_t token[CRYSTAL_TOKEN_BYTES],
                      const uint8_t other[CRYSTAL_TOKEN_BYTES]);

/* As crystal_client_open. ret_welcome may be NULL; *ret_fd is a blocking socket behind
 * WELCOME, the caller's to close. */
int crystal_coord_dial(const char *coord_file, const char *token_file,
                       enum crystal_role role, uint32_t lrank,
                       struct crystal_msg_welcome *ret_welcome, int *ret_fd,
                       struct crystal_error *err);

#endif
