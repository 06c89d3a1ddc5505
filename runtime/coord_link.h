/* The coordinator's end of one client connection: framing of messages over a
 * non-blocking socket in an event loop. What messages mean is the owner's business.
 */
#ifndef CRYSTAL_COORD_LINK_H
#define CRYSTAL_COORD_LINK_H

#include "runtime/blob.h"
#include "runtime/error.h"
#include "runtime/loop.h"
#include "runtime/message.h"

struct crystal_link;

struct crystal_link_hooks {
    void *context;
    /* A complete message. body is borrowed (take a reference to keep it). Negative: the
     * link is closed. */
    int (*message)(void *context, struct crystal_link *link,
                   const struct crystal_message_head *head, struct crystal_blob *body);
    /* The link is gone, by either side; the owner destroys it from here. */
    void (*closed)(void *context, struct crystal_link *link);
};

/* Owns fd, also on failure. body_max: larger bodies close the link; a stranger gets a
 * small one until it has shown who it is. */
struct crystal_link *crystal_link_create(struct crystal_loop *loop, int fd,
                                         size_t body_max,
                                         const struct crystal_link_hooks *hooks,
                                         struct crystal_error *err);
/* Not from the message hook. NULL is fine. */
void crystal_link_destroy(struct crystal_link *link);
void crystal_link_body_max(struct crystal_link *link, size_t body_max);

/* Queues a message: the bytes, then the slices (references are taken). A link that
 * cannot take it is closed (by the loop, later). */
void crystal_link_send(struct crystal_link *link, unsigned type, uint32_t request,
                       const void *bytes, size_t count);
void crystal_link_send_results(struct crystal_link *link, uint32_t request,
                               const struct crystal_slice *results, uint32_t count);
/* No more messages are read; the link closes when what was queued is sent. */
void crystal_link_end(struct crystal_link *link);
/* 1 = nothing is queued. */
int crystal_link_is_flushed(const struct crystal_link *link);

/* The socket, for its addresses; the link's. */
int crystal_link_fd(const struct crystal_link *link);
/* The owner's pointer. */
void crystal_link_set_owner(struct crystal_link *link, void *owner);
void *crystal_link_owner(const struct crystal_link *link);

#endif
