"""tests/pytorch/ops.py with NCCL on a GPU, which several ranks may share: what its cases
call the CPU and gloo is the GPU and NCCL. Ranks as under torchrun; rank 0 prints TAP.
Arguments name the cases to run; without, all but those named in LEFT_OUT. PROGRAM names
another program of that folder to run so.
"""

import os
import runpy
import sys

import torch
import torch.distributed as dist
from torch.distributed import device_mesh
from torch.overrides import TorchFunctionMode

HERE = os.path.dirname(os.path.abspath(__file__))
GPU = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % max(1, torch.cuda.device_count()))
LEFT_OUT = set(os.environ.get("LEFT_OUT", "").split())


class OnDevice(TorchFunctionMode):
    """Random numbers of a CPU's generator are drawn there."""

    def __torch_function__(self, function, types, args=(), more=None):
        more = more or {}
        generator = more.get("generator")
        if generator is None or generator.device.type == "cuda":
            return function(*args, **more)
        return function(*args, **{**more, "device": "cpu"}).to(GPU)


def main():
    tests = os.path.join(HERE, "..", "pytorch")
    sys.path.insert(0, tests)
    make_group, make_mesh = dist.init_process_group, device_mesh.init_device_mesh
    dist.init_process_group = lambda backend, **more: make_group("nccl", **more)
    dist.get_backend = lambda group=None: "gloo"
    device_mesh.init_device_mesh = lambda device, *args, **more: make_mesh(
        "cuda", *args, **more)
    torch.cuda.set_device(GPU)
    torch.set_default_device(GPU)
    import cases

    class Cases(list):
        def append(self, function):
            if function.__name__ not in LEFT_OUT:
                super().append(function)

    cases.CASES = Cases()
    with OnDevice():
        runpy.run_path(os.path.join(tests, os.environ.get("PROGRAM", "ops.py")),
                       run_name="__main__")


main()
