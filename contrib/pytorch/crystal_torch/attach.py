"""Puts Crystal's backend where torch.distributed looks for gloo, tells the store who is in
a group of NCCL, and the library where each training iteration ends."""

import ctypes
import os
import sys
import weakref

import torch.distributed
from torch.distributed import distributed_c10d
from torch.optim.optimizer import register_optimizer_step_post_hook

try:
    from . import _backend
except ImportError:  # not built: enough for NCCL, where the library stands before it
    _backend = None

# An iteration ends with the step of the first optimizer that steps in it. A program may
# have several; the first one seen marks the iterations, and when it is gone, the next.
_marking_optimizer = None


def _preloaded(name):
    """A function of the library, where that is in LD_PRELOAD, else None."""
    return getattr(ctypes.CDLL(None), name, None)


def _after_step(optimizer, args, kwargs):
    global _marking_optimizer
    marking = _marking_optimizer() if _marking_optimizer is not None else None
    if marking is None:
        _marking_optimizer = weakref.ref(optimizer)
    elif marking is not optimizer:
        return
    # The stage may end the process in the library: what was printed is not to be lost.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # none, a closed pipe or file
            pass
    hint = _preloaded("crystal_iteration_hint") or (_backend and _backend.iteration_hint)
    if hint:
        hint()


def _leave_detail_mode():
    """That mode compares each operation with all ranks over a group of its own, which
    ranks that do not run cannot join."""
    if torch.distributed.get_debug_level() == torch.distributed.DebugLevel.DETAIL:
        print("crystal: pytorch: TORCH_DISTRIBUTED_DEBUG=DETAIL needs all ranks, using INFO",
              file=sys.stderr)
        torch.distributed.set_debug_level(torch.distributed.DebugLevel.INFO)


def _ranks_text(ranks):
    """A list of ranks as the store's rules have it: "0-3,8"."""
    parts = []
    for rank in ranks:
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join("%d-%d" % (a, b) if b > a else "%d" % a for a, b in parts)


def _name_groups():
    """Groups of NCCL tell the store their members before anybody asks for their ids, so
    that those which do not run are known."""
    stock = distributed_c10d.ProcessGroupNCCL

    class ProcessGroupNCCL(stock):
        def __init__(self, store, rank, size, options):
            root = store
            while isinstance(root, torch.distributed.PrefixStore):
                root = root.underlying_store
            ranks = list(options.global_ranks_in_group) or range(size)
            if options.group_name:
                root.set("crystal/group/" + options.group_name, _ranks_text(ranks))
            super().__init__(store, rank, size, options)

    distributed_c10d.ProcessGroupNCCL = ProcessGroupNCCL
    torch.distributed.ProcessGroupNCCL = ProcessGroupNCCL


def attach():
    # distributed_c10d makes its gloo groups with this name, for "gloo" and "cpu:gloo"
    # alike, and asks isinstance about the result.
    if _backend:
        distributed_c10d.ProcessGroupGloo = _backend.ProcessGroupCrystal
        torch.distributed.ProcessGroupGloo = _backend.ProcessGroupCrystal
    if os.environ.get("CRYSTAL_STAGE") == "capture" and _preloaded("crystal_iteration_hint"):
        _name_groups()
    register_optimizer_step_post_hook(_after_step)
    _leave_detail_mode()
