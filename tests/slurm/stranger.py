"""Another user of the node, beside a running job: tries to get at everything of the
processes whose SLURM_CONF is this one's (started as root; becomes nobody).

    stranger.py PATH...

Prints one line for each kind of thing and answer, with how many there were: listening
TCP and unix sockets of the job's processes, files that they have open or mapped, and what
lies at each PATH.
"""

import collections
import os
import socket
import struct
import sys

NOBODY = 65534
OURS = (b"scrystal", b"rank", b"sh")  # not srun, which listens for Slurm


def processes():
    mark = b"SLURM_CONF=" + os.environb[b"SLURM_CONF"]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                environ = f.read().split(b"\0")
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                program = os.path.basename(f.read().split(b"\0")[0])
            if mark in environ and program in OURS:
                yield pid
        except OSError:
            continue  # it has ended


def files(pid):
    """Sockets' inodes and paths of files."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            yield os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
    with open(f"/proc/{pid}/maps") as maps:
        for line in maps:
            parts = line.rstrip("\n").split(None, 5)
            if len(parts) == 6 and parts[1][1] == "w":
                yield parts[5]


def tcp_listeners(inodes):
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}") as table:
            next(table)
            for line in table:
                field = line.split()
                if field[3] == "0A" and field[9] in inodes:
                    address, port = field[1].split(":")
                    host = "127.0.0.1"
                    if name == "tcp" and address != "00000000":
                        host = socket.inet_ntoa(struct.pack("=I", int(address, 16)))
                    yield host, int(port, 16)


def unix_listeners(inodes):
    with open("/proc/net/unix") as table:
        next(table)
        for line in table:
            field = line.split()
            if field[3] == "00010000" and field[6] in inodes and len(field) > 7:
                yield field[7]


def answer_tcp(address):
    with socket.create_connection(address, timeout=30) as s:
        try:
            s.sendall(b"x" * 64)
            return "data" if s.recv(1) else "closed"
        except (ConnectionResetError, BrokenPipeError):
            return "closed"


def answer_unix(path):
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(path)
        return "connected"
    except PermissionError:
        return "refused"


def answer_file(path):
    try:
        with open(path, "rb"):
            return "opened"
    except PermissionError:
        return "refused"
    except OSError as error:
        return error.strerror


def main():
    names = set()
    for pid in processes():
        names.update(files(pid))
    inodes = {n[8:-1] for n in names if n.startswith("socket:[")}
    asked = [("tcp", answer_tcp, a) for a in sorted(tcp_listeners(inodes))]
    asked += [("unix", answer_unix, p) for p in sorted(unix_listeners(inodes))]
    asked += [("shared memory", answer_file, n) for n in sorted(names)
              if n.startswith("/dev/shm/")]
    asked += [("file", answer_file, n) for n in sys.argv[1:]]
    "x".encode("idna")  # the codec, which nobody may not be able to read
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    answers = collections.Counter((kind, answer(what)) for kind, answer, what in asked)
    for (kind, what), count in sorted(answers.items()):
        print(f"{kind}: {what}: {count}")


main()
