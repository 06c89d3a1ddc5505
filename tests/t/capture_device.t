#!/bin/bash
# Capture of a program with CUDA's streams and events, over a CUDA runtime on host memory
# whose streams run behind the host (tests/fake/cuda_streams.c): the cases of
# tests/gpu/capture, and calls of CUDA that fail.
set -u
export CUDART=$CRYSTAL_BUILDDIR/tests/fake/.libs/cuda_streams.so
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
"$CRYSTAL_SRCDIR/tests/gpu/capture" "$CRYSTAL_BUILDDIR" order >"$TMPDIR/order"
grep -v '^1\.\.' "$TMPDIR/order"
number=$(grep -c '^ok\|^not ok' "$TMPDIR/order")

# One rank whose SETTING=VALUE lets a call fail: a sentence in its log, and its own end.
failing() { # NAME SETTING CASE PATTERN
    local job=$TMPDIR/$number code
    number=$((number + 1))
    "$CRYSTAL_BUILDDIR/scrystal" layout --logical-ranks=2 --ranks-per-node=2 --live=all \
        --job-dir="$job" --write >"$job.out" 2>&1
    "$CRYSTAL_BUILDDIR/scrystal" capture --job="$job" -- env "$2" \
        LD_PRELOAD="$CRYSTAL_BUILDDIR/.libs/libcrystal-nccl.so" \
        ASAN_OPTIONS=verify_asan_link_order=0 \
        "$CRYSTAL_BUILDDIR/tests/programs/cudaprog" "$3" >"$job.out" 2>&1
    code=$?
    if [ $code -ne 0 ] && cat "$job"/log/*.log | grep -q "$4"; then
        echo "ok $number - $1"
    else
        echo "not ok $number - $1"
        cat "$job.out" "$job"/log/*.log | sed "s/^/# code $code: /"
    fi
}
failing "a copy that fails" FAKE_CUDA_FAIL=cudaMemcpyAsync:1 overlapped \
    'recorder: cudaMemcpyAsync: unknown error'
failing "no pinned memory" FAKE_CUDA_FAIL=cudaHostAlloc:3 overlapped \
    'recorder: cudaHostAlloc: unknown error'
failing "more pinned memory than limits.pinned_bytes" CRYSTAL_PINNED_BYTES=65536 overlapped \
    'recorder: 131072 bytes of host memory.* more than the 65536 that limits.pinned_bytes leaves'
failing "a CUDA graph is being captured" FAKE_CUDA_CAPTURES=1 overlapped \
    'ncclAllReduce inside the capture of a CUDA graph.*--cuda-graph-impl none'
failing "NCCL's device API" A=b ncclDevCommCreate \
    'recorder: ncclDevCommCreate: kernels that communicate by themselves.*symmetric memory'
failing "NVSHMEM" A=b nvshmemx_hostlib_init_attr 'nvshmemx_hostlib_init_attr 7$'
# A driver without a shared runtime: the program has CUDA's runtime inside.
mkdir "$TMPDIR/driver"
cp "$CRYSTAL_BUILDDIR/tests/fake/.libs/cuda.so" "$TMPDIR/driver/libcuda.so.1"
number=$((number + 1))
"$CRYSTAL_BUILDDIR/scrystal" layout --logical-ranks=1 --ranks-per-node=1 --live=all \
    --job-dir="$TMPDIR/static" --write >"$TMPDIR/static.out" 2>&1
"$CRYSTAL_BUILDDIR/scrystal" capture --job="$TMPDIR/static" -- \
    env LD_LIBRARY_PATH="$TMPDIR/driver" LD_PRELOAD="$TMPDIR/driver/libcuda.so.1" \
    ASAN_OPTIONS=verify_asan_link_order=0 \
    "$CRYSTAL_BUILDDIR/tests/programs/caseprog" values >>"$TMPDIR/static.out" 2>&1
code=$?
if [ $code -ne 0 ] && grep -q 'CUDA.s runtime inside.*nvcc -cudart shared' \
    "$TMPDIR"/static/log/*.log; then
    echo "ok $number - a runtime linked statically is refused"
else
    echo "not ok $number - a runtime linked statically is refused"
    cat "$TMPDIR/static.out" "$TMPDIR"/static/log/*.log | sed 's/^/# /'
fi
echo "1..$number"
