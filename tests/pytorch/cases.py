"""The cases of ops.py and parallel.py: how they are declared, compared and run."""

import os
import sys
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

CASES = []
IS_CRYSTAL = bool(os.environ.get("CRYSTAL_NCCL_LIBRARY"))
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]


def case(function=None, gloo=True):
    """A test; gloo=False where PyTorch's gloo cannot do it."""

    def add(f):
        if gloo or IS_CRYSTAL:
            CASES.append(f)
        return f

    return add(function) if function else add


def same(got, want):
    want = torch.as_tensor(want).to(got.dtype).expand_as(got)
    assert torch.equal(got, want), f"got {got.flatten()[:8]}, want {want.flatten()[:8]}"


def value(rank, dtype=torch.float32, count=5):
    """Rank's own contribution: small whole numbers, exact in every dtype."""
    if dtype == torch.bool:
        return torch.tensor([(rank + i) % 3 == 0 for i in range(count)])
    return torch.tensor([rank + 1 + i for i in range(count)]).to(dtype)


def total(n, of=value):
    """The sum of what all ranks contribute."""
    return torch.stack([of(i) for i in range(n)]).sum(0)


def raises(text, call):
    try:
        call()
    except Exception as error:
        assert text in str(error), f"said '{error}', not '{text}'"
        return
    raise AssertionError(f"did not raise '{text}'")


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    r, n = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    assert dist.get_backend() == "gloo"
    failed = 0
    names = sys.argv[1:]
    cases = [f for f in CASES if not names or f.__name__ in names]
    for number, function in enumerate(cases, 1):
        try:
            function(r, n)
            store.set(f"result/{number}/{r}", "ok")
        except Exception:
            store.set(f"result/{number}/{r}", traceback.format_exc())
            failed += 1
        if r == 0:
            results = [store.get(f"result/{number}/{i}").decode() for i in range(n)]
            bad = [f"rank {i}: {x}" for i, x in enumerate(results) if x != "ok"]
            print(f"{'not ok' if bad else 'ok'} {number} - {function.__name__}")
            for line in "\n".join(bad).splitlines():
                print("#", line)
            sys.stdout.flush()
    if r == 0:
        print(f"1..{len(cases)}", flush=True)
    dist.destroy_process_group()
    sys.exit(1 if failed else 0)
