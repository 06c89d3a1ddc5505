#!/bin/bash
# What `import torch` does with crystal-torch installed: nothing without
# CRYSTAL_NCCL_LIBRARY; with it, programs that ask for gloo get our backend.
. "$CRYSTAL_SRCDIR/tests/pytorch/tap.sh"

runs() { # runs CODE: the Python code passes its asserts
    "$python" -c "import torch, torch.distributed as dist, os, sys
$1"
}

says() { # says TEXT CODE: it fails with TEXT
    runs "$2" >"$tmp/says" 2>&1 && { cat "$tmp/says"; return 1; }
    grep -F "$1" "$tmp/says" || { cat "$tmp/says"; return 1; }
}

one="store = dist.HashStore()
make = lambda backend: dist.init_process_group(backend, store=store, rank=0, world_size=1)
"
stock='assert dist.ProcessGroupGloo is torch._C._distributed_c10d.ProcessGroupGloo
assert dist.distributed_c10d.ProcessGroupGloo is dist.ProcessGroupGloo
assert not any(name.startswith("crystal_torch.") for name in sys.modules)
assert "crystal" not in open("/proc/self/maps").read().replace(sys.prefix, "")
make("gloo")
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
assert type(backend) is dist.ProcessGroupGloo, type(backend)'

ok "without CRYSTAL_NCCL_LIBRARY nothing is touched" runs "$one$stock"
# Of five times the fastest, in CPU time: what else runs here does not count.
ok "and the entry point takes less than 5 ms" runs '
import importlib.metadata, time
(entry,) = [e for e in importlib.metadata.entry_points(group="torch.backends")
            if e.name == "crystal"]
def load():
    for name in [name for name in sys.modules if name.startswith("crystal_torch")]:
        del sys.modules[name]
    began = time.thread_time()
    entry.load()()
    return (time.thread_time() - began) * 1e3
ms = min(load() for _ in range(5))
print(ms, "ms")
assert ms < 5'

export CRYSTAL_NCCL_LIBRARY=/nonexistent/library.so
ok "a library that is missing is said when a group is made" \
    says "CRYSTAL_NCCL_LIBRARY cannot be loaded: /nonexistent/library.so" \
    "${one}make('gloo')"
ok "a program without groups runs all the same" runs ""
ok "autoload can be switched off" \
    env TORCH_DEVICE_BACKEND_AUTOLOAD=0 "$python" -c "import torch, torch.distributed as dist, sys
$one$stock"
CRYSTAL_NCCL_LIBRARY=libm.so.6
ok "another library is refused" \
    says "'libm.so.6' has no function crystal_stream_abi_version" "${one}make('gloo')"
CRYSTAL_NCCL_LIBRARY=$libs/libcrystal-hostccl.so
if [ -e "$CRYSTAL_NCCL_LIBRARY" ]; then
    for backend in gloo cpu:gloo cpu:gloo,cuda:gloo; do
        ok "'$backend' is our backend" runs "${one}make('$backend')
from crystal_torch import _backend
backend = dist.group.WORLD._get_backend(torch.device('cpu'))
assert type(backend) is _backend.ProcessGroupCrystal, type(backend)
assert backend.options.group_name == '0', backend.options.group_name
group = dist.new_group([0])
assert type(group._get_backend(torch.device('cpu'))) is _backend.ProcessGroupCrystal"
    done
    ok "nccl without CUDA is the usual error" \
        says "ProcessGroupNCCL is only supported with GPUs" "${one}make('nccl')"
fi
echo "1..$number"
