"""Every kind of operation, with integers that change by iteration: what the absent ranks
of an emulation contribute is right or this ends with an error. Sharded and tensor
parallel training goes along, whose numbers are stand-ins there. usage: emulated.py
ITERATIONS; each rank prints a line per iteration."""

import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)


def same(got, want):
    assert torch.equal(got, want), f"got {got.tolist()}, want {want.tolist()}"


def value(rank, step, count=4):
    return torch.arange(count) * (rank + 1) + 100 * step + rank * rank


def total(ranks, step, count=4):
    return sum(value(i, step, count) for i in ranks)


def collectives(r, n, step, group, ranks):
    """On a group of those ranks."""
    mine, size = ranks.index(r), len(ranks)
    every = torch.cat([value(i, step) for i in ranks])
    x = value(r, step)
    dist.all_reduce(x, group=group)
    same(x, total(ranks, step))
    x = value(r, step)
    work = dist.all_reduce(x, dist.ReduceOp.MAX, group=group, async_op=True)
    work.get_future().wait()
    same(x, every.view(size, -1).amax(0))
    got = torch.empty(4 * size, dtype=torch.int64)
    dist.all_gather_into_tensor(got, value(r, step), group=group)
    same(got, every)
    got = [torch.empty(4, dtype=torch.int64) for _ in ranks]
    dist.all_gather(got, value(r, step), group=group)
    same(torch.cat(got), every)
    x = torch.empty(2, dtype=torch.int64)
    dist.reduce_scatter_tensor(x, value(r, step, 2 * size), group=group)
    same(x, total(ranks, step, 2 * size).view(size, 2)[mine])
    for root in ranks:
        x = value(r, step)
        dist.broadcast(x, root, group=group)
        same(x, value(root, step))
        dist.reduce(x := value(r, step), root, group=group)
        if r == root:
            same(x, total(ranks, step))
        got = [torch.empty(4, dtype=torch.int64) for _ in ranks] if r == root else None
        dist.gather(value(r, step), got, root, group=group)
        if r == root:
            same(torch.cat(got), every)
        parts = [value(10 * root + i, step) for i in ranks] if r == root else None
        dist.scatter(x, parts, root, group=group)
        same(x, value(10 * root + r, step))


def messages(r, n, step):
    rows = lambda a, b: (a + 2 * b + step) % 4  # noqa: E731 some are none
    sent = [rows(r, i) for i in range(n)]
    got = torch.empty(n, dtype=torch.int64)
    dist.all_to_all_single(got, torch.tensor(sent))
    same(got, torch.tensor([rows(i, r) for i in range(n)]))
    got = got.tolist()
    out = torch.empty(sum(got), dtype=torch.int64)
    x = torch.cat([value(r, step, count) for count in sent])
    dist.all_to_all_single(out, x, got, sent)
    same(out, torch.cat([value(i, step, count) for i, count in enumerate(got)]))
    right, left = (r + 1) % n, (r - 1) % n
    x = torch.empty(4, dtype=torch.int64)
    ops = [dist.P2POp(dist.isend, value(r, step), right), dist.P2POp(dist.irecv, x, left)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(x, value(left, step))
    for turn in (0, 1):  # one call after the other: a pair's first calls may change places
        if r % 2 == turn:
            dist.send(value(r, step + 1), left)
        else:
            dist.recv(x, right)
    same(x, value(right, step + 1))


def coalesced(r, n, step):
    group = dist.group.WORLD
    xs = [value(r, step, count) for count in (3, 5)]
    with _coalescing_manager(async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    for x in xs:
        same(x, total(range(n), step, len(x)))
    for x in funcol.all_gather_into_tensor_coalesced([value(r, step)] * 2, group):
        same(x + 0, torch.cat([value(i, step) for i in range(n)]))
    x = funcol.reduce_scatter_tensor(value(r, step, 2 * n), "sum", 0, group)
    same(x + 0, total(range(n), step, 2 * n).view(n, 2)[r])


def objects(r, n, step):
    out = [None] * n
    dist.all_gather_object(out, "x" * (step * 10 + r))
    assert [len(o) for o in out] == [step * 10 + i for i in range(n)]
    for root in range(n):
        got = [(root, step)] if r == root else [None]
        dist.broadcast_object_list(got, root)
        assert got == [(root, step)], got
        out = [None] * n if r == root else None
        dist.gather_object({r: step}, out, root)
        assert r != root or out == [{i: step} for i in range(n)], out


def main():
    dist.init_process_group("gloo")
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    r, n = dist.get_rank(), dist.get_world_size()
    groups = {tuple(range(n)): dist.group.WORLD}
    # PyTorch names such groups by how many a rank has: so far all have as many.
    halves = tuple(i for i in range(n) if i % 2 == r % 2)
    groups[halves] = dist.new_group(list(halves), use_local_synchronization=True)
    for ranks in ((0, n - 1), tuple(range(1, n))):
        groups[ranks] = dist.new_group(list(reversed(ranks)))
    mesh = init_device_mesh("cpu", (n,))
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    sharded = fully_shard(torch.nn.Linear(8, 8), mesh=mesh)
    optimizer = torch.optim.SGD(
        [*model.parameters(), *sharded.parameters()], lr=0.01, foreach=False)
    for step in range(int(sys.argv[1])):
        for ranks, group in groups.items():
            if r in ranks:
                collectives(r, n, step, group, ranks)
        messages(r, n, step)
        coalesced(r, n, step)
        objects(r, n, step)
        optimizer.zero_grad()
        sharded(model(torch.ones(2, 8))).sum().backward()
        dist.barrier()
        sys.stdout.write(f"rank {r} step {step} is right\n")  # whole, among other ranks'
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
