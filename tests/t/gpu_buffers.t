#!/bin/bash
# Buffers on a GPU, with tests/fake/cuda.c as the GPU: every collective, protocol and
# pattern of real and virtual ranks has the same values as on host memory.
set -u
library=$(mktemp -d)
trap 'rm -rf "$library"' EXIT
ln -s "$CRYSTAL_BUILDDIR/tests/fake/.libs/cuda.so" "$library/libcuda.so.1"
export LD_LIBRARY_PATH=$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export CRYSTAL_BUFFERS=gpu
. "$CRYSTAL_SRCDIR/tests/t/tap.sh"

out=$(FAKE_CUDA_DELAY_US=0 "$CRYSTAL_BUILDDIR/tests/unit/virtual_ring" 2>&1)
result "values" $(($? == 0)) "$out"
out=$("$CRYSTAL_BUILDDIR/tests/unit/net_copy" gpu 2>&1)
result "copies" $(($? == 0)) "$out"
out=$("$CRYSTAL_BUILDDIR/tests/unit/net_tcp" shared 2>&1)
result "between real ranks that share memory" $(($? == 0)) "$out"
out=$(FAKE_CUDA_FOREIGN=1 "$CRYSTAL_BUILDDIR/tests/unit/net_copy" foreign 2>&1)
result "memory of the program's context is refused" $(($? == 0)) "$out"
echo "1..$number"
