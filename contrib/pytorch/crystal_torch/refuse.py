"""What a program must leave out, told where it begins: its ranks would meet around NCCL,
where virtual ones never come, or, in capture and plan, beside the training in no order."""

import importlib.abc
import importlib.util
import sys

from torch._C import _distributed_c10d

_SYMMETRIC = ("kernels that read other ranks' memory cannot be captured; switch off "
              "symmetric memory (torch.distributed._symmetric_memory, async tensor "
              "parallelism, Megatron's and DeepEP's NVSHMEM paths)")
_ASYNC = ("a checkpoint that is saved beside the training cannot be captured, its "
          "collectives come in no order; save it synchronously, or after the captured "
          "iterations")

# Functions by module, refused once that is imported.
_LATER = {
    "torch.distributed.checkpoint.state_dict_saver": "async_save",
    "megatron.core.dist_checkpointing.strategies.async_utils":
        "AsyncCallsQueue.schedule_async_request",
}


def _refused(name, why):
    def call(*_, **__):
        raise RuntimeError(f"crystal: pytorch: {name}: {why}")

    return call


def _refuse_in(module):
    *owners, name = _LATER[module.__name__].split(".")
    for owner in owners:
        module = getattr(module, owner, None)
    if hasattr(module, name): # else it is of another version
        setattr(module, name, _refused(name, _ASYNC))


class _Loader(importlib.abc.Loader):
    def __init__(self, loader):
        self.loader = loader

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        _refuse_in(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in _LATER:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec and spec.loader:
                spec.loader = _Loader(spec.loader)
                return spec
        return None


def attach(stage):
    symmetric = getattr(_distributed_c10d, "_SymmetricMemory", None)
    for name in ("rendezvous", "empty_strided_p2p"):
        if hasattr(symmetric, name):
            setattr(symmetric, name, _refused(name, _SYMMETRIC))
    if stage not in ("capture", "plan"):
        return
    for name in _LATER:
        if name in sys.modules:
            _refuse_in(sys.modules[name])
    sys.meta_path.insert(0, _Finder())
