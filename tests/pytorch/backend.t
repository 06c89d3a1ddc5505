#!/bin/bash
# Every operation of torch.distributed over hostccl, on 2 and 4 real ranks, and, for what
# it has, with PyTorch's own gloo: the same cases with the same values.
. "$CRYSTAL_SRCDIR/tests/pytorch/tap.sh"
[ -e "$libs/libcrystal-hostccl.so" ] || { echo "1..0 # SKIP no libcrystal-hostccl.so"; exit 0; }

forked 4 "$program" >"$tmp/ops" 2>"$tmp/err"
ops "PyTorch's gloo on 4 ranks"
for ranks in 2 4; do
    on_hostccl forked $ranks "$program" >"$tmp/ops" 2>"$tmp/err"
    ops "hostccl on $ranks ranks"
done
echo "1..$number"
