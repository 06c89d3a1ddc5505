"""Stock PyTorch as the real ranks of N on GPUs, every other rank virtual.

usage: torch_rank.py BUILD N RANKS [PROGRAM ARGUMENT...]
RANKS is one rank, or FIRST-LAST: so many processes, each with a GPU of its own, are one
node of the target. The node's service (nodeserver) answers for the others; a TCPStore in
the first one's process has the ids of communicators whose first rank is virtual, and
tells the service those that real ranks make. With PROGRAM, that is run in place of the
checks here, unchanged: what it calls the CPU and gloo is the GPU and NCCL, unless
TORCH_PLAIN=1 says that it knows GPUs itself.
TORCH_DEVICE=cpu runs all this with the backend that "gloo" is here, without a GPU.
TORCH_OWN_NODES=1 makes every rank a node of its own; where all are real then and WIRE is
BYTES_PER_S,LATENCY_NS, the plugin is a transport of that speed. TORCH_ONE_GPU=1: they
share GPU 0. TORCH_BOUND=1 gives
init_process_group a device_id, so that PyTorch splits groups off the world's communicator
instead of making ids. TAP on standard output.
"""

import contextlib
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

BUILD, N = sys.argv[1], int(sys.argv[2])
FIRST, LAST = (int(r) for r in (sys.argv[3].split("-") * 2)[:2])
REAL = range(FIRST, LAST + 1)
# a rank that the first one started: its number, and where the first one serves
CHILD = os.environ.get("TORCH_RANK_CHILD", "").split(",")
RANK = int(CHILD[0]) if CHILD[0] else FIRST
LOCAL = 0 if os.environ.get("TORCH_ONE_GPU") == "1" else RANK - FIRST
OWN_NODES = os.environ.get("TORCH_OWN_NODES") == "1" or len(REAL) == 1
BOUND = os.environ.get("TORCH_BOUND") == "1"
RANKS_PER_ROOT = int(os.environ.get("TORCH_NCCL_RANKS_PER_ROOT", "128"))
WIRE = os.environ.get("WIRE", "0,0")
DEVICE = os.environ.get("TORCH_DEVICE", "cuda")
BACKEND = "nccl" if DEVICE == "cuda" else "gloo"
tests = failures = 0
tell = threading.Lock()


def check(ok, what, rank=RANK):
    global tests, failures
    with tell:
        tests += 1
        failures += not ok
        print("%s %d - torch n=%d rank=%d: %s" % ("ok" if ok else "not ok", tests, N,
                                                  rank, what), flush=True)


class Node:
    """nodeserver: one line asked, one answered."""

    def __init__(self):
        rate, latency = WIRE.split(",")
        self.process = subprocess.Popen(
            [os.path.join(BUILD, "tests", "programs", "nodeserver"), "-n", str(N), "-g",
             str(1 if OWN_NODES else len(REAL)), "-r", "%d-%d" % (FIRST, LAST),
             "-b", rate, "-l", latency],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lock = threading.Lock()
        self.board = self.process.stdout.readline().split()[1]
        self.world = self.process.stdout.readline().split()[2]

    def ask(self, line):
        with self.lock:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            return self.process.stdout.readline().strip()

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)


class NoNode:
    """Where every rank is real nobody is asked."""
    board = world = ""

    def ask(self, line):
        return "rss 0" if line == "rss" else "ok"

    def close(self):
        pass


class FarNode:
    """The node's service as a child asks it, through the store."""

    def __init__(self, store):
        self.board, self.world = CHILD[2], CHILD[3]
        self.store, self.asked, self.lock = store, 0, threading.Lock()

    def ask(self, line):
        with self.lock:
            key = "torch_rank/%d/%d" % (RANK, self.asked)
            self.asked += 1
        self.store.set(key, line)
        return self.store.get(key + "/answer").decode()

    def close(self):
        pass


def store_open(port):
    return dist.TCPStore("127.0.0.1", port, is_master=False,
                         timeout=datetime.timedelta(seconds=300))


class Child:
    """Another real rank, a process that this one has started and answers."""

    def __init__(self, rank, store, node):
        self.rank, self.node, self.port = rank, node, store.port
        self.process = subprocess.Popen(
            [sys.executable] + sys.argv, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(os.environ, TORCH_RANK_CHILD="%d,%d,%s,%s" % (
                rank, store.port, node.board, node.world)))
        threading.Thread(target=self.serve, daemon=True).start()
        self.listener = threading.Thread(target=self.listen)
        self.listener.start()

    def serve(self):
        store, number = store_open(self.port), 0
        while True:
            key = "torch_rank/%d/%d" % (self.rank, number)
            try:
                line = store.get(key).decode()
            except RuntimeError:  # the process ends
                return
            store.set(key + "/answer", self.node.ask(line))
            number += 1

    def listen(self):
        for line in self.process.stdout:
            words = line.rstrip("\n").split(" - torch n=%d rank=%d: " % (N, self.rank), 1)
            if len(words) == 2:
                check(line.startswith("ok"), words[1], self.rank)
            elif not line.startswith("1.."):
                with tell:
                    print("# rank %d: %s" % (self.rank, line), end="", flush=True)

    def close(self):
        self.listener.join()
        check(self.process.wait() == 0, "ended well", self.rank)


