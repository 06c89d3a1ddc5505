"""How long PyTorch's communicators take to start; run by torch_rank.py as its program.

usage: setup.py world | megatron
world: init_process_group and the first all-reduce of all ranks. megatron: also the groups
of Megatron-LM's initialize_model_parallel with TP 8 and PP 16 (its gloo twins included),
and one all-reduce in each that this rank shares with another. Prints
"setup.NAMEn_s SECONDS s" and what that took of the device's memory.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))


def first_call(group=None):
    x = torch.ones(1)
    dist.all_reduce(x, group=group)
    assert x.item() == 1  # every virtual rank contributes zeros


def memory_free():
    """Of the device, in MiB; 0 without one."""
    return torch.cuda.mem_get_info()[0] / 2**20 if torch.cuda.is_available() else 0


def main():
    torch.ones(1).sum().item()  # the device's own start is not ours
    before = memory_free()
    began = time.monotonic()
    dist.init_process_group("gloo")
    n = dist.get_world_size()
    mine = []
    if sys.argv[1] == "megatron":
        import pytorch8192

        def new_group(ranks):
            group = dist.new_group(ranks)
            if group is not dist.GroupMember.NON_GROUP_MEMBER and len(ranks) > 1:
                mine.append(group)
            return group

        pytorch8192.megatron_groups(new_group)
    grouped = time.monotonic()
    first_call()
    for group in mine:
        first_call(group)
    took = time.monotonic() - began
    print("# setup %s: n=%d, %d communicators, groups made after %.3f s"
          % (sys.argv[1], n, len(mine) + 1, grouped - began))
    print("setup.%s%d_s %.3f s" % (sys.argv[1], n, took))
    print("gpu.per_rank_mib.%s%d %.1f MiB" % (sys.argv[1], n, before - memory_free()),
          flush=True)


main()
