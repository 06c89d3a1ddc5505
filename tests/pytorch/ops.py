"""Every operation of torch.distributed on CPU tensors, on real ranks, against known
values, and what frameworks build on them (parallel.py). Runs under torchrun; rank 0
prints TAP; arguments name the cases to run. With PyTorch's own gloo the cases that it
does not have are left out, and the others show that what is expected here is what gloo
gives.
"""

import copy
import os
import threading

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory
import torch.distributed.checkpoint as checkpoint
from torch.distributed import ReduceOp
from torch.distributed.device_mesh import init_device_mesh

from cases import FLOATS, INTEGERS, case, main, raises, same, total, value


@case
def broadcast(r, n):
    for dtype in FLOATS + INTEGERS + [torch.bool]:
        for root in range(n):
            x = value(r, dtype)
            dist.broadcast(x, root)
            same(x, value(root, dtype))


@case(gloo=False)
def broadcast_of_types_that_nccl_lacks(r, n):
    for dtype in [torch.int16, torch.complex64, torch.complex128, torch.float8_e4m3fn,
                  torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64]:
        x = value(r).to(dtype)
        dist.broadcast(x, n - 1)
        same(x.view(torch.uint8), value(n - 1).to(dtype).view(torch.uint8))


@case
def all_reduce(r, n):
    for dtype in FLOATS + INTEGERS:
        all_values = torch.stack([value(i, torch.float64) for i in range(n)])
        for op, want in ((ReduceOp.SUM, all_values.sum(0)),
                         (ReduceOp.MAX, all_values.amax(0)),
                         (ReduceOp.MIN, all_values.amin(0))):
            x = value(r, dtype)
            dist.all_reduce(x, op)
            same(x, want)
        x = value(r, dtype, 2)
        dist.all_reduce(x, ReduceOp.PRODUCT)
        same(x, all_values[:, :2].prod(0))


@case(gloo=False)
def all_reduce_average(r, n):
    for dtype in FLOATS:
        x = value(r, dtype) * n
        dist.all_reduce(x, ReduceOp.AVG)
        same(x, total(n))


@case(gloo=False)
def all_reduce_bool(r, n):
    everyone = torch.stack([value(i, torch.bool) for i in range(n)])
    some, each = everyone.any(0), everyone.all(0)
    for want, *ops in ((some, ReduceOp.SUM, ReduceOp.MAX, ReduceOp.BOR),
                       (each, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.BAND)):
        for op in ops:
            x = value(r, torch.bool)
            dist.all_reduce(x, op)
            same(x, want)


@case(gloo=False)
def all_reduce_complex(r, n):
    x = torch.complex(value(r), -value(r))
    dist.all_reduce(x)
    same(x.real, total(n))
    same(x.imag, -total(n))


@case
def all_reduce_large(r, n):
    x = torch.full((1_000_003,), float(r + 1))
    dist.all_reduce(x)
    same(x, n * (n + 1) / 2)


@case(gloo=False)  # gloo writes past the strides or refuses
def all_reduce_not_contiguous(r, n):
    whole = torch.zeros(4, 6)
    part = whole[:, ::2]
    part.fill_(r + 1)
    work = dist.all_reduce(part, async_op=True)
    work.wait()
    same(part, n * (n + 1) / 2)
    same(whole[:, 1::2], 0)
    turned = torch.arange(6.0).view(2, 3).t()
    dist.all_reduce(turned)
    same(turned, n * torch.arange(6.0).view(2, 3).t())


@case
def all_reduce_of_a_parameter(r, n):
    x = torch.nn.Parameter(torch.ones(3))
    with torch.no_grad():
        dist.all_reduce(x)
    same(x.detach(), n)


