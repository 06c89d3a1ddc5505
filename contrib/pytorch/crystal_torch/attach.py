"""Puts Crystal's backend where torch.distributed looks for gloo; for NCCL, tells the store
who is in a group, and the library which line of the script calls; for both, where each
training iteration ends."""

import ctypes
import functools
import os
import sys
import weakref

import torch.distributed
from torch.distributed import distributed_c10d
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import launch, refuse

try:
    from . import _backend
except ImportError:  # not built: enough for NCCL, where the library stands before it
    _backend = None

# What is told of where it is called. Not isend and irecv: P2POp wants those of PyTorch.
_CALLS = (
    "all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce",
    "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast",
    "broadcast_object_list", "gather", "gather_object", "recv", "reduce",
    "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send",
)
_SITES_MAX = 16384  # of a program that makes code while it runs

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


def _tell_sites():
    """The library knows the line of the script behind a call, for its diagnoses. What
    PyTorch's C++ calls by itself, as DDP does, has none."""
    tell = ctypes.PyDLL(None).crystal_call_site
    tell.argtypes = [ctypes.c_char_p]
    ignored = tuple(os.path.dirname(f) + os.sep for f in (torch.__file__, __file__)) + ("<",)
    texts = {}  # they keep their addresses

    def text_of(frame):
        while frame and (frame.f_code.co_filename.startswith(ignored) or
                         frame.f_code.co_name == "__torch_function__"):  # of a mode
            frame = frame.f_back
        if not frame:
            return None
        key = frame.f_code, frame.f_lasti
        if key not in texts and len(texts) < _SITES_MAX:
            code = frame.f_code
            texts[key] = ctypes.create_string_buffer(
                "{}:{} in {}".format(os.path.basename(code.co_filename), frame.f_lineno,
                                     code.co_name).encode()[:95])
        return texts.get(key)

    def told(function):
        @functools.wraps(function)
        def call(*args, **more):
            tell(text_of(sys._getframe(1)))
            try:
                return function(*args, **more)
            finally:
                tell(None)

        return call

    for name in _CALLS:
        function = told(getattr(distributed_c10d, name))
        setattr(distributed_c10d, name, function)
        setattr(torch.distributed, name, function)


def attach():
    # distributed_c10d makes its gloo groups with this name, for "gloo" and "cpu:gloo"
    # alike, and asks isinstance about the result.
    if _backend:
        distributed_c10d.ProcessGroupGloo = _backend.ProcessGroupCrystal
        torch.distributed.ProcessGroupGloo = _backend.ProcessGroupCrystal
    if torch.distributed.is_nccl_available():
        _name_groups()
    if os.environ.get("CRYSTAL_STAGE") == "capture" and _preloaded("crystal_iteration_hint"):
        _tell_sites()
    refuse.attach(os.environ.get("CRYSTAL_STAGE"))
    register_optimizer_step_post_hook(_after_step)
    _leave_detail_mode()
    if launch.is_rank():
        launch.attach()
