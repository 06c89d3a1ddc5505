"""The smallest training program of PyTorch, for launch.t: what a launcher has told it
goes to the file LAUNCHED.STAGE.RANK, then four steps with an all-reduce each.

--init URL   init_method, with {rank} and {world} filled in (default env://)
--port P     the program's own MASTER_PORT, and address
"""

import argparse
import os

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--init")
parser.add_argument("--port")
parser.add_argument("--local-rank", "--local_rank", type=int)
args = parser.parse_args()
if args.port:
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = args.port
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if args.init:
    dist.init_process_group(
        "gloo", init_method=args.init, rank=rank, world_size=world)
else:
    dist.init_process_group("gloo")
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
         "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NNODES", "VIRTUAL_ENV"]
with open(f"launched.{os.environ['CRYSTAL_STAGE']}.{rank}", "w") as file:
    print(*(os.path.basename(os.environ.get(name, "-")) for name in names),
          dist.get_rank(), dist.get_world_size(), file=file)
weight = torch.nn.Parameter(torch.ones(64))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(4):
    weight.grad = torch.full_like(weight, 1.0)
    dist.all_reduce(weight.grad)
    optimizer.step()
dist.destroy_process_group()
