"""How long one PyTorch rank of 8192 takes to start, after `import torch`: the process
group of all ranks, Megatron-LM's groups for tensor parallelism 8 and 16 pipeline stages,
and the first broadcast over the world, from a rank that does not exist. The node's
service answers for the 8191 others; the unique id of the world is in a TCPStore.

Prints "start.pytorch8192_s SECONDS s"; to standard error, how long each part took.
"""

import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist

WORLD, TP, PP, RANK = 8192, 8, 16, 4097


def megatron_groups(new_group):
    """The new_group calls of Megatron-LM's initialize_model_parallel, with its extra
    gloo groups: mostly groups that this rank is not in."""
    dp = WORLD // TP // PP
    stage = WORLD // PP

    def singles():
        for rank in range(WORLD):
            new_group([rank])

    def data_parallel(backends):
        for first in range(PP):
            for t in range(TP):
                ranks = range(first * stage + t, (first + 1) * stage, TP)
                for _ in range(backends):
                    new_group(ranks)

    def tensor_parallel():
        for first in range(0, WORLD, TP):
            new_group(range(first, first + TP))

    def pipelines():
        for first in range(stage):
            yield range(first, WORLD, stage)

    singles()  # generalized tensor parallelism
    data_parallel(2)  # data with context
    data_parallel(2)  # data
    singles()  # context
    for d in range(dp):  # model
        new_group([r for p in pipelines() for r in p if r % stage // TP == d])
    tensor_parallel()
    for ranks in pipelines():
        new_group(ranks)
        new_group([ranks[0], ranks[-1]])  # shared embedding
        new_group([ranks[0]])  # positions
    for _ in range(2):  # tensor with data
        for p in range(PP):
            new_group(range(p * stage, (p + 1) * stage))
    tensor_parallel()  # tensor with context
    singles()  # experts: generalized tensor parallelism
    singles()  # experts
    for _ in range(2):  # experts: tensor
        tensor_parallel()
    for d in range(dp):  # experts: tensor, model, pipeline
        new_group([r for p in pipelines() for r in p if r % stage // TP == d])
    data_parallel(2)  # experts: data
    new_group(range(WORLD))  # instances of the optimizer


def main():
    node = subprocess.Popen(
        [os.path.join(os.environ["CRYSTAL_BUILDDIR"], "tests", "programs", "nodeserver"),
         "-n", str(WORLD), "-g", "1", "-r", str(RANK)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    board = node.stdout.readline().split()
    name, world, digits = node.stdout.readline().split()
    assert (board[0], name, world) == ("board", "id", "world")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("default_pg/0//cpu//0", bytes.fromhex(digits))
    os.environ.update(
        CRYSTAL_BOARD=board[1], CRYSTAL_LRANK=str(RANK), RANK=str(RANK),
        WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port),
        CRYSTAL_LOGICAL_RANKS=str(WORLD), TORCHELASTIC_USE_AGENT_STORE="True")

    calls = mine = 0

    def new_group(ranks):
        nonlocal calls, mine
        calls += 1
        if dist.new_group(ranks) is not dist.GroupMember.NON_GROUP_MEMBER:
            mine += 1

    began = time.monotonic()
    dist.init_process_group("gloo")
    inited = time.monotonic()
    megatron_groups(new_group)
    grouped = time.monotonic()
    x = torch.full((1 << 18,), -1.0)
    dist.broadcast(x, 0)
    done = time.monotonic()
    print(f"pytorch8192: init {inited - began:.3f} s, {calls} new_group calls, {mine} of "
          f"them with this rank, {grouped - inited:.3f} s, first broadcast "
          f"{done - grouped:.3f} s", file=sys.stderr)
    print(f"start.pytorch8192_s {done - began:.3f} s", flush=True)
    node.stdin.close()
    os._exit(node.wait())


if __name__ == "__main__":
    main()
