"""Puts Crystal's backend where torch.distributed looks for gloo, and tells the library
at the end of each training iteration."""

import weakref

import torch.distributed
from torch.distributed import distributed_c10d
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import _backend

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
    _backend.iteration_hint()


def attach():
    # distributed_c10d makes its gloo groups with this name, for "gloo" and "cpu:gloo"
    # alike, and asks isinstance about the result.
    distributed_c10d.ProcessGroupGloo = _backend.ProcessGroupCrystal
    torch.distributed.ProcessGroupGloo = _backend.ProcessGroupCrystal
    register_optimizer_step_post_hook(_after_step)
