"""Stock PyTorch as one real rank of N on a GPU, every other rank virtual.

usage: torch_rank.py BUILD N RANK [PROGRAM ARGUMENT...]
The node's service (nodeserver) answers for the others; a TCPStore in this process has
the ids of communicators whose first rank is virtual, and tells the service those that
this rank makes. With PROGRAM, that is run in place of the checks here, unchanged: what
it calls the CPU and gloo is the GPU and NCCL. TORCH_DEVICE=cpu runs all this with the
backend that "gloo" is here, without a GPU. TAP on standard output.
"""

import datetime
import os
import runpy
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

BUILD, N, RANK = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
DEVICE = os.environ.get("TORCH_DEVICE", "cuda")
BACKEND = "nccl" if DEVICE == "cuda" else "gloo"
tests = failures = 0


def check(ok, what):
    global tests, failures
    tests += 1
    failures += not ok
    print("%s %d - torch n=%d rank=%d: %s" % ("ok" if ok else "not ok", tests, N, RANK,
                                              what), flush=True)


class Node:
    """nodeserver: one line asked, one answered."""

    def __init__(self):
        self.process = subprocess.Popen(
            [os.path.join(BUILD, "tests", "programs", "nodeserver"), "-n", str(N), "-g",
             "1", "-r", str(RANK)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lock = threading.Lock()
        self.board = self.process.stdout.readline().split()[1]
        self.world = self.process.stdout.readline().split()[2]

    def ask(self, line):
        with self.lock:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            return self.process.stdout.readline().strip()


class Ids:
    """Gives PyTorch's groups the ids of their communicators."""

    def __init__(self, node):
        self.node = node
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True,
                                   wait_for_workers=False)
        self.prepare("0", "default_pg/0//%s//0" % DEVICE, list(range(N)))
        make, world = dist.new_group, dist.distributed_c10d._world

        def new_group(ranks=None, *args, **more):
            ranks = sorted(ranks) if ranks is not None else list(range(N))
            name = str(world.group_count)
            if RANK in ranks and len(ranks) > 1:
                self.prepare(name, "default_pg/0//%s//%s//0" % (name, DEVICE), ranks)
            return make(ranks, *args, **more)

        dist.new_group = new_group

    def prepare(self, name, key, ranks):
        """The id of a group whose first rank is virtual; that of another is watched
        for."""
        if ranks[0] == RANK:
            threading.Thread(target=self.watch, args=(name, key, ranks),
                             daemon=True).start()
            return
        digits = self.node.world if name == "0" else self.node.ask(
            "forge %s %s" % (name, rank_list(ranks))).split()[2]
        self.store.set(key, bytes.fromhex(digits))

    def watch(self, name, key, ranks):
        client = dist.TCPStore("127.0.0.1", self.store.port, is_master=False,
                               timeout=datetime.timedelta(seconds=300))
        try:
            value = client.get(key)
        except RuntimeError:  # the process ends and no such communicator was made
            return
        answer = self.node.ask("join %s %s %s" % (name, value.hex(), rank_list(ranks)))
        if answer != "ok":
            print("# join %s: %s" % (name, answer), flush=True)


def rank_list(ranks):
    return ",".join(str(r) for r in ranks)


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(what):
    begin = time.monotonic()
    result = what()
    synchronize()
    return result, time.monotonic() - begin


def collectives(group, ranks, name):
    """Every virtual rank contributes a stand-in."""
    n = len(ranks)
    for elements in (1, 10000) if N > 1000 else (1, 10000, 4000000):
        x = (torch.arange(elements, device=DEVICE) % 7 + 2).float()
        for kind in (torch.float32, torch.bfloat16):
            mine = x.to(kind)
            y = mine.clone()
            _, took = timed(lambda: dist.all_reduce(y, group=group))
            check(torch.equal(y, mine), "%s all_reduce of %d %s, %.1f ms"
                  % (name, elements, kind, took * 1e3))
        if elements * n <= 1 << 26:
            y = torch.empty(n * elements, device=DEVICE)
            _, took = timed(lambda: dist.all_gather_into_tensor(y, x, group=group))
            check(torch.equal(y, x.repeat(n)), "%s all_gather of %d, %.1f ms"
                  % (name, elements, took * 1e3))
            z = torch.empty(elements, device=DEVICE)
            _, took = timed(lambda: dist.reduce_scatter_tensor(z, y, group=group))
            check(torch.equal(z, x), "%s reduce_scatter of %d, %.1f ms"
                  % (name, elements, took * 1e3))
        y = x.clone()
        _, took = timed(lambda: dist.broadcast(y, ranks[-1] if ranks[-1] != RANK
                                               else ranks[0], group=group))
        check(torch.equal(y, torch.zeros_like(y)), "%s broadcast of %d, %.1f ms"
              % (name, elements, took * 1e3))


def net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(),
                               torch.nn.Linear(1024, 256)).to(DEVICE)


