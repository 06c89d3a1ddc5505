"""Runs a program as so many ranks, told where they meet as torchrun tells it, but imports
PyTorch once and forks. usage: python -u ranks.py RANKS PROGRAM [OPTION...]

A rank that fails ends the others. The exit code is 0 when all ranks end with 0; else
1, after a sentence that names the first to fail and how it ended."""

import ctypes
import gc
import importlib
import os
import runpy
import signal
import sys
from datetime import timedelta

import torch.distributed as dist

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
PORT_SIZE = 6  # bytes that tell a rank the port of the store
# What programs import besides, the first with an optimizer's first step.
SHARED = ("torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.pipelining",
          "torch.distributed.tensor.parallel")


def become(rank, ranks, port):
    """In the child: the environment of a torchrun's worker."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
        TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")


def run(program, options):
    sys.argv = [program, *options]
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    runpy.run_path(program, run_name="__main__")


def ending(status):
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def watch(children):
    """children: rank by process id. Returns when all have ended."""
    failed = False
    while children:
        pid, status = os.wait()
        rank = children.pop(pid)
        if status and not failed:
            failed = True
            sys.stderr.write(f"ranks.py: rank {rank} ended with {ending(status)}\n")
            for other in children:
                os.kill(other, signal.SIGTERM)
    return 1 if failed else 0


def main():
    ranks, program, options = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    for module in SHARED if ranks > 1 else ():
        importlib.import_module(module)
    children = {}
    ports, tell = os.pipe()
    gc.freeze()  # what is here stays shared, and is no work when a rank ends
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            become(rank, ranks, os.read(ports, PORT_SIZE).decode().strip())
            os.close(ports)
            os.close(tell)
            return run(program, options)
        children[pid] = rank
    # Only now: the store has threads, which a fork would lose.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False,
                          timeout=timedelta(seconds=600))
    os.write(tell, f"{store.port:{PORT_SIZE}}".encode() * ranks)
    return watch(children)


if __name__ == "__main__":
    sys.exit(main())
