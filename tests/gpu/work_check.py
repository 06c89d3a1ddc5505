"""work_check.py SCRYSTAL JOB: compares what tests/gpu/work.py printed with the WORK records
of its trace, by iteration. TAP lines without numbers; exit 1 where one is not ok."""

import re
import subprocess
import sys

scrystal, job = sys.argv[1:]
text = subprocess.run([scrystal, "show", f"{job}/ranks/0.trace"], check=True,
                      capture_output=True, text=True).stdout
printed = [dict(part.split("=") for part in line.split()[1:])
           for line in open(f"{job}/log/capture.0.log", encoding="utf-8")
           if line.startswith("work forward")]
hints, works = [], []
for line in text.splitlines():
    if match := re.match(r" *(\d+) +[\d.]+  iteration ", line):
        hints.append(int(match[1]))
    if match := re.search(r"work +stream (\d+) behind record (\d+), (\d+) of (.*), "
                          r"([\d.]+) us", line):
        works.append((int(match[1]), int(match[2]), int(match[3]), match[4],
                      float(match[5]) * 1000))
bad = 0


def say(ok, what):
    global bad
    bad += not ok
    print("ok" if ok else "not ok", "-", what)


say(len(printed) == 10 and len(hints) == 10, f"{len(printed)} steps, {len(hints)} hints")
# An iteration ends with the optimizer's step; the sums behind it are small.
for i in range(2, min(len(hints), len(printed))):
    mine = [w for w in works if hints[i - 1] <= w[1] < hints[i]]
    kernels = {}
    for stream, _, _, kind, ns in mine:
        if kind in ("kernels", "memsets"):
            kernels[stream] = kernels.get(stream, 0) + ns
    want = {k: int(v) for k, v in ((k[:-3], v) for k, v in printed[i].items())}
    main, sides = kernels.get(0, 0), [ns for s, ns in kernels.items() if s]
    expected = want["forward"] + want["backward"]
    say(abs(main - expected) < 0.03 * expected + 50e3,
        f"iteration {i}: main stream {main / 1e3:.1f} us, events {expected / 1e3:.1f}")
    side = max(sides, default=0)
    say(abs(side - want["side"]) < 0.03 * want["side"] + 20e3,
        f"iteration {i}: side stream {side / 1e3:.1f} us, events {want['side'] / 1e3:.1f}")
    say(any(w[3] == "copies" for w in mine) and
        any(w[3] == "the recorder's copies" for w in mine),
        f"iteration {i}: copies of the program and of the recorder")
sys.exit(bad > 0)