def train(steps):
    """DDP. Where rank 0 is virtual nothing recorded says what it has: there DDP neither
    takes over the model nor the order of buckets from it."""
    model, alone = net(), net()
    wrapped = DistributedDataParallel(model, device_ids=[0] if DEVICE == "cuda" else None,
                                      init_sync=RANK == 0,
                                      find_unused_parameters=RANK != 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    begin = time.monotonic()
    for step in range(steps):
        torch.manual_seed(step)
        x = torch.randn(32, 256, device=DEVICE)
        loss = (wrapped(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if step == 0:  # averages of one real gradient and N - 1 neutral ones
            (alone(x) - x).square().mean().backward()
            close = all(torch.allclose(a.grad / N, b.grad, rtol=1e-4, atol=1e-8)
                        for a, b in zip(alone.parameters(), model.parameters()))
            check(close, "DDP: the rank's own over N")
        optimizer.step()
    synchronize()
    took = time.monotonic() - begin
    check(bool(torch.isfinite(loss)), "DDP, %d steps, %.1f ms each, loss %.4f"
          % (steps, took / steps * 1e3, loss.item()))


def checks():
    _, took = timed(lambda: dist.init_process_group(
        BACKEND, timeout=datetime.timedelta(seconds=50)))
    check(dist.get_world_size() == N, "init_process_group, %.3f s" % took)
    x = torch.ones(1000, device=DEVICE)
    _, took = timed(lambda: dist.all_reduce(x))
    check(torch.equal(x, torch.ones_like(x)), "first all_reduce with set-up, %.3f s"
          % took)
    collectives(None, list(range(N)), "world")
    for ranks in ([r for r in range(N) if r // 8 == RANK // 8],
                  [r for r in range(N) if r % 8 == RANK % 8]):
        if len(ranks) > 1:
            collectives(dist.new_group(ranks), ranks, "group of %d" % len(ranks))
    train(100 if N <= 1024 else 10)
    dist.barrier()


class OnDevice(TorchFunctionMode):
    """Random numbers of a CPU's generator are drawn there."""

    def __torch_function__(self, function, types, args=(), more=None):
        more = more or {}
        generator = more.get("generator")
        if generator is None or generator.device.type == DEVICE:
            return function(*args, **more)
        return function(*args, **{**more, "device": "cpu"}).to(DEVICE)


def run_program(words):
    make = dist.init_process_group
    dist.init_process_group = lambda backend, **more: make(BACKEND, **more)
    end, sys.argv = dist.destroy_process_group, words
    dist.destroy_process_group = lambda group=None: None  # comes later
    torch.set_default_device(DEVICE)
    with OnDevice():
        runpy.run_path(words[0], run_name="__main__")
    dist.destroy_process_group = end
    check(True, " ".join([os.path.basename(words[0])] + words[1:]))


def main():
    node = Node()
    ids = Ids(node)
    os.environ.update(
        CRYSTAL_BOARD=node.board, CRYSTAL_LRANK=str(RANK), RANK=str(RANK),
        WORLD_SIZE=str(N), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(ids.store.port),
        NCCL_HOSTID="host%d" % RANK, TORCHELASTIC_USE_AGENT_STORE="True",
        TORCH_NCCL_RANKS_PER_ROOT=os.environ.get("TORCH_NCCL_RANKS_PER_ROOT", "1000000"))
    if DEVICE == "cuda":
        torch.cuda.set_device(0)
    if len(sys.argv) > 4:
        run_program(sys.argv[4:])
    else:
        checks()
    check(node.ask("status") == "ok", "the node's service is well")
    print("# rss of the service: %s KiB" % node.ask("rss").split()[1], flush=True)
    dist.destroy_process_group()
    check(True, "destroy_process_group")
    node.process.stdin.close()
    node.process.wait(10)
    print("1..%d" % tests, flush=True)
    os._exit(1 if failures else 0)


main()
