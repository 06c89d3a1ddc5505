"""Ranks whose calls do not fit. usage: site.py count | cycle"""

import sys

import torch
import torch.distributed as dist


def count(rank):
    n = 5 if rank == 2 else 4
    dist.all_reduce(torch.ones(n))  # here


def cycle(rank):
    dist.recv(torch.ones(4), (rank + 1) % dist.get_world_size())


if __name__ == "__main__":
    dist.init_process_group("gloo")
    {"count": count, "cycle": cycle}[sys.argv[1]](dist.get_rank())