@case
def asynchronous_operations_in_order(r, n):
    xs = [torch.full((100,), float(r + i)) for i in range(50)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    for work in reversed(works):
        work.wait()
        assert work.is_completed() and work.is_success()
    for i, x in enumerate(xs):
        same(x, n * i + n * (n - 1) / 2)


@case
def work_dropped_without_wait(r, n):
    x = torch.full((1000,), float(r))
    dist.all_reduce(x, async_op=True)
    dist.barrier()
    y = torch.ones(1)
    dist.all_reduce(y)
    same(x, n * (n - 1) / 2)


@case
def empty_tensors(r, n):
    x = torch.empty(0)
    dist.all_reduce(x)
    dist.broadcast(x, 0)
    dist.all_gather([torch.empty(0) for _ in range(n)], x)


@case
def all_reduce_coalesced(r, n):
    xs = [value(r, torch.float32, 3), value(r, torch.float32, 7)]
    dist.all_reduce_coalesced(xs)
    for x in xs:
        same(x, total(n, lambda i: value(i, count=len(x))))


@case
def reduce(r, n):
    for root in range(n):
        x = value(r)
        dist.reduce(x, root, ReduceOp.SUM)
        if r == root:
            same(x, total(n))


@case
def all_gather(r, n):
    for dtype in FLOATS + INTEGERS + [torch.bool]:
        out = [torch.empty(5, dtype=dtype) for _ in range(n)]
        dist.all_gather(out, value(r, dtype))
        for i in range(n):
            same(out[i], value(i, dtype))


@case(gloo=False)
def all_gather_of_several_sizes(r, n):
    out = [torch.empty(i + 1) for i in range(n)]
    dist.all_gather(out, value(r, count=r + 1))
    for i in range(n):
        same(out[i], value(i, count=i + 1))


@case
def all_gather_into_tensor(r, n):
    out = torch.empty(n * 5)
    dist.all_gather_into_tensor(out, value(r))
    same(out, torch.cat([value(i) for i in range(n)]))


@case(gloo=False)
def all_gather_into_stacked_tensor(r, n):
    out = torch.empty(n, 5)
    dist.all_gather_into_tensor(out, value(r))
    same(out, torch.stack([value(i) for i in range(n)]))


@case
def gather(r, n):
    for root in range(n):
        out = [torch.empty(5) for _ in range(n)] if r == root else None
        dist.gather(value(r), out, root)
        for i in range(n if r == root else 0):
            same(out[i], value(i))


@case
def scatter(r, n):
    for root in range(n):
        parts = [value(10 * root + i) for i in range(n)] if r == root else None
        x = torch.empty(5)
        dist.scatter(x, parts, root)
        same(x, value(10 * root + r))


@case(gloo=False)
def reduce_scatter(r, n):
    x = torch.empty(5)
    dist.reduce_scatter(x, [value(r + 10 * i) for i in range(n)])
    same(x, total(n, lambda i: value(i + 10 * r)))


@case
def reduce_scatter_tensor(r, n):
    x = torch.empty(5)
    dist.reduce_scatter_tensor(x, torch.cat([value(r + 10 * i) for i in range(n)]))
    same(x, total(n, lambda i: value(i + 10 * r)))


@case(gloo=False)
def reduce_scatter_average(r, n):
    x = torch.empty(5)
    parts = torch.cat([n * value(r + 10 * i) for i in range(n)])
    dist.reduce_scatter_tensor(x, parts, ReduceOp.AVG)
    same(x, total(n, lambda i: value(i + 10 * r)))


@case(gloo=False)
def all_to_all(r, n):
    sizes = lambda a, b: (a + 2 * b) % 4  # noqa: E731 some are zero
    out = [torch.empty(sizes(i, r)) for i in range(n)]
    parts = [torch.full((sizes(r, i),), 10.0 * r + i) for i in range(n)]
    dist.all_to_all(out, parts)
    for i in range(n):
        same(out[i], 10.0 * i + r)


@case
def all_to_all_single(r, n):
    out = torch.empty(2 * n, 3)
    rows = torch.arange(2 * n) + 100.0 * r
    dist.all_to_all_single(out, torch.stack([rows] * 3, 1))
    for i in range(n):
        same(out[2 * i:2 * i + 2, 0], torch.tensor([2 * r, 2 * r + 1]) + 100 * i)


@case
def all_to_all_single_with_splits(r, n):
    sizes = lambda a, b: (a + 2 * b) % 4  # noqa: E731
    sent = [sizes(r, i) for i in range(n)]
    got = [sizes(i, r) for i in range(n)]
    for dtype in (torch.float32, torch.int64):
        parts = [torch.full((sent[i], 2), 10 * r + i, dtype=dtype) for i in range(n)]
        x = torch.cat(parts)
        out = torch.empty(sum(got), 2, dtype=dtype)
        dist.all_to_all_single(out, x, got, sent)
        for i, part in enumerate(out.split(got)):
            same(part, 10 * i + r)


@case
def send_and_receive(r, n):
    for dtype in FLOATS + INTEGERS:
        if r == 0:
            for i in range(1, n):
                dist.send(value(i, dtype), i)
        else:
            x = torch.empty(5, dtype=dtype)
            assert dist.recv(x, 0) == 0
            same(x, value(r, dtype))


@case
def receives_posted_before_sends(r, n):
    """Gloo allows any order, so each direction has a communicator of its own."""
    got = [torch.empty(200_000) for _ in range(n)]
    receives = [dist.irecv(got[i], i) for i in range(n) if i != r]
    sends = [dist.isend(torch.full((200_000,), 100.0 * r + i), i)
             for i in range(n) if i != r]
    for work in sends + receives:
        work.wait()
    for i in range(n):
        if i != r:
            same(got[i], 100.0 * i + r)


@case
def a_ring_of_receives_before_sends(r, n):
    """In a new group, where no connection was made before."""
    group = dist.new_group()
    x = torch.empty(3)
    receive = dist.irecv(x, (r - 1) % n, group=group)
    dist.isend(torch.full((3,), float(r)), (r + 1) % n, group=group).wait()
    receive.wait()
    same(x, (r - 1) % n)


@case
def only_two_ranks_of_a_group_talk(r, n):
    group = dist.new_group()
    if r == 0:
        dist.send(value(0), n - 1, group=group)
    elif r == n - 1:
        x = torch.empty(5)
        dist.recv(x, 0, group=group)
        same(x, value(0))


@case
def several_messages_to_one_peer(r, n):
    right, left = (r + 1) % n, (r - 1) % n
    got = [torch.empty(10) for _ in range(20)]
    works = [dist.irecv(x, left) for x in got]
    works += [dist.isend(torch.full((10,), 100.0 * r + i), right) for i in range(20)]
    for work in works:
        work.wait()
    for i, x in enumerate(got):
        same(x, 100 * left + i)


@case
def batch_isend_irecv(r, n):
    right, left = (r + 1) % n, (r - 1) % n
    x, got = torch.full((300_000,), float(r)), torch.empty(300_000)
    for ops in ([dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, got, left)],
                [dist.P2POp(dist.irecv, got, left), dist.P2POp(dist.isend, x, right)]):
        got.fill_(-1)
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        same(got, left)


