"""Steps of two alike halves, each an all-reduce and an optimizer's step: what repeats is
a half, an NVTX range says where a step begins. Each rank prints a line per step. usage:
ranges.py BACKEND STEPS WAY... The ways to begin the range are taken in turn."""

import contextlib
import itertools
import sys

import torch
import torch.distributed as dist


@contextlib.contextmanager
def started(step):
    """Of torch.cuda.nvtx, from start to end."""
    number = torch.cuda.nvtx.range_start(f"step {step}")
    yield
    torch.cuda.nvtx.range_end(number)


@contextlib.contextmanager
def registered(step):
    """Of the nvtx package, whose strings are handles, in a domain of its own."""
    import nvtx

    domain = nvtx.get_domain("training")
    domain.push_range(domain.get_event_attributes(message="step"))
    yield
    domain.pop_range()


def annotated(step):
    import nvtx

    return nvtx.annotate(f"step {step}", color="blue")


WAYS = {
    "pushed": lambda step: torch.cuda.nvtx.range(f"step {step}"),
    "started": started,
    "annotated": annotated,
    "registered": registered,
    "none": lambda step: contextlib.nullcontext(),
}


def half(weight, optimizer):
    weight.grad = torch.ones_like(weight)
    dist.all_reduce(weight.grad)
    optimizer.step()


def main():
    backend, steps, ways = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    if backend == "nccl":
        torch.cuda.set_device(0)
    dist.init_process_group(backend)
    weight = torch.nn.Parameter(torch.zeros(64, device="cuda" if backend == "nccl" else "cpu"))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    for step, way in zip(range(steps), itertools.cycle(ways)):
        with WAYS[way](step):
            half(weight, optimizer)
            half(weight, optimizer)
        print(f"rank {dist.get_rank()} step {step} weight {weight[0].item()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
