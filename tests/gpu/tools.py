"""PyTorch's own tools on a real rank among virtual ones; run by torch_rank.py as its
program, with TORCH_FR_BUFFER_SIZE set.

usage: tools.py PREFIX
Trains a DDP model for a few steps under the profiler, with the memory history and the
flight recorder on, and ends with an error where one of them lacks what it has on a whole
cluster: NCCL's real kernels in the trace, as many as there were calls; allocations with
their places, and as much in the snapshot's segments as is reserved; each call of a
collective, completed. Leaves PREFIX.trace.json and PREFIX.snapshot.pickle.
"""

import collections
import json
import os
import pickle
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

STEPS, GATHERS = 5, 3


def need(ok, what):
    if not ok:
        raise SystemExit("tools: " + what)
    print("# tools: " + what, flush=True)


def work(model, optimizer):
    x = torch.randn(32, 256, device="cuda")
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    out = torch.empty(dist.get_world_size() * 64, device="cuda")
    for _ in range(GATHERS):
        dist.all_gather_into_tensor(out, torch.ones(64, device="cuda"))
    torch.cuda.synchronize()


def kernels(path):
    with open(path) as file:
        events = json.load(file)["traceEvents"]
    return collections.Counter(
        e["name"].split("(")[0] for e in events
        if e.get("cat") == "kernel" and "nccl" in e["name"].lower())


def check_profile(path):
    found = kernels(path)
    print("# tools: kernels %s" % dict(found), flush=True)
    reduces = sum(v for k, v in found.items()
                  if k.startswith("ncclDevKernel_AllReduce_Sum_f32"))
    gathers = sum(v for k, v in found.items() if k.startswith("ncclDevKernel_AllGather"))
    need(reduces == STEPS, "%d all-reduce kernels in the trace, %d steps" % (reduces, STEPS))
    need(gathers == GATHERS, "%d all-gather kernels in the trace" % gathers)


def check_snapshot(path):
    torch.cuda.memory._dump_snapshot(path)
    with open(path, "rb") as file:
        snapshot = pickle.load(file)
    total = sum(s["total_size"] for s in snapshot["segments"])
    need(total == torch.cuda.memory_reserved(),
         "%d bytes in the snapshot's segments, %d reserved" % (
             total, torch.cuda.memory_reserved()))
    traces = [t for device in snapshot["device_traces"] for t in device]
    places = {os.path.basename(f["filename"]) for t in traces for f in t.get("frames", [])}
    need(any(t["action"] == "alloc" for t in traces) and "tools.py" in places,
         "%d events of memory, with their places" % len(traces))


def check_recorder():
    entries = pickle.loads(torch._C._distributed_c10d._dump_nccl_trace())["entries"]
    names = collections.Counter(e["profiling_name"] for e in entries)
    states = collections.Counter(e["state"] for e in entries)
    print("# tools: recorded %s %s" % (dict(names), dict(states)), flush=True)
    need(names["nccl:all_reduce"] >= STEPS and
         names["nccl:_all_gather_base"] == GATHERS, "the flight recorder has every call")
    need(set(states) == {"completed"}, "all of them completed")


def main():
    prefix = sys.argv[1]
    torch.cuda.memory._record_memory_history()
    dist.init_process_group("nccl")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(),
                                torch.nn.Linear(256, 256)).cuda()
    wrapped = DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as run:
        work(wrapped, optimizer)
    run.export_chrome_trace(prefix + ".trace.json")
    dist.barrier()
    torch.cuda.synchronize()
    check_profile(prefix + ".trace.json")
    check_snapshot(prefix + ".snapshot.pickle")
    check_recorder()


main()
