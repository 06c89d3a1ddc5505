"""Runs a command and fails unless each of its writes to standard output is one whole
line: where several ranks write to one file, only such lines stay whole.
usage: writes.py COMMAND..."""

import os
import subprocess
import sys

# A pipe of packets: a read returns what one write wrote (pipe(2)).
read, write = os.pipe2(os.O_DIRECT)
command = subprocess.Popen(sys.argv[1:], stdout=write)
os.close(write)
lines, parts = 0, []
while packet := os.read(read, 65536):
    lines += 1
    if not packet.endswith(b"\n") or packet.count(b"\n") != 1:
        parts.append(packet)
print(f"{lines} writes")
for packet in parts[:10]:
    print("no whole line:", packet)
sys.exit(command.wait() or bool(parts) or lines == 0)
