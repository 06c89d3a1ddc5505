"""What a ring all-reduce takes by the wire's arithmetic.

usage: ring_time.py N BYTES_PER_S LATENCY_NS < LINES, prints for each line "BYTES US" the
error of US (end costs already taken off) in percent and in microseconds.

All N ranks do the same at the same time: one channel of NCCL's Simple protocol, chunks of
at most 2 MiB in two slices. A rank's NIC sends one message after the other (bytes over
bandwidth each), a message arrives latency later, and what a rank sends at a step is what
it received at the step before.
"""

import sys

CHUNK = 2 << 20
ELEMENT = 4
LEAST_SLICE = (512 << 10) * 2 // 32  # NCCL's prims_simple.h, bytes


def ring_ns(n, size, bytes_per_s, latency_ns):
    """From the first message's start to the last one's arrival."""
    began = nic = end = 0.0
    while size > 0:
        chunk = min(CHUNK, -(-size // n))
        size -= n * chunk
        first = min(chunk, max(-(-chunk // 2), LEAST_SLICE))
        received = [began, began]  # when what each slice's next message needs is there
        for _ in range(2 * (n - 1)):
            for s, length in enumerate((first, chunk - first)):
                nic = max(nic, received[s]) + length / bytes_per_s * 1e9
                received[s] = nic + latency_ns
        began = end = max(received)
    return end


def main():
    n, bytes_per_s, latency_ns = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    for line in sys.stdin:
        size, us = line.split()
        expected = ring_ns(n, int(size), bytes_per_s, latency_ns) / 1e3
        error = float(us) - expected
        print("%s %.2f %.1f %.1f" % (size, error / expected * 100, error, expected))


main()
