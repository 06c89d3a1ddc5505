"""Puts Crystal's backend where torch.distributed looks for gloo, and tells the library
at the end of each training iteration."""

import sys
import weakref

import torch.distributed
from torch.distributed import distributed_c10d
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import _backend, launch

# An iteration ends with the step of the first optimizer that steps in it. A program may
# have several; the first one seen marks the iterations, and when it is gone, the next.
_marking_optimizer = None


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
    _backend.iteration_hint()


def _leave_detail_mode():
    """That mode compares each operation with all ranks over a group of its own, which
    ranks that do not run cannot join."""
    if torch.distributed.get_debug_level() == torch.distributed.DebugLevel.DETAIL:
        print("crystal: pytorch: TORCH_DISTRIBUTED_DEBUG=DETAIL needs all ranks, using INFO",
              file=sys.stderr)
        torch.distributed.set_debug_level(torch.distributed.DebugLevel.INFO)


def attach():
    # distributed_c10d makes its gloo groups with this name, for "gloo" and "cpu:gloo"
    # alike, and asks isinstance about the result.
    distributed_c10d.ProcessGroupGloo = _backend.ProcessGroupCrystal
    torch.distributed.ProcessGroupGloo = _backend.ProcessGroupCrystal
    register_optimizer_step_post_hook(_after_step)
    _leave_detail_mode()
    if launch.is_rank():
        launch.attach()