@case(gloo=False)
def receive_not_contiguous(r, n):
    whole = torch.zeros(4, 2)
    if r == 0:
        dist.send(torch.arange(8.0).view(2, 4).t()[:, 1], 1)
    elif r == 1:
        dist.recv(whole[:, 1], 0)
        same(whole[:, 1], torch.arange(4.0, 8.0))
        same(whole[:, 0], 0)


@case
def barrier(r, n):
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.monitored_barrier()


@case(gloo=False)
def coalescing_manager(r, n):
    from torch.distributed.distributed_c10d import _coalescing_manager

    outs = [torch.empty(n * 3), torch.empty(n * 4)]
    with _coalescing_manager(async_ops=True) as cm:
        for out, count in zip(outs, (3, 4)):
            dist.all_gather_into_tensor(out, value(r, count=count))
    cm.wait()
    for out, count in zip(outs, (3, 4)):
        same(out, torch.cat([value(i, count=count) for i in range(n)]))
    outs = [torch.empty(3), torch.empty(4)]
    with _coalescing_manager():
        for out, count in zip(outs, (3, 4)):
            dist.reduce_scatter_tensor(out, value(r, count=count).repeat(n))
    for out, count in zip(outs, (3, 4)):
        same(out, total(n, lambda i: value(i, count=count)))


