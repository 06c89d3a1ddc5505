"""What frameworks build on torch.distributed, as cases of ops.py: DTensor, FSDP2,
functional and coalesced collectives, groups of every kind, checkpoints. Each against
the same on one rank or against known values."""

import copy
import shutil
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, DTensor, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from cases import case, same, total, value

# FSDP2 over PyTorch 2.8's gloo ends with other weights.
GLOO_SHARDS = torch.__version__ >= "2.9"


def near(got, want, within=1e-5):
    got = got.full_tensor() if isinstance(got, DTensor) else got
    want = want.full_tensor() if isinstance(want, DTensor) else want
    off = (got - want).abs().max() if got.numel() else 0
    assert got.shape == want.shape and off <= within, f"off by {off}"


def model_of(width=8):
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(width, 4 * width), torch.nn.ReLU(),
        torch.nn.Linear(4 * width, width), torch.nn.LayerNorm(width))


def trained(model, batches, split=None):
    """Three steps; the losses. split: this rank's part of each batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = model(batch if split is None else batch[split]).pow(3).mean()
        loss.backward()
        optimizer.step()
        loss = loss.full_tensor() if isinstance(loss, DTensor) else loss
        losses.append(loss.item())
    return losses


def batches_of(rows, width=8):
    torch.manual_seed(1)
    return [torch.randn(rows, width) for _ in range(3)]


@case
def tensor_parallel_training(r, n):
    model, alone = model_of(), model_of()
    parallelize_module(model, init_device_mesh("cpu", (n,)),
                       {"0": ColwiseParallel(), "2": RowwiseParallel()})
    batches = batches_of(4)
    got, want = trained(model, batches), trained(alone, batches)
    near(torch.tensor(got), torch.tensor(want))
    for a, b in zip(model.parameters(), alone.parameters()):
        near(a.detach(), b.detach())


@case
def sequence_parallel_training(r, n):
    model, alone = model_of(), model_of()
    parallelize_module(model, init_device_mesh("cpu", (n,)), {
        "0": ColwiseParallel(input_layouts=Shard(0)),
        "2": RowwiseParallel(output_layouts=Shard(0)),
        "3": SequenceParallel(sequence_dim=0, use_local_output=False)})
    batches = batches_of(4 * n)
    parts = [batch.chunk(n)[r] for batch in batches]
    got, want = trained(model, parts), trained(alone, batches)
    near(torch.tensor(got), torch.tensor(want))
    for a, b in zip(model.parameters(), alone.parameters()):
        near(a.detach(), b.detach())


@case
def distributed_tensors(r, n):
    mesh = init_device_mesh("cpu", (n,))
    whole = torch.arange(float((n + 1) * (2 * n))).view(n + 1, 2 * n)
    rows = distribute_tensor(whole, mesh, [Shard(0)])  # uneven: n + 1 rows
    same(rows.full_tensor(), whole)
    columns = rows.redistribute(mesh, [Shard(1)])
    same(columns.to_local(), whole.chunk(n, 1)[r])
    same(rows.redistribute(mesh, [Replicate()]).to_local(), whole)
    part = DTensor.from_local(whole * (r + 1), mesh, [Partial()])
    factor = n * (n + 1) // 2
    same(part.redistribute(mesh, [Replicate()]).to_local(), whole * factor)
    same(part.redistribute(mesh, [Shard(1)]).to_local(), whole.chunk(n, 1)[r] * factor)
    same(rows.sum().full_tensor(), whole.sum())


@case(gloo=GLOO_SHARDS)
def hybrid_sharded_training(r, n):
    mesh = init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("replicas", "shards"))
    model, alone = model_of(), model_of()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    batches = batches_of(2 * n)
    trained(model, batches, slice(2 * r, 2 * r + 2))
    trained(alone, batches)
    for a, b in zip(model.parameters(), alone.parameters()):
        near(a.detach(), b.detach())


@case(gloo=GLOO_SHARDS)
def sharded_and_tensor_parallel_training(r, n):
    mesh = init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("dp", "tp"))
    model, alone = model_of(), model_of()
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    batches, half = batches_of(4), r // (n // 2)
    trained(model, batches, slice(2 * half, 2 * half + 2))
    trained(alone, batches)
    for a, b in zip(model.parameters(), alone.parameters()):
        near(a.detach(), b.detach())


@case(gloo=GLOO_SHARDS)
def sharded_training_in_bfloat16(r, n):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    model, alone = model_of(), model_of()
    fully_shard(model, mesh=init_device_mesh("cpu", (n,)), mp_policy=policy)
    batches = batches_of(2 * n)
    trained(model, batches, slice(2 * r, 2 * r + 2))
    trained(alone, batches)
    for a, b in zip(model.parameters(), alone.parameters()):
        near(a.detach(), b.detach(), 0.05)


@case
def ddp_with_a_communication_hook(r, n):
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model, alone = model_of(), model_of()
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0005)
    parallel.register_comm_hook(None, default_hooks.bf16_compress_hook)
    batches = batches_of(2 * n)
    trained(parallel, batches, slice(2 * r, 2 * r + 2))
    trained(alone, batches)
    for a, b in zip(model.parameters(), alone.parameters()):
        near(a.detach(), b.detach(), 0.02)


@case
def uneven_inputs_with_join(r, n):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    torch.nn.init.ones_(model.module.weight)
    with model.join():
        for _ in range(r + 1):
            model(torch.ones(1, 2)).sum().backward()
    dist.barrier()


@case
def functional_collectives_of_several_tensors(r, n):
    group = dist.group.WORLD
    xs = [value(r, count=3), value(r, count=4)]
    for x, got in zip(xs, funcol.all_reduce_coalesced(xs, "sum", group)):
        same(got + 0, total(n, lambda i: value(i, count=len(x))))
    for x, got in zip(xs, funcol.all_gather_into_tensor_coalesced(xs, group)):
        same(got + 0, torch.cat([value(i, count=len(x)) for i in range(n)]))
    wide = [x.repeat(n) for x in xs]
    got = funcol.reduce_scatter_tensor_coalesced(wide, "sum", [0, 0], group)
    for x, part in zip(xs, got):
        same(part + 0, total(n, lambda i: value(i, count=len(x))))


@case
def functional_all_to_all(r, n):
    size = lambda a, b: (a + 2 * b) % 3  # noqa: E731 some are zero
    sent = [size(r, i) for i in range(n)]
    got = [size(i, r) for i in range(n)]
    x = torch.cat([torch.full((sent[i], 2), 10.0 * r + i) for i in range(n)])
    x.requires_grad_()
    y = funcol.all_to_all_single_autograd(x, got, sent, dist.group.WORLD)
    for i, part in enumerate(y.split(got)):
        same(part.detach(), 10.0 * i + r)
    (y * (r + 1)).sum().backward()
    for i, part in enumerate(x.grad.split(sent)):
        same(part, i + 1.0)


@case
def functional_collectives_with_gradients(r, n):
    x = value(r).requires_grad_()
    y = funcol.all_gather_tensor_autograd(x, 0, dist.group.WORLD)
    (y * (r + 1)).sum().backward()
    same(x.grad, n * (n + 1) / 2)
    x = value(r).repeat(n).requires_grad_()
    y = funcol.reduce_scatter_tensor_autograd(x, "sum", 0, dist.group.WORLD)
    same(y.detach(), total(n))
    (y * (r + 1)).sum().backward()
    same(x.grad.view(n, 5), torch.arange(1.0, n + 1).unsqueeze(1))


@case
def permuted_tensors(r, n):
    got = funcol.permute_tensor(value(r), [(i + 1) % n for i in range(n)],
                                dist.group.WORLD)
    same(got + 0, value((r - 1) % n))


@case(gloo=False)
def coalesced_all_reduces(r, n):
    xs = [value(r, count=3), value(r, count=70_000)]
    with _coalescing_manager(async_ops=True) as manager:
        for x in xs:
            dist.all_reduce(x)
    manager.wait()
    for x in xs:
        same(x, total(n, lambda i: value(i, count=len(x))))
    group = dist.new_group([0, n - 1])
    if r in (0, n - 1):
        with _coalescing_manager(group):
            for x in xs:
                dist.all_reduce(x, dist.ReduceOp.MAX, group=group)
        for x in xs:
            same(x, total(n, lambda i: value(i, count=len(x))))


@case
def shares_that_are_all_empty(r, n):
    for sender in range(n):
        sent = [r == sender and 2 or 0] * n
        got = [2 if i == sender else 0 for i in range(n)]
        out = torch.zeros(2, 3)
        dist.all_to_all_single(out, torch.full((sum(sent), 3), r + 1.0), got, sent)
        same(out, sender + 1.0)
    none = torch.empty(0, 3)
    dist.all_to_all_single(none, torch.empty(0, 3), [0] * n, [0] * n)


@case
def splits_that_change(r, n):
    for step in range(8):
        size = lambda a, b: (a * 3 + b * 5 + step) % 7  # noqa: E731
        sent = [size(r, i) for i in range(n)]
        got = torch.empty(n, dtype=torch.int64)
        dist.all_to_all_single(got, torch.tensor(sent))
        same(got, torch.tensor([size(i, r) for i in range(n)]))
        out = torch.empty(int(got.sum()))
        x = torch.cat([torch.full((sent[i],), 10.0 * r + i) for i in range(n)])
        work = dist.all_to_all_single(out, x, got.tolist(), sent, async_op=True)
        work.wait()
        for i, part in enumerate(out.split(got.tolist())):
            same(part, 10.0 * i + r)


@case
def reductions_with_futures(r, n):
    """Chained, joined, and of operations that end at once."""
    xs = [torch.full((1000,), float(r + i)) for i in range(4)]
    futures = [dist.all_reduce(x, async_op=True).get_future() for x in xs]
    futures += [dist.barrier(async_op=True).get_future()]
    halves = [f.then(lambda f: f.value()[0] / 2) for f in futures[:4]]
    torch.futures.collect_all(futures).wait()
    for i, half in enumerate(halves):
        same(half.wait(), (n * i + n * (n - 1) / 2) / 2)


@case
def groups_in_any_order(r, n):
    """Ranks listed backwards, overlapping groups, used in another order than made."""
    backwards = dist.new_group(list(reversed(range(n))))
    ends = dist.new_group([n - 1, 0])
    rest = dist.new_group(list(range(1, n)))
    every = [g for g in (rest, ends, backwards)
             if g is not dist.GroupMember.NON_GROUP_MEMBER]
    for group in every:
        members = dist.get_process_group_ranks(group)
        x = value(r)
        dist.all_reduce(x, group=group)
        same(x, torch.stack([value(i) for i in members]).sum(0))
        x = value(r)
        dist.broadcast(x, group_src=len(members) - 1, group=group)
        same(x, value(members[-1]))
        assert dist.get_group_rank(group, r) == members.index(r)


@case
def subgroups_by_size_and_by_list(r, n):
    mine, every = dist.new_subgroups(2)
    assert len(every) == n // 2 and dist.get_group_rank(mine, r) == r % 2
    x = torch.ones(1)
    dist.all_reduce(x, group=mine)
    same(x, 2)
    lists = [[i, n - 1 - i] for i in range(n // 2)]
    mine, _ = dist.new_subgroups_by_enumeration(lists)
    x = torch.tensor([float(r)])
    dist.all_reduce(x, group=mine)
    same(x, n - 1)


@case
def messages_within_a_group(r, n):
    group = dist.new_group(list(range(n)))
    other = (r + n // 2) % n
    x, got = value(r), torch.empty(5)
    ops = [dist.P2POp(dist.isend, x, group=group, group_peer=other),
           dist.P2POp(dist.irecv, got, group=group, group_peer=other)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    same(got, value(other))


@case
def monitored_barriers(r, n):
    group = dist.new_group(list(range(n)))
    dist.monitored_barrier(group, timedelta(seconds=600), wait_all_ranks=True)


@case
def objects_of_changing_size(r, n):
    for step in range(4):
        out = [None] * n
        dist.all_gather_object(out, {"rank": r, "text": "x" * (step * 1000 * r)})
        assert [len(o["text"]) for o in out] == [step * 1000 * i for i in range(n)]
    group = dist.new_group([0, n - 1])
    if r in (0, n - 1):
        objects = [[r, "from the last"]]
        dist.broadcast_object_list(objects, group_src=1, group=group)
        assert objects == [[n - 1, "from the last"]]


@case
def checkpoint_of_shards(r, n):
    import torch.distributed.checkpoint as checkpoint

    place = [tempfile.mkdtemp() if r == 0 else None]
    dist.broadcast_object_list(place, 0)
    model, other = model_of(), model_of()
    for m in (model, other):
        fully_shard(m, mesh=init_device_mesh("cpu", (n,)))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=place[0])
    state = {"model": other.state_dict()}
    checkpoint.load(state, checkpoint_id=place[0])
    dist.barrier()
    if r == 0:
        shutil.rmtree(place[0])
    for a, b in zip(model.parameters(), other.parameters()):
        near(a.detach(), b.detach(), 0)


@case
def pipelined_training(r, n):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 4) for _ in range(n)]
    alone = copy.deepcopy(torch.nn.Sequential(*layers))
    stage = PipelineStage(layers[r], r, n, torch.device("cpu"))
    loss = lambda y, target: (y - target).pow(2).mean()  # noqa: E731
    schedule = Schedule1F1B(stage, n_microbatches=2 * n, loss_fn=loss)
    x, target = torch.randn(4 * n, 4), torch.randn(4 * n, 4)
    losses = []
    schedule.step(*[x] if r == 0 else [],
                  **{"target": target, "losses": losses} if r == n - 1 else {})
    want = loss(alone(x), target)
    want.backward()
    near(layers[r].weight.grad, alone[r].weight.grad)
    if r == n - 1:
        near(torch.stack(losses).mean(), want)


@case
def split_groups(r, n):
    halves = [[i for i in range(n) if i % 2 == part] for part in (0, 1)]
    try:
        group = dist.split_group(split_ranks=halves)
    except RuntimeError as error:  # PyTorch up to 2.11 splits groups of GPUs only
        assert "No device associated with the default pg" in str(error), error
        return
    x = value(r)
    dist.all_reduce(x, group=group)
    same(x, torch.stack([value(i) for i in halves[r % 2]]).sum(0))
    lone = dist.split_group(split_ranks=[[n - 1]])
    if r == n - 1:
        dist.barrier(group=lone)
    else:
        assert lone is dist.GroupMember.NON_GROUP_MEMBER


@case(gloo=False)  # it meets what stands in the store
def everything_ended_and_made_anew(r, n):
    """The last case: what was made before is gone."""
    for life in range(2):
        dist.destroy_process_group()
        dist.init_process_group("gloo", timeout=timedelta(seconds=600))
        x = value(r)
        dist.all_reduce(x)
        same(x, total(n))
        ranks = [0, n - 1] if life else list(range(n))
        group = dist.new_group(ranks)
        if r in ranks:
            x = value(r)
            dist.all_reduce(x, group=group)
            same(x, torch.stack([value(i) for i in ranks]).sum(0))
        right, left = (r + 1) % n, (r - 1) % n
        receive = dist.irecv(x := torch.empty(5), left)
        dist.isend(value(r), right).wait()
        receive.wait()
        same(x, value(left))
    dist.barrier()
