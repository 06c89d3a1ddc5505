"""Compares real with emulated runs for whole-node; prints rows "name value unit".

usage: compare.py steps FILE...          gpt.py's output of gpt.real.* and gpt.emulated.*
       compare.py wire N BYTES_PER_S FILE    output of sizes, all N real: do they hold it?
       compare.py sizes REAL FILE... -- FILE...   output of sizes, real and emulated
       compare.py messages FILE FILE     lists of messages of one rank, real and emulated
       compare.py memory FILE FILE       gpt.py's output, all real and emulated
       compare.py job NAME FILE          gpt.py's output
Exit code 1 where what has to be the same is not, or there is nothing to compare.
"""

import os
import re
import statistics
import sys

WARM_UP = 8  # steps that are not counted: allocation, set-up of communicators
STEP = re.compile(r"^gpt rank=0 step=(\d+) .*time_ms=([\d.]+) loss=(\S+) norm=(\S+)")
MEMORY = re.compile(r"^# memory rank=0 allocated=(\d+) reserved=(\d+) other=(\d+)")


def lines(path):
    with open(path, errors="replace") as file:
        return file.read().splitlines()


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# Targets, in percent: an iteration's time beyond the truth's own spread, and the median
# deviation of a size of at least FROM bytes.
BEYOND = 3
DEVIATION, FROM = 5, 1 << 20

STATISTICS = {"mean": statistics.mean, "p50": statistics.median,
              "p99": lambda v: percentile(v, 0.99), "max": max}


def off(a, b):
    """How much b is off a, in percent."""
    return (b - a) / a * 100


def spread(values):
    return (max(values) - min(values)) / statistics.mean(values) * 100


def steps(paths):
    sides = {"real": [], "emulated": []}
    memory = {"real": set(), "emulated": set()}
    for path in paths:
        side = os.path.basename(path).split(".")[1]
        found = [STEP.match(line) for line in lines(path)]
        times = [float(m[2]) for m in found if m and int(m[1]) >= WARM_UP]
        if times:
            sides[side].append(times)
        memory[side] |= {tuple(int(v) for v in m.groups())
                         for m in map(MEMORY.match, lines(path)) if m}
    if not sides["real"] or not sides["emulated"]:
        print("# gpt: nothing to compare")
        return False
    for side, runs in sides.items():
        print("# gpt %s: mean step of each round %s ms" % (
            side, ", ".join("%.2f" % statistics.mean(run) for run in runs)))
    for name, function in STATISTICS.items():
        real, emulated = (function([t for run in sides[side] for t in run])
                          for side in ("real", "emulated"))
        own = spread([function(run) for run in sides["real"]])
        print("gpt.%s_ms %.2f real %.2f emulated" % (name, real, emulated))
        print("gpt.%s_error_pct %.2f %% (the real rounds' own spread %.2f %%)" % (
            name, off(real, emulated), own))
        beyond = max(0, abs(off(real, emulated)) - own)
        print("gpt.%s_beyond_pct %.2f %%, beyond that spread%s" % (
            name, beyond, "" if beyond <= BEYOND else ", missed: target %g" % BEYOND))
    for at, what in enumerate(("torch_allocated", "torch_reserved", "other_of_device")):
        real, emulated = (sorted({m[at] for m in memory[side]})
                          for side in ("real", "emulated"))
        print("gpt.%s_bytes %s real %s emulated" % (
            what, "/".join(map(str, real)), "/".join(map(str, emulated))))
    return {m[:2] for m in memory["real"]} == {m[:2] for m in memory["emulated"]}


def timings(paths):
    """Median and least time by (call, bytes): the middle one of all files' medians."""
    found = {}
    for path in filter(os.path.exists, paths):  # a run that failed or was left out
        for words in map(str.split, lines(path)):
            if len(words) == 5 and words[1].isdigit():
                found.setdefault((words[0], int(words[1])), []).append(
                    (float(words[2]), float(words[3])))
    return {key: (statistics.median(v[0] for v in values), min(v[1] for v in values),
                  spread([v[0] for v in values])) for key, values in found.items()}