@case
def objects(r, n):
    out = [None] * n
    dist.all_gather_object(out, {"rank": r, "text": "x" * r})
    assert out == [{"rank": i, "text": "x" * i} for i in range(n)]
    objects = ["a", [1, 2], None] if r == 1 else [None] * 3
    dist.broadcast_object_list(objects, 1)
    assert objects == ["a", [1, 2], None]
    out = [None] * n if r == 0 else None
    dist.gather_object((r, "y" * 10 * r), out, 0)
    assert r != 0 or out == [(i, "y" * 10 * i) for i in range(n)]
    out = [None]
    dist.scatter_object_list(out, [f"for {i}" for i in range(n)] if r == 0 else None, 0)
    assert out == [f"for {r}"]
    if r == 0:
        dist.send_object_list(["hello", 5], 1)
    elif r == 1:
        got = [None, None]
        dist.recv_object_list(got, 0)
        assert got == ["hello", 5]


@case
def groups_made_by_their_members_alone(r, n):
    """PyTorch names them by how many groups a rank has: so far all have as many."""
    half = [i for i in range(n) if i % 2 == r % 2]
    for ranks in (half, half, [r]):
        group = dist.new_group(ranks, use_local_synchronization=True)
        x = value(r)
        dist.all_reduce(x, group=group)
        same(x, torch.stack([value(i) for i in ranks]).sum(0))


@case
def subgroups(r, n):
    odd = dist.new_group(list(range(1, n, 2)))
    alone = [dist.new_group([i]) for i in range(n)][r]
    members = dist.get_process_group_ranks(odd) if r % 2 else []
    if r % 2:
        x = value(r)
        dist.all_reduce(x, group=odd)
        same(x, torch.stack([value(i) for i in members]).sum(0))
        x = value(r)
        dist.broadcast(x, members[-1], group=odd)
        same(x, value(members[-1]))
    x = value(r)
    dist.all_reduce(x, group=alone)
    same(x, value(r))
    out = torch.empty(5)
    dist.all_gather_into_tensor(out, x, group=alone)
    same(out, x)


