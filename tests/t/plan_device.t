#!/bin/bash
# The recorder as plan has it on a GPU: calls go through to the program's own NCCL, which
# is loaded beside us, and to CUDA's runtime; both on host memory here
# (tests/fake/null_nccl.c, cuda_streams.c). What is written down of their times.
set -u
. "$CRYSTAL_SRCDIR/tests/t/tap.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$CRYSTAL_BUILDDIR/tests/fake/.libs/null_nccl.so" "$work/libnccl.so.2"
recorder=$CRYSTAL_BUILDDIR/.libs/libcrystal-nccl.so

# cudaprog CASE with one rank; SETTING=VALUE...
recorded() { # PRELOAD CASE SETTING...
    local preload=$1 case=$2
    shift 2
    rm -f "$work"/*.trace
    env RANK=0 WORLD_SIZE=1 CRYSTAL_LRANK=0 CRYSTAL_TRACE_DIR="$work" \
        CRYSTAL_FINGERPRINT=0x2a CRYSTAL_NCCL_LIBRARY="$recorder" CRYSTAL_PASS_DEVICE=1 \
        CRYSTAL_PASS_LIBRARY=/nonexistent/host.so LD_LIBRARY_PATH="$work" \
        CUDART="$CRYSTAL_BUILDDIR/tests/fake/.libs/cuda_streams.so" \
        ASAN_OPTIONS="${ASAN_OPTIONS:-}:verify_asan_link_order=0:detect_leaks=0" \
        NULL_NCCL_CUDA=1 NULL_NCCL_DELAY_US=2000 "$@" LD_PRELOAD="$preload" \
        "$CRYSTAL_BUILDDIR/tests/programs/cudaprog" "$case" >"$work/out" 2>&1
}

recorded "$recorder:$work/libnccl.so.2" timed
is "the program ends well" "$? $(cat "$work/out")" "0 rank 0: timed"
"$CRYSTAL_BUILDDIR/scrystal" show "$work/0.trace" >"$work/shown" 2>&1
is "calls" "$(grep -cE ' (allreduce|send|recv) ' "$work/shown")" 9
is "what NCCL calls by itself is no call" "$(grep -c ' broadcast ' "$work/shown")" 3
# Behind 5 ms of computation that began after the host's last wait, and the all-reduce; 2
# ms long, a group's messages together.
is "an operation begins when its stream comes to it" "$(awk '
    / for stream / { waited = $(NF - 1) }
    / (allreduce|send) / { least[$1] = waited + ($3 == "send" ? 7000 : 5000) }
    $3 == "done" && ($5 + 0) in least {
        print ($8 >= least[$5 + 0]), ($2 - $8 >= 2000) }' "$work/shown")" \
    "$(for _ in 1 2 3 4 5 6; do echo 1 1; done)"
# The fake device stamps its events itself, wherever the clocks of host and device part.
is "it has ended when the host has waited for it" "$(awk '
    / (allreduce|send|recv|broadcast) / { issued[$1] = 1 }
    / for stream [0-9]+ until/ {
        for (i in issued)
            until[i] = $(NF - 1)
        delete issued }
    $3 == "done" { print ($2 <= until[$5 + 0] + 100) }' "$work/shown")" \
    "$(yes 1 | head -12)"

recorded "$recorder" timed
is "no NCCL of its own" "$? $(grep -m1 -c 'has no libnccl.so.2 loaded; is NCCL linked statically' \
    "$work/out")" "1 1"
recorded "$recorder:$work/libnccl.so.2" timed FAKE_CUDA_FAIL=cudaEventRecord:9
is "CUDA's own codes come back" "$? $(grep -c 'CUDA error 999' "$work/out")" "1 1"
echo "1..$number"