def sizes(words):
    real, at = words[0], words.index("--")
    truth, emulated = timings(words[1:at]), timings(words[at + 1:])
    by_size = {}
    for key in truth:
        if key not in emulated:
            continue
        deviation = off(truth[key][0], emulated[key][0])
        by_size.setdefault(key[1], []).append(deviation)
        print("sizes.%s.%s.%d %.1f real %.1f emulated us %+.1f %% (least %.1f, %.1f; own "
              "spread %.1f %%)" % (real, key[0], key[1], truth[key][0], emulated[key][0],
                                   deviation, truth[key][1], emulated[key][1],
                                   truth[key][2]))
    for size, values in sorted(by_size.items()):
        median = statistics.median(abs(v) for v in values)
        missed = size >= FROM and median > DEVIATION
        print("sizes.%s.median_error_pct.%d %.2f %%%s" % (
            real, size, median, ", missed: target %g" % DEVIATION if missed else ""))
    return bool(by_size)


# Bytes that each rank's NIC sends per byte of a call's size.
TRAFFIC = {"allreduce": lambda n: 2 * (n - 1) / n, "allgather": lambda n: (n - 1) / n,
           "reducescatter": lambda n: (n - 1) / n, "broadcast": lambda n: 1,
           "alltoall": lambda n: (n - 1) / n, "shift": lambda n: 1}
# Percent that real ranks may take longer than the wire.
HELD = float(os.environ.get("WIRE_HELD", "5"))


def wire(words):
    """Whether real ranks are as fast as the wire that paces them: if not, they are no
    truth for virtual ranks, who are."""
    n, rate = int(words[0]), float(words[1])
    over = {key: off(key[1] * TRAFFIC[key[0]](n) / rate * 1e6, median)
            for key, (median, _, _) in timings(words[2:]).items()}
    if not over:
        return False
    for (call, size), percent in sorted(over.items()):
        print("wire.%.0f.%s.%d %.1f %% longer than the wire" % (rate, call, size, percent))
    # a small transfer's software takes a part of its time, whatever the wire
    largest = max(size for _, size in over)
    held = max(percent for (_, size), percent in over.items() if size == largest)
    print("wire.over_pct %.1f %%, that real ranks take longer than a wire of %.3g GB/s" % (
        held, rate / 1e9))
    if held > HELD:
        print("# the real ranks do not hold that wire, so they are no truth for its times")
    return held <= HELD


def connections(path):
    found = {}
    for line in lines(path):
        direction, comm, peer, channel, *what = line.split()
        found.setdefault((direction, comm, peer, channel), []).append(what)
    return found


def messages(paths):
    real, emulated = (connections(path) for path in paths)
    same = different = 0
    for key in sorted(set(real) | set(emulated)):
        a, b = real.get(key, []), emulated.get(key, [])
        equal = sum(x == y for x, y in zip(a, b))
        same += equal
        different += max(len(a), len(b)) - equal
        for at in range(max(len(a), len(b))):
            if a[at:at + 1] != b[at:at + 1]:
                print("# %s: message %d is %s real, %s emulated" % (
                    " ".join(key), at, a[at:at + 1], b[at:at + 1]))
                break
    print("messages.same %d of %d, on %d connections" % (same, same + different,
                                                         len(real)))
    return same > 0 and different == 0


def memory(paths):
    """Rank 0's peak of PyTorch's to the byte, its process's part of the device to the MiB."""
    found = []
    for path in paths:
        at = [re.match(r"^# memory rank=0 allocated=(\d+) reserved=(\d+) .* process=(-?\d+)",
                       line) for line in lines(path)]
        found += [[int(v) for v in m.groups()] for m in at if m]
    if len(found) != 2:
        print("# memory: nothing to compare")
        return False
    for name, real, emulated in zip(("allocated_bytes", "reserved_bytes", "process_mib"),
                                    *found):
        print("memory.%s %d real %d emulated" % (name, real, emulated))
    return found[0] == found[1] and found[0][2] > 0


def job(words):
    name, path = words
    found = [m for m in map(STEP.match, lines(path)) if m]
    times = [float(m[2]) for m in found][1:]
    if not times:
        return False
    print("%s.steps %d, first loss %s, last %s" % (name, len(found), found[0][3],
                                                  found[-1][3]))
    print("%s.step_ms %.1f (p99 %.1f)" % (name, statistics.mean(times),
                                          percentile(times, 0.99)))
    return True


sys.exit(0 if globals()[sys.argv[1]](sys.argv[2:]) else 1)
