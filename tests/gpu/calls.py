"""What ranks called, as one line each: for comparing a capture on a GPU with one of the
same program on host memory.

usage: calls.py SCRYSTAL JOB_DIR            prints "rank N: call" lines, ranks in order
       calls.py compare HOST GPU [TOLERANCE]
       calls.py same ALL SOME
HOST and GPU are files with those lines and with gpt.py's --log-all lines. compare says
whether the calls are the same, and whether the losses agree within TOLERANCE (1e-3 of
the value); same, whether the ranks in SOME call what they do in ALL. Both exit with 1
where it is not so.
"""

import collections
import os
import re
import subprocess
import sys

CALLS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce", "send", "recv",
         "alltoall", "gather", "scatter")


class Calls(list):
    def remove_last(self, call):
        del self[len(self) - 1 - self[::-1].index(call)]


def print_calls(scrystal, job):
    ranks = sorted(int(name[:-6]) for name in os.listdir(os.path.join(job, "ranks"))
                   if name.endswith(".trace"))
    for rank in ranks:
        trace = os.path.join(job, "ranks", "%d.trace" % rank)
        text = subprocess.run([scrystal, "show", trace], check=True, text=True,
                              stdout=subprocess.PIPE).stdout
        comms, calls = {}, Calls()
        for line in text.splitlines():
            made = re.search(r"communicator  comm (\d+), crank \d+ of \d+, '(.*)'", line)
            if made:
                comms[made[1]] = made[2].replace("//cuda//", "//device//").replace(
                    "//cpu//", "//device//")
            words = line.split()
            if len(words) > 2 and words[2] in CALLS:
                name = comms[words[4]]  # "comm N stream S ..."
                pair = re.search(r"//(\d+):(\d+)$", name)
                if pair:  # one for both ways with NCCL, one for each on host memory
                    name = name[:pair.start()] + "//%s:%s" % tuple(
                        sorted(pair.groups(), key=int))
                    words = words[:-2]  # the other one is meant
                    if words[7:] == ["float32", "x", "1"]:
                        continue  # makes a communicator
                calls.append(" ".join([words[2], name] + words[7:]))
            elif words[2:] == ["group", "end"] and "group start" in calls[-2:]:
                calls.remove_last("group start")  # a group of one is none
            elif words[2:3] == ["group"]:
                calls.append("group " + words[3])
        for call in calls:
            print("rank %d: %s" % (rank, call))


def read(path):
    calls, losses = collections.defaultdict(list), {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            call = re.match(r"rank (\d+): (.*)", line)
            step = re.match(r"gpt rank=(\d+) step=(\d+) .*loss=(\S+) norm=(\S+)", line)
            if call:
                calls[int(call[1])].append(call[2])
            elif step:
                losses[int(step[1]), int(step[2])] = float(step[3]), float(step[4])
    return calls, losses


def compare_calls(some, every, ranks):
    """Tells the first difference."""
    fault = None
    for rank in ranks:
        for number, (a, b) in enumerate(zip(some[rank], every[rank])):
            if a != b and not fault:
                fault = "rank %d, call %d: '%s' and '%s'" % (rank, number, a, b)
        if len(some[rank]) != len(every[rank]) and not fault:
            fault = "rank %d: %d and %d calls" % (rank, len(some[rank]), len(every[rank]))
    print("%s - %d ranks do the same %d calls%s" % (
        "not ok" if fault or not ranks else "ok", len(ranks),
        sum(len(some[rank]) for rank in ranks), ": " + fault if fault else ""))
    return ranks and not fault


def compare(host_path, gpu_path, tolerance):
    (host, host_losses), (gpu, gpu_losses) = read(host_path), read(gpu_path)
    for calls in [*host.values(), *gpu.values()]:
        if any(":" in call for call in calls):
            # On host memory the first message of two ranks without a batch is recorded
            # when both are there: only the order in each communicator is the same.
            calls.sort(key=lambda call: call.split()[1])
    same = compare_calls(host, gpu, sorted(set(host) | set(gpu)))
    worst = max((abs(a / b - 1) for key in host_losses
                 for a, b in zip(gpu_losses.get(key, (0, 0)), host_losses[key])), default=1)
    right = worst <= tolerance and sorted(host_losses) == sorted(gpu_losses)
    print("%s - %d losses and norms within %.2g (%.2g)" % (
        "ok" if right else "not ok", 2 * len(host_losses), tolerance, worst))
    return same and right


if sys.argv[1] == "same":
    every, some = read(sys.argv[2])[0], read(sys.argv[3])[0]
    sys.exit(not compare_calls(some, every, sorted(some)))
if sys.argv[1] == "compare":
    sys.exit(not compare(sys.argv[2], sys.argv[3],
                         float(sys.argv[4]) if len(sys.argv) > 4 else 1e-3))
print_calls(sys.argv[1], sys.argv[2])