@case
def device_mesh(r, n):
    mesh = init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("dp", "tp"))
    x = torch.tensor([float(r)])
    dist.all_reduce(x, group=mesh.get_group("tp"))
    row = r // (n // 2) * (n // 2)
    same(x, sum(range(row, row + n // 2)))
    x = torch.tensor([float(r)])
    dist.all_reduce(x, group=mesh.get_group("dp"))
    same(x, r % (n // 2) * 2 + n // 2)


@case
def futures(r, n):
    x = torch.ones(1000) * (r + 1)
    got = []
    future = dist.all_reduce(x, async_op=True).get_future()
    chained = future.then(lambda f: got.append(f.value()[0].sum().item()))
    chained.wait()
    assert got == [1000 * n * (n + 1) / 2], got
    same(future.value()[0], x)


@case
def functional_collectives(r, n):
    import torch.distributed._functional_collectives as funcol

    group = dist.group.WORLD
    same(funcol.all_reduce(value(r), "sum", group) + 0, total(n))
    same(funcol.all_gather_tensor(value(r), 0, group) + 0,
         torch.cat([value(i) for i in range(n)]))
    same(funcol.reduce_scatter_tensor(value(r).repeat(n), "sum", 0, group) + 0,
         total(n))
    same(funcol.broadcast(value(r), 1, group) + 0, value(1))


@case
def data_parallel_training(r, n):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    alone = copy.deepcopy(model)
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0005)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (parallel, alone)]
    data = torch.randn(4 * n, 8)
    for _ in range(3):
        for m, batch, optimizer in ((parallel, data[4 * r:4 * r + 4], optimizers[0]),
                                    (alone, data, optimizers[1])):
            optimizer.zero_grad()
            m(batch).pow(2).mean().backward()
            optimizer.step()
    for a, b in zip(model.parameters(), alone.parameters()):
        assert torch.allclose(a, b, atol=1e-6), (a - b).abs().max()


@case
def fully_sharded_training(r, n):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    alone = copy.deepcopy(model)
    fully_shard(model, mesh=init_device_mesh("cpu", (n,)))
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (model, alone)]
    data = torch.randn(2 * n, 8)
    for _ in range(2):
        for m, batch, optimizer in ((model, data[2 * r:2 * r + 2], optimizers[0]),
                                    (alone, data, optimizers[1])):
            optimizer.zero_grad()
            m(batch).pow(2).mean().backward()
            optimizer.step()
    whole = model.weight.full_tensor()
    assert torch.allclose(whole, alone.weight, atol=1e-6), whole - alone.weight


@case
def two_threads(r, n):
    groups = [dist.new_group() for _ in range(2)]
    xs = [torch.full((1000,), float(r + i)) for i in range(2)]

    def run(i):
        for _ in range(20):
            y = xs[i].clone()
            dist.all_reduce(y, group=groups[i])
        xs[i].copy_(y)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(2):
        same(xs[i], n * (n - 1) / 2 + n * i)


@case
def group_ended_and_made_anew(r, n):
    group = dist.new_group()
    x = torch.ones(1)
    dist.all_reduce(x, group=group)
    dist.destroy_process_group(group)
    group = dist.new_group()
    dist.all_reduce(x, group=group)
    same(x, n * n)


@case(gloo=False)
def what_is_refused(r, n):
    raises("recv from any source", lambda: dist.recv(torch.empty(1)))
    ints, shorts = (torch.ones(1, dtype=t) for t in (torch.int32, torch.int16))
    raises("bitwise or on integers", lambda: dist.all_reduce(ints, ReduceOp.BOR))
    raises("cannot reduce tensors of Short", lambda: dist.all_reduce(shorts))
    raises("takes dense tensors", lambda: dist.all_reduce(torch.ones(2).to_sparse()))
    rows = torch.empty(n)
    raises("do not add up",
           lambda: dist.all_to_all_single(rows, rows, [2] * n, [1] * n))
    x = torch.ones(1)
    dist.all_reduce(x)
    same(x, n)


@case(gloo=False)
def what_cannot_be_captured(r, n):
    raises("switch off symmetric memory",
           lambda: torch.distributed._symmetric_memory.empty(4, device="cpu"))
    if os.environ.get("CRYSTAL_STAGE") == "capture":
        raises("save it synchronously", lambda: checkpoint.async_save({}, checkpoint_id="x"))


@case(gloo=False)
def members_are_published(r, n):
    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    group = dist.new_group([0] + list(range(2, n)))
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()
    assert store.get("crystal/group/0") == f"0-{n - 1}".encode()
    want = {2: "0", 3: "0,2", 4: "0,2-3"}[n].encode()
    newest = dist.distributed_c10d._world.group_count - 1  # PyTorch numbers them
    assert store.get(f"crystal/group/{newest}") == want
    assert len(store.get("default_pg/0//cpu//0")) == 128
    assert len(store.get(f"default_pg/0//{newest}//cpu//0")) == 128


@case(gloo=False)
def iteration_hints(r, n):
    from crystal_torch import attach

    def optimizer():
        return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1)

    class Spy:
        @staticmethod
        def iteration_hint():
            seen.append(1)

    first, second, seen = optimizer(), optimizer(), []
    attach._marking_optimizer = None
    tell, attach._backend = attach._backend, Spy
    for _ in range(3):
        first.step()
        second.step()
    del first
    second.step()
    attach._backend = tell
    assert len(seen) == 4, seen


if __name__ == "__main__":
    import parallel  # noqa: F401 adds its cases

    main()
