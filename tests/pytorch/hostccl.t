#!/bin/bash
# Programs over hostccl: gpt.py has gloo's losses; a peer that ends is an error with a
# sentence; groups need not be destroyed.
. "$CRYSTAL_SRCDIR/tests/pytorch/tap.sh"
[ -e "$libs/libcrystal-hostccl.so" ] || { echo "1..0 # SKIP no libcrystal-hostccl.so"; exit 0; }

# ends TEXT CODE: two ranks run CODE after a first operation; TEXT is in their output.
ends() {
    cat >"$tmp/ends.py" <<TEXT
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(4)
dist.all_reduce(x)
$2
TEXT
    on_hostccl forked 2 "$tmp/ends.py" >"$tmp/ends" 2>&1
    grep -F "$1" "$tmp/ends" || { cat "$tmp/ends"; return 1; }
}

ok "a peer that ends is an error with a sentence" \
    ends "all_reduce: the net plugin cannot receive from rank 1" "
if dist.get_rank() == 1:
    os._exit(0)
dist.all_reduce(x)"
ok "a failed group stays so" \
    ends "all_reduce: hostccl: ncclAllReduce: the communicator has failed" "
if dist.get_rank() == 1:
    os._exit(0)
try:
    dist.all_reduce(x)
except dist.DistBackendError:
    dist.all_reduce(x)"
ok "no group need be destroyed" ends "still here" "
work = dist.all_reduce(x, async_op=True)
work.get_future().wait()
dist.all_reduce(x, async_op=True)
print('still here')"
ok "gpt.py over gloo" trains forked gloo 4 --tp 2 --pp 2
ok "gpt.py over hostccl" on_hostccl trains torchrun hostccl 4 --tp 2 --pp 2
ok "has the same losses" same gloo hostccl
echo "1..$number"
