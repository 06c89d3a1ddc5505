"""Lets a program that asks PyTorch for gloo run under Crystal, without a changed line.

`import torch` calls autoload() through the entry point group torch.backends. Where the
environment does not name CRYSTAL_NCCL_LIBRARY, that is all that happens.
"""

import os


def autoload():
    if os.environ.get("CRYSTAL_NCCL_LIBRARY"):
        from . import attach

        attach.attach()
