/* What a ring all-reduce of floats takes by the wire's arithmetic.
 *
 * usage: ring_time N CHANNELS BYTES_PER_S LATENCY_NS < LINES, prints for each line
 * "BYTES US" the error of US (end costs already taken off) in percent and in
 * microseconds, and what is right: "BYTES PERCENT US RIGHT_US".
 *
 * All N ranks do the same at the same time, with the Simple protocol and the messages
 * that ring_schedule.h tells. A rank has one NIC, which all its channels share: it
 * sends one message after the other (bytes over bandwidth each), the one that was ready
 * first before others; a message arrives latency later. A channel's messages leave in
 * order. Those of a loop's first step are ready when all of the loop before has been
 * received, every other one when what the rank received one step before is there, which
 * is what its neighbour sent then. Nothing is added for software or for the GPU's own
 * work. NCCL gives a channel at least 32 KiB (512 threads, 64 bytes each).
 */
#include "config.h"

#include "runtime/ring_schedule.h"

#include <stdio.h>
#include <stdlib.h>

#define CHANNELS_MOST 64
#define CHANNEL_BYTES 32768U

struct channel {
    struct crystal_ring_op op;
    uint64_t index, count, per_loop;
    double received[2]; /* of the last message of each slice */
    double loop_end;
};

struct wire {
    double bytes_per_s, latency_ns, nic_free_ns;
};

static double ready_ns(const struct channel *c)
{
    if (c->index % c->per_loop < crystal_ring_slices(&c->op))
        return c->loop_end;
    return c->received[c->index % crystal_ring_slices(&c->op)];
}

static void send_one(struct channel *c, struct wire *wire)
{
    double at = ready_ns(c) > wire->nic_free_ns ? ready_ns(c) : wire->nic_free_ns;
    struct crystal_ring_message m;

    crystal_ring_message(&c->op, 0, 1, c->index, &m);
    wire->nic_free_ns = at + 4.0 * m.elts / wire->bytes_per_s * 1e9;
    c->received[c->index % crystal_ring_slices(&c->op)] =
        wire->nic_free_ns + wire->latency_ns;
    if (++c->index % c->per_loop == 0)
        c->loop_end = c->received[0] > c->received[1] ? c->received[0] : c->received[1];
}

/* From the first message's start to the last one's arrival. */
static double ring_ns(uint32_t n, uint32_t most, uint64_t bytes, struct wire wire)
{
    static struct channel channels[CHANNELS_MOST];
    uint64_t count = bytes / CHANNEL_BYTES;
    double end = 0;

    if (count < 1)
        count = 1;
    if (count > most)
        count = most;
    for (uint32_t i = 0; i < count; i++) {
        channels[i] = (struct channel){.op = {.func = CRYSTAL_FUNC_ALLREDUCE,
                                              .nranks = n,
                                              .count = bytes / 4,
                                              .elt_bytes = 4,
                                              .channel_count = (uint32_t)count,
                                              .channel = i}};
        channels[i].count = crystal_ring_message_count(&channels[i].op, 0, 1);
        channels[i].per_loop =
            2 * (uint64_t)(n - 1) * crystal_ring_slices(&channels[i].op);
    }
    for (;;) {
        struct channel *next = NULL;

        for (uint32_t i = 0; i < count; i++)
            if (channels[i].index < channels[i].count &&
                (!next || ready_ns(&channels[i]) < ready_ns(next)))
                next = &channels[i];
        if (!next)
            break;
        send_one(next, &wire);
        end = next->loop_end > end ? next->loop_end : end;
    }
    return end;
}

int main(int argc, char **argv)
{
    struct wire wire = {0};
    int n = argc == 5 ? atoi(argv[1]) : 0, channels = argc == 5 ? atoi(argv[2]) : 0;
    double bytes, us, right_us;

    if (n < 2 || channels < 1 || channels > CHANNELS_MOST)
        return 2;
    wire.bytes_per_s = atof(argv[3]);
    wire.latency_ns = atof(argv[4]);
    while (scanf("%lf %lf", &bytes, &us) == 2) {
        right_us =
            ring_ns((uint32_t)n, (uint32_t)channels, (uint64_t)bytes, wire) / 1e3;
        printf("%.0f %.2f %.1f %.1f\n", bytes, (us - right_us) / right_us * 100,
               us - right_us, right_us);
    }
    return 0;
}