class Ids:
    """Gives PyTorch's groups the ids of their communicators."""

    def __init__(self, node, store):
        self.node, self.store = node, store
        Ids.node_of_all = node
        self.prepare("0", "default_pg/0//%s//" % DEVICE, list(range(N)))
        make, world = dist.new_group, dist.distributed_c10d._world

        def new_group(ranks=None, *args, **more):
            ranks = sorted(ranks) if ranks is not None else list(range(N))
            name = str(world.group_count)
            if BOUND:
                node.ask("group " + rank_list(ranks))
            elif RANK in ranks and len(ranks) > 1:
                self.prepare(name, "default_pg/0//%s//%s//" % (name, DEVICE), ranks)
            return make(ranks, *args, **more)

        dist.new_group = new_group

    def prepare(self, name, prefix, ranks):
        """A large group has several roots, each the first rank of a block."""
        n = len(ranks)
        roots = -(-n // RANKS_PER_ROOT) if DEVICE == "cuda" else 1
        if roots == 1:
            self.prepare_id("c" + name, prefix + "0", ranks, ranks[0])
        for i in range(roots if roots > 1 else 0):
            key = prefix + "UniqueNCCLID:%d" % i
            self.prepare_id("/" + key, key, ranks,
                            ranks[i * (n // roots) + min(i, n % roots)])

    def prepare_id(self, name, key, ranks, setter):
        """An id that a virtual rank would set is made by the group's first real one;
        that of another is watched for."""
        if setter == RANK:
            threading.Thread(target=self.watch, args=(name, key, ranks),
                             daemon=True).start()
        if setter in REAL or min(r for r in ranks if r in REAL) != RANK:
            return
        digits = self.node.world if name == "c0" else self.node.ask(
            "forge %s %s" % (name, rank_list(ranks))).split()[2]
        self.store.set(key, bytes.fromhex(digits))

    def watch(self, name, key, ranks):
        try:
            value = store_open(self.store.port).get(key)
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
    virtual = [r for r in ranks if r not in REAL]
    for elements in (1, 10000) if N > 1000 else (1, 10000, 4000000):
        place = torch.arange(elements, device=DEVICE)
        x = (place % 7 + 2).float()
        # of what is summed up each real rank of the group has its share
        reals = [r for r in ranks if r in REAL]
        share = x * (place % len(reals) == reals.index(RANK))
        for kind in (torch.float32, torch.bfloat16):
            y = share.to(kind, copy=True)
            _, took = timed(lambda: dist.all_reduce(y, group=group))
            check(torch.equal(y, x.to(kind)), "%s all_reduce of %d %s, %.1f ms"
                  % (name, elements, kind, took * 1e3))
        if elements * n <= 1 << 26:
            y = torch.empty(n * elements, device=DEVICE)
            _, took = timed(lambda: dist.all_gather_into_tensor(y, x, group=group))
            check(torch.equal(y, x.repeat(n)), "%s all_gather of %d, %.1f ms"
                  % (name, elements, took * 1e3))
            z = torch.empty(elements, device=DEVICE)
            y = share.repeat(n)
            _, took = timed(lambda: dist.reduce_scatter_tensor(z, y, group=group))
            check(torch.equal(z, x), "%s reduce_scatter of %d, %.1f ms"
                  % (name, elements, took * 1e3))
        if not virtual:
            continue
        y = x.clone()
        _, took = timed(lambda: dist.broadcast(y, virtual[-1], group=group))
        check(torch.equal(y, torch.zeros_like(y)), "%s broadcast of %d, %.1f ms"
              % (name, elements, took * 1e3))


def net():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(),
                               torch.nn.Linear(1024, 256)).to(DEVICE)


def train(steps):
    """DDP; real ranks have the same data. Where rank 0 is virtual nothing recorded says what it has: there DDP neither
    takes over the model nor the order of buckets from it."""
    model, alone = net(), net()
    wrapped = DistributedDataParallel(model, device_ids=[LOCAL] if DEVICE == "cuda" else None,
                                      init_sync=FIRST == 0,
                                      find_unused_parameters=FIRST != 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    begin = time.monotonic()
    for step in range(steps):
        torch.manual_seed(step)
        x = torch.randn(32, 256, device=DEVICE)
        loss = (wrapped(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if step == 0:  # averages of real gradients, all alike, and neutral ones
            (alone(x) - x).square().mean().backward()
            close = all(torch.allclose(a.grad * len(REAL) / N, b.grad, rtol=1e-4,
                                       atol=1e-8)
                        for a, b in zip(alone.parameters(), model.parameters()))
            check(close, "DDP: the rank's own over N")
        optimizer.step()
    synchronize()
    took = time.monotonic() - begin
    check(bool(torch.isfinite(loss)), "DDP, %d steps, %.1f ms each, loss %.4f"
          % (steps, took / steps * 1e3, loss.item()))


def checks():
    device = torch.device(DEVICE, LOCAL) if BOUND else None
    _, took = timed(lambda: dist.init_process_group(
        BACKEND, timeout=datetime.timedelta(seconds=50), device_id=device))
    check(dist.get_world_size() == N, "init_process_group, %.3f s" % took)
    x = torch.ones(1000, device=DEVICE)
    _, took = timed(lambda: dist.all_reduce(x))
    check(torch.equal(x, torch.full_like(x, len(REAL))), "first all_reduce with set-up, %.3f s"
          % took)
    collectives(None, list(range(N)), "world")
    lists = [[r for r in range(N) if r // 8 == real // 8] for real in REAL]
    lists += [[r for r in range(N) if r % 8 == real % 8] for real in REAL]
    for at, ranks in enumerate(lists):  # every real rank makes all of them
        if len(ranks) > 1 and ranks not in lists[:at]:
            group = dist.new_group(ranks)
            if RANK in ranks:
                collectives(group, ranks, "group of %d" % len(ranks))
    train(100 if N <= 1024 else 10)
    if BOUND:
        halves = [list(range(N // 2)), list(range(N // 2, N))]
        for half in halves:  # told as a grid of two halves would have it
            Ids.node_of_all.ask("group " + rank_list(half))
        group = dist.split_group(split_ranks=halves)
        collectives(group, halves[RANK >= N // 2], "split_group of %d" % (N // 2))
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
    plain = os.environ.get("TORCH_PLAIN") == "1"
    if not plain:
        torch.set_default_device(DEVICE)
    with contextlib.nullcontext() if plain else OnDevice():
        runpy.run_path(words[0], run_name="__main__")
    dist.destroy_process_group = end
    check(True, " ".join([os.path.basename(words[0])] + words[1:]))


def device_memory():
    """What PyTorch took at most, and what of the device is used that it has not."""
    if DEVICE == "cuda":
        free, every = torch.cuda.mem_get_info()
        print("# memory rank=%d allocated=%d reserved=%d other=%d process=%d" % (
            RANK, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(),
            every - free - torch.cuda.memory_reserved(), process_memory()), flush=True)


def process_memory():
    """What the driver says that this process has of the device, MiB; -1: it does not."""
    try:
        rows = subprocess.run(
            ["nvidia-smi", "--query-compute-apps=pid,used_memory",
             "--format=csv,noheader,nounits"], capture_output=True, text=True,
            timeout=20, check=True).stdout.splitlines()
        return int(dict(row.split(", ") for row in rows)[str(os.getpid())])
    except (OSError, subprocess.SubprocessError, KeyError, ValueError):
        return -1


def main():
    children = []
    if CHILD[0]:
        store = store_open(int(CHILD[1]))
        node = FarNode(store)
    else:
        node = Node() if N > len(REAL) else NoNode()
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        children = [Child(r, store, node) for r in REAL if r != RANK]
    os.environ.update(
        CRYSTAL_LRANK=str(RANK), RANK=str(RANK),
        WORLD_SIZE=str(N), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port),
        NCCL_HOSTID="host%d" % (RANK if OWN_NODES else FIRST),
        TORCHELASTIC_USE_AGENT_STORE="True")
    if node.board:
        os.environ["CRYSTAL_BOARD"] = node.board
    else:
        os.environ["CRYSTAL_WIRE"] = WIRE
    if DEVICE == "cuda":
        torch.cuda.set_device(LOCAL)
    Ids(node, store)
    if len(sys.argv) > 4:
        run_program(sys.argv[4:])
    else:
        checks()
    device_memory()
    check(node.ask("status") == "ok", "the node's service is well")
    print("# rss of the service: %s KiB" % node.ask("rss").split()[1], flush=True)
    dist.destroy_process_group()
    check(True, "destroy_process_group")
    for child in children:
        child.close()
    node.close()
    print("1..%d" % tests, flush=True)
    os._exit(1 if failures else 0)


main()
