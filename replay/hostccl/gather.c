/* The ring's all-gather, in both directions at once.
 *
 * In step s < n/2 rank r sends to its next the slice of r-s and to its previous that of
 * r+s, and receives from its previous that of r-s-1 and from its next that of r+s+1;
 * for even n the last step goes to the next only. A frame is a size and the slice.
 *
 * So there are four streams of frames, two per socket. A frame can go out as soon as
 * its slice is known; its size word goes as early as possible, because neighbours that
 * exchange all sizes of a step before any slice wait for it. Not a byte is read beyond
 * the last frame: what follows belongs to the next all-gather.
 */
#include "config.h"

#include "replay/hostccl/gather.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define SIZE_BYTES     4U
#define READ_BYTES     (128U << 10)
#define FRAMES_AT_ONCE 64
#define ABORT_POLL_MS  100

struct gather {
    uint32_t nranks, crank, bytes;
    char *slices;
    const atomic_bool *abort;
};

struct stream {
    int fd;
    uint32_t frame_count;
    uint32_t frame;   /* complete ones */
    uint32_t at;      /* bytes of the present one, its size word included */
    uint32_t start;   /* crank whose slice is frame 0 */
    bool is_downward; /* frame f is start - f, else start + f */
    uint32_t size;    /* read: the size word being read */
};

static char *slice_of(const struct gather *g, const struct stream *s, uint32_t frame)
{
    uint32_t n = g->nranks;
    uint32_t crank =
        s->is_downward ? (s->start + n - frame) % n : (s->start + frame) % n;

    return g->slices + (size_t)crank * g->bytes;
}

static bool is_done(const struct stream *s)
{
    return s->frame == s->frame_count;
}

/* May s write something now? known: frames whose slices are there. */
static bool can_write(const struct stream *s, uint32_t known)
{
    return !is_done(s) && (s->frame < known || s->at < SIZE_BYTES);
}

/* Writes what can be written without waiting. */
static int write_frames(struct gather *g, struct stream *s, uint32_t known,
                        struct crystal_error *err)
{
    const uint32_t whole = SIZE_BYTES + g->bytes;

    while (can_write(s, known)) {
        struct iovec parts[2 * FRAMES_AT_ONCE];
        struct msghdr m = {.msg_iov = parts};
        uint32_t skip = s->at;
        ssize_t n;
        uint64_t at;

        for (uint32_t f = s->frame;
             f < s->frame_count && f <= known && f < s->frame + FRAMES_AT_ONCE; f++) {
            if (skip < SIZE_BYTES)
                parts[m.msg_iovlen++] =
                    (struct iovec){(char *)&g->bytes + skip, SIZE_BYTES - skip};
            if (f < known) {
                uint32_t from = skip > SIZE_BYTES ? skip - SIZE_BYTES : 0;

                parts[m.msg_iovlen++] =
                    (struct iovec){slice_of(g, s, f) + from, g->bytes - from};
            }
            skip = 0;
        }
        n = sendmsg(s->fd, &m, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EINTR)
                continue;
            if (errno == EAGAIN)
                return 0;
            return crystal_error_set(err, errno, "a neighbour in the ring: %s",
                                     strerror(errno));
        }
        at = s->at + (uint64_t)n;
        s->frame += (uint32_t)(at / whole);
        s->at = (uint32_t)(at % whole);
    }
    return 0;
}

/* Puts what was read where it belongs. */
static int place(struct gather *g, struct stream *s, const char *in, size_t count,
                 struct crystal_error *err)
{
    const uint32_t whole = SIZE_BYTES + g->bytes;

    while (count) {
        size_t n;

        if (s->at < SIZE_BYTES) {
            n = SIZE_BYTES - s->at < count ? SIZE_BYTES - s->at : count;
            memcpy((char *)&s->size + s->at, in, n);
            if (s->at + n == SIZE_BYTES && s->size != g->bytes)
                return crystal_error_set(
                    err, EPROTO,
                    "a neighbour in the ring has %u bytes per rank; all ranks must "
                    "speak NCCL 2.28's bootstrap",
                    s->size);
        } else {
            n = whole - s->at < count ? whole - s->at : count;
            memcpy(slice_of(g, s, s->frame) + (s->at - SIZE_BYTES), in, n);
        }
        s->at += (uint32_t)n;
        in += n;
        count -= n;
        if (s->at == whole) {
            s->at = 0;
            s->frame++;
        }
    }
    return 0;
}

