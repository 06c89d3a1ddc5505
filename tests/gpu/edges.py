"""edges.py CASE [BACKEND]: what capture has to take, or to refuse, beside training.

large   an all-reduce, an all-gather and a message of more than 1 GiB each
around  a communicator of an NCCL that was opened by its path (NCCL: that path)
"""

import ctypes
import os
import sys

import torch
import torch.distributed as dist

COUNT = 300_000_007  # floats: 1.2 GB, no round number


def large():
    backend = sys.argv[2] if len(sys.argv) > 2 else "nccl"
    device = "cuda" if backend == "nccl" else "cpu"
    if device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.full((COUNT,), float(rank + 1), device=device)
    x[-1] = 10 * rank
    dist.all_reduce(x)
    total = size * (size + 1) / 2
    good = bool((x[:-1] == total).all()) and x[-1].item() == 10 * size * (size - 1) / 2
    print(f"edges: rank {rank} all_reduce {good}", flush=True)
    if rank == 0:
        dist.send(x, 1)
    elif rank == 1:
        x.zero_()
        dist.recv(x, 0)
    good = bool((x[:-1] == total).all())
    print(f"edges: rank {rank} message {good}", flush=True)
    del x
    part = torch.full((COUNT // size,), float(rank), device=device)
    whole = torch.empty(COUNT // size * size, device=device)
    dist.all_gather_into_tensor(whole, part)
    good = all(bool((row == i).all()) for i, row in enumerate(whole.view(size, -1)))
    print(f"edges: rank {rank} all_gather {good}", flush=True)
    dist.destroy_process_group()


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


def around():
    torch.zeros(1, device="cuda")
    nccl = ctypes.CDLL(os.environ["NCCL"])
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, Id, ctypes.c_int]
    name, comm = Id(), ctypes.c_void_p()
    nccl.ncclGetUniqueId(ctypes.byref(name))
    code = nccl.ncclCommInitRank(ctypes.byref(comm), 1, name, 0)
    print(f"edges: around {code}", flush=True)
    sys.exit(code)


{"large": large, "around": around}[sys.argv[1]]()
