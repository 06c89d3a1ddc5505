"""Lets launchers and start-up code that were written for the whole job run as one of its
ranks: Crystal has started this process as rank CRYSTAL_LRANK, whatever the command line
says about nodes, ranks and where they meet.

A torchrun (torch.distributed.run, or whatever else ends in elastic_launch) becomes the
worker that it would have started for this rank; no rendezvous is held, since the agents
of the other nodes do not exist. Stores that the ranks would meet at, tcp:// or env:// with
any address and port, are Crystal's.
"""

import importlib.abc
import importlib.machinery
import os
import re
import sys

import torch.distributed

_LAUNCHER = "torch.distributed.launcher.api"


def is_rank():
    return "CRYSTAL_LRANK" in os.environ and "CRYSTAL_STORE" in os.environ


def _number(name):
    return int(os.environ[name])


def _store():
    host, _, port = os.environ["CRYSTAL_STORE"].rpartition(":")
    return host, int(port)


# --- the environment, where a script around us has taken something out of it


def put_right():
    """What is missing is set; what is there and wrong is the program's own fault, and is
    told where it shows."""
    rank, per_node = _number("CRYSTAL_LRANK"), _number("CRYSTAL_RANKS_PER_NODE")
    host, port = _store()
    wanted = {
        "RANK": rank,
        "LOCAL_RANK": rank % per_node,
        "WORLD_SIZE": _number("CRYSTAL_LOGICAL_RANKS"),
        "LOCAL_WORLD_SIZE": per_node,
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
    }
    for name, value in wanted.items():
        os.environ.setdefault(name, str(value))


# --- torchrun


def _fail(sentence):
    print(f"crystal: pytorch: {sentence}", file=sys.stderr)
    sys.exit(2)


def _check_count(config):
    per_node = _number("CRYSTAL_RANKS_PER_NODE")
    # "gpu" and "auto" are what this machine has, not what the user has said
    told = re.search(r"--nproc[-_]per[-_]node[= ]([0-9]+)( |$)", " ".join(sys.argv))
    if told and config.nproc_per_node != per_node:
        _fail(
            f"torchrun --nproc-per-node={config.nproc_per_node}, but a node of the job "
            f"has {per_node} ranks; give --crystal-ranks-per-node={config.nproc_per_node}"
        )


def _become_worker(self, *args):
    """In place of elastic_launch.__call__: environment as the agent sets it."""
    config, entry = self._config, self._entrypoint
    rank, per_node = _number("CRYSTAL_LRANK"), _number("CRYSTAL_RANKS_PER_NODE")
    nodes = _number("CRYSTAL_LOGICAL_RANKS") // per_node
    _check_count(config)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                 "MASTER_PORT"):
        os.environ.pop(name, None)
    put_right()
    os.environ.update(
        GROUP_RANK=str(rank // per_node),
        GROUP_WORLD_SIZE=str(nodes),
        ROLE_RANK=os.environ["RANK"],
        ROLE_WORLD_SIZE=os.environ["WORLD_SIZE"],
        ROLE_NAME=getattr(config, "role", None) or "default",
        TORCHELASTIC_RUN_ID=str(getattr(config, "run_id", "") or "none"),
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    if callable(entry):
        return {rank % per_node: entry(*args)}
    line = [entry] + [str(a).replace("${local_rank}", str(rank % per_node)) for a in args]
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp(entry, line)
    except OSError as error:
        _fail(f"{entry}: {error.strerror}")


class _Loader(importlib.abc.Loader):
    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        module.elastic_launch.__call__ = _become_worker


class _Finder(importlib.abc.MetaPathFinder):
    """Changes the launcher when it is imported, which ranks do not do: it takes time."""

    def find_spec(self, name, path, target=None):
        if name != _LAUNCHER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = _Loader(spec.loader)
        return spec


# --- stores


def _create_store(hostname, port, rank, world_size, timeout, use_libuv=True):
    host, own_port = _store()
    return torch.distributed.TCPStore(
        host_name=host, port=own_port, world_size=world_size, is_master=False,
        timeout=timeout)


def _refuse_file(url, **kwargs):
    raise RuntimeError(
        "crystal: ranks that do not run cannot meet at a file; use init_method env:// "
        "or tcp:// instead of " + url)


def attach():
    put_right()
    sys.meta_path.insert(0, _Finder())
    if _LAUNCHER in sys.modules:
        sys.modules[_LAUNCHER].elastic_launch.__call__ = _become_worker
    # torch.distributed has a function of that name
    rendezvous = sys.modules["torch.distributed.rendezvous"]
    rendezvous._create_c10d_store = _create_store
    rendezvous._rendezvous_handlers["file"] = _refuse_file
