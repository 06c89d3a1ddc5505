"""Stock PyTorch as one real rank of N on a GPU, every other rank virtual.

usage: torch_rank.py BUILD N RANK
The node's service (nodeserver) answers for the others; a TCPStore in this process has
the ids of communicators whose first rank is virtual, and tells the service those that
this rank makes. TAP on standard output.
"""

import datetime
import os
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BUILD, N, RANK = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
KEY = "default_pg/%s//cuda//0"
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


def rank_list(ranks):
    return ",".join(str(r) for r in ranks)


def prepare(node, store, groups):
    """Ids of groups whose first rank is virtual; the others are watched for."""
    watched = []
    for name, ranks in groups.items():
        if ranks[0] != RANK:
            digits = node.world if len(ranks) == N else node.ask(
                "forge %s %s" % (name, rank_list(ranks))).split()[2]
            store.set(KEY % name, bytes.fromhex(digits))
        else:
            watched.append((name, ranks))

    def watch():
        client = dist.TCPStore("127.0.0.1", store.port, is_master=False,
                               timeout=datetime.timedelta(seconds=120))
        for name, ranks in watched:
            value = client.get(KEY % name)
            answer = node.ask("join %s %s %s" % (name, value.hex(), rank_list(ranks)))
            if answer != "ok":
                print("# join %s: %s" % (name, answer), flush=True)

    if watched:
        threading.Thread(target=watch, daemon=True).start()


def timed(what):
    begin = time.monotonic()
    result = what()
    torch.cuda.synchronize()
    return result, time.monotonic() - begin


def collectives(group, ranks, name):
    """Every virtual rank contributes a stand-in."""
    n = len(ranks)
    for elements in (1, 10000) if N > 1000 else (1, 10000, 4000000):
        x = (torch.arange(elements, device="cuda") % 7 + 2).float()
        for kind in (torch.float32, torch.bfloat16):
            mine = x.to(kind)
            y = mine.clone()
            _, took = timed(lambda: dist.all_reduce(y, group=group))
            check(torch.equal(y, mine), "%s all_reduce of %d %s, %.1f ms"
                  % (name, elements, kind, took * 1e3))
        if elements * n <= 1 << 26:
            y = torch.empty(n * elements, device="cuda")
            _, took = timed(lambda: dist.all_gather_into_tensor(y, x, group=group))
            check(torch.equal(y, x.repeat(n)), "%s all_gather of %d, %.1f ms"
                  % (name, elements, took * 1e3))
            z = torch.empty(elements, device="cuda")
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
                               torch.nn.Linear(1024, 256)).cuda()


def train(steps):
    """With DDP where rank 0 is real (DDP compares the model with rank 0's), else with
    gradients averaged by hand."""
    model, alone = net(), net()
    wrapped = DistributedDataParallel(model, device_ids=[0]) if RANK == 0 else model
    kind = "DDP" if RANK == 0 else "averaged gradients"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    begin = time.monotonic()
    for step in range(steps):
        torch.manual_seed(step)
        x = torch.randn(32, 256, device="cuda")
        loss = (wrapped(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if RANK != 0:
            for p in model.parameters():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        if step == 0:  # averages of one real gradient and N - 1 neutral ones
            (alone(x) - x).square().mean().backward()
            close = all(torch.allclose(a.grad / N, b.grad, rtol=1e-4, atol=1e-8)
                        for a, b in zip(alone.parameters(), model.parameters()))
            check(close, kind + ": the rank's own over N")
        optimizer.step()
    torch.cuda.synchronize()
    took = time.monotonic() - begin
    check(bool(torch.isfinite(loss)), "%s, %d steps, %.1f ms each, loss %.4f"
          % (kind, steps, took / steps * 1e3, loss.item()))


def main():
    node = Node()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    tp = [r for r in range(N) if r // 8 == RANK // 8]
    dp = [r for r in range(N) if r % 8 == RANK % 8]
    groups = {"0": list(range(N)), "1": tp, "2": dp}
    prepare(node, store, groups)
    os.environ.update(
        CRYSTAL_BOARD=node.board, CRYSTAL_LRANK=str(RANK), RANK=str(RANK),
        WORLD_SIZE=str(N), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port),
        NCCL_HOSTID="host%d" % RANK, TORCHELASTIC_USE_AGENT_STORE="True",
        TORCH_NCCL_RANKS_PER_ROOT=os.environ.get("TORCH_NCCL_RANKS_PER_ROOT", "1000000"))
    torch.cuda.set_device(0)
    _, took = timed(lambda: dist.init_process_group(
        "nccl", timeout=datetime.timedelta(seconds=50)))
    check(dist.get_world_size() == N, "init_process_group, %.3f s" % took)
    x = torch.ones(1000, device="cuda")
    _, took = timed(lambda: dist.all_reduce(x))
    check(torch.equal(x, torch.ones_like(x)), "first all_reduce with set-up, %.3f s"
          % took)
    collectives(None, groups["0"], "world")
    for name, ranks in (("1", tp), ("2", dp)):
        group = dist.new_group(ranks)
        collectives(group, ranks, "group of %d" % len(ranks))
    train(100 if N <= 1024 else 10)
    dist.barrier()
    check(node.ask("status") == "ok", "the node's service is well")
    print("# rss of the service: %s KiB" % node.ask("rss").split()[1], flush=True)
    dist.destroy_process_group()
    check(True, "destroy_process_group")
    node.process.stdin.close()
    node.process.wait(10)
    print("1..%d" % tests, flush=True)
    os._exit(1 if failures else 0)


main()