static int read_frames(struct gather *g, struct stream *s, char *buffer,
                       struct crystal_error *err)
{
    while (!is_done(s)) {
        uint64_t left =
            (uint64_t)(s->frame_count - s->frame) * (SIZE_BYTES + g->bytes) - s->at;
        ssize_t n = recv(s->fd, buffer, left < READ_BYTES ? left : READ_BYTES, 0);
        int result;

        if (n == 0)
            return crystal_error_set(err, ECONNRESET, "a neighbour in the ring left");
        if (n < 0) {
            if (errno == EINTR)
                continue;
            if (errno == EAGAIN)
                return 0;
            return crystal_error_set(err, errno, "a neighbour in the ring: %s",
                                     strerror(errno));
        }
        result = place(g, s, buffer, (size_t)n, err);
        if (result)
            return result;
    }
    return 0;
}

static int run(struct gather *g, struct stream *out_next, struct stream *in_prev,
               struct stream *out_prev, struct stream *in_next, char *buffer,
               struct crystal_error *err)
{
    for (;;) {
        struct pollfd fds[2] = {{.fd = out_next->fd}, {.fd = out_prev->fd}};
        int result;

        if ((result = read_frames(g, in_prev, buffer, err)) ||
            (result = read_frames(g, in_next, buffer, err)) ||
            (result = write_frames(g, out_next, in_prev->frame + 1, err)) ||
            (result = write_frames(g, out_prev, in_next->frame + 1, err)))
            return result;
        if (is_done(out_next) && is_done(in_prev) && is_done(out_prev) &&
            is_done(in_next))
            return 0;
        fds[0].events =
            (short)((is_done(in_next) ? 0 : POLLIN) |
                    (can_write(out_next, in_prev->frame + 1) ? POLLOUT : 0));
        fds[1].events =
            (short)((is_done(in_prev) ? 0 : POLLIN) |
                    (can_write(out_prev, in_next->frame + 1) ? POLLOUT : 0));
        for (int i = 0; i < 2; i++)
            if (!fds[i].events)
                fds[i].fd = -1; /* its hang-up is no news to us */
        if (poll(fds, 2, ABORT_POLL_MS) < 0 && errno != EINTR)
            return crystal_error_set(err, errno, "poll: %s", strerror(errno));
        if (g->abort && atomic_load_explicit(g->abort, memory_order_acquire))
            return crystal_error_set(err, ECANCELED, "the communicator was aborted");
    }
}

int hostccl_gather(int next_fd, int prev_fd, uint32_t nranks, uint32_t crank,
                   void *slices, uint32_t bytes, const atomic_bool *abort,
                   struct crystal_error *err)
{
    struct gather g = {nranks, crank, bytes, slices, abort};
    uint32_t up = nranks / 2, down = nranks % 2 ? up : up ? up - 1 : 0;
    struct stream out_next = {
        .fd = next_fd, .frame_count = up, .start = crank, .is_downward = true};
    struct stream in_prev = {.fd = prev_fd,
                             .frame_count = up,
                             .start = (crank + nranks - 1) % nranks,
                             .is_downward = true};
    struct stream out_prev = {.fd = prev_fd, .frame_count = down, .start = crank};
    struct stream in_next = {
        .fd = next_fd, .frame_count = down, .start = (crank + 1) % nranks};
    char *buffer = malloc(READ_BYTES);
    int result;

    if (!buffer)
        return crystal_error_set(err, ENOMEM, "out of memory");
    result = run(&g, &out_next, &in_prev, &out_prev, &in_next, buffer, err);
    free(buffer);
    return result;
}
