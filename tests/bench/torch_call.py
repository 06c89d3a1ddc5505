"""What a call through PyTorch costs the calling process.

usage: torch_call.py crystal | fake    prints ns of CPU per call of dist.all_reduce
       torch_call.py site              prints recorder.python_site_ns

crystal: contrib/pytorch over the library that CRYSTAL_NCCL_LIBRARY names; fake: PyTorch's
own backend that does nothing, whose cost is PyTorch's share.
"""

import functools
import sys
import time

import torch
import torch.distributed as dist

CALLS = 5000


def all_reduce_ns(backend):
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    else:
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    value, best = torch.ones(1), float("inf")
    for _ in range(5):
        begin = time.process_time_ns()
        for _ in range(CALLS):
            dist.all_reduce(value)
        best = min(best, (time.process_time_ns() - begin) / CALLS)
    return best


def deep(depth):
    """A place as training scripts have it: some frames down, then PyTorch's own."""
    from crystal_torch import _backend

    if depth:
        return deep(depth - 1)
    names = {}
    exec(compile("def call(f, n): return call(f, n - 1) if n else f()",
                 torch.__file__, "exec"), names)
    return names["call"](functools.partial(_backend.time_sites, 20000), 3)


if __name__ == "__main__":
    if sys.argv[1] == "site":
        print(f"recorder.python_site_ns {min(deep(5) for _ in range(5)):.0f} ns")
    else:
        print(f"{all_reduce_ns(sys.argv[1]):.0f}")
