"""One rank that keeps its GPU busy for known times, for capture to find in its trace:
kernels of the main thread and of autograd's on the current stream, others on a second
one between two events, a copy to the host. Every step prints what CUDA's own events say
of it. With --profile the second half of the steps runs under PyTorch's profiler.
"""

import os
import sys

import torch
import torch.distributed as dist

CYCLES = 2_000_000  # about a millisecond


class SleepBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        torch.cuda._sleep(3 * CYCLES)
        return grad


def timed(function):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    function()
    end.record()
    return begin, end


def step(weight, optimizer, side):
    main = torch.cuda.current_stream()
    loss = SleepBackward.apply(weight).sum()
    spans = {"forward": timed(lambda: torch.cuda._sleep(CYCLES))}
    dist.all_reduce(torch.ones(1000, device="cuda"))
    side.wait_stream(main)
    with torch.cuda.stream(side):
        spans["side"] = timed(lambda: torch.cuda._sleep(2 * CYCLES))
    main.wait_stream(side)
    spans["backward"] = timed(loss.backward)
    weight.detach().cpu()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    return {name: int(1e6 * a.elapsed_time(b)) for name, (a, b) in spans.items()}


def main():
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"),
                        ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29473")):
        os.environ.setdefault(name, value)
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    weight = torch.nn.Parameter(torch.zeros(1 << 20, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    side = torch.cuda.Stream()
    profiler = None
    if "--profile" in sys.argv:
        profiler = torch.profiler.profile()
    for i in range(10):
        if profiler and i == 5:
            profiler.start()
        spans = step(weight, optimizer, side)
        print("work", " ".join(f"{k}_ns={v}" for k, v in spans.items()), flush=True)
    if profiler:
        profiler.stop()
        seen = sum(e.device_time_total > 0 for e in profiler.key_averages())
        print(f"work profiled={seen}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
