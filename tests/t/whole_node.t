#!/bin/bash
# contrib/gpu/whole-node where there is no GPU: two processes over hostccl stand for two
# GPUs. Its parts that need no PyTorch, its arithmetic, and what it says when there is no
# time or something is not the same.
set -u
export RANK_LIMIT_S=100
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
folder=$tmp/folder
. "$CRYSTAL_SRCDIR/tests/t/tap.sh"
hostccl=$CRYSTAL_BUILDDIR/.libs/libcrystal-hostccl.so
cudart=$CRYSTAL_BUILDDIR/tests/fake/.libs/cudart.so
[ -e "$hostccl" ] && [ -e "$cudart" ] || { echo "1..0 # SKIP no shared libraries"; exit 0; }

whole_node() {
    TMPDIR=$tmp GPUS=${GPUS:-2} NCCL=$hostccl CUDART=$cudart OUT=$tmp WIRE=100000000,5000 LARGEST=14 RUNS=2 \
        SIZE_ROUNDS=1 WIRE_BYTES=1048576 WIRE_HELD=10000 "$folder/contrib/gpu/whole-node" "$folder" "$@" 2>&1
}

compare() {
    python3 "$folder/contrib/gpu/compare.py" "$@" 2>&1
}

out=$("$CRYSTAL_SRCDIR/tests/gpu/folder" "$CRYSTAL_SRCDIR" "$CRYSTAL_BUILDDIR" "$folder" \
    2>&1)
result "the folder is made" $(($? == 0)) "$out"
out=$(whole_node 200 node)
code=$?
result "two real ranks of 64 and of 8192" \
    $((code == 0 && $(grep -c '^node64.right 48 of 48 checks$' <<<"$out") == 1 && \
    $(grep -c '^node8192.right 28 of 28 checks$' <<<"$out") == 1 && \
    $(grep -c '^node64.fast.right 32 of 32 checks$' <<<"$out") == 1 && \
    $(grep -c '^cost8192.gpu1.setup_s [0-9.]* s$' <<<"$out") == 1)) "code $code: $out"
out=$(whole_node 200 sizes)
code=$?
result "two real ranks and one have the same messages" \
    $((code == 0 && $(grep -c '^messages.same \([0-9]*\) of \1, on 2 connections$' \
        <<<"$out") == 1 && \
    $(grep -c '^sizes.1.[a-z]*.[0-9]* .* real .* emulated us' <<<"$out") == 18)) \
    "code $code: $out"
out=$(GPUS=3 whole_node 200 node sizes)
code=$?
result "three GPUs: one and two real ranks against all" \
    $((code == 0 && $(grep -c '^messages.same \([0-9]*\) of \1, on [24] connections$' \
        <<<"$out") == 2 && $(grep -c '^sizes.2.median_error_pct.1024 ' <<<"$out") == 1 && \
    $(grep -c '^node64.right ' <<<"$out") == 1)) "code $code: $out"
result "what it leaves" $(($(grep -c '^messages.same' "$tmp/report.txt") == 2 && \
    $(tar -tzf "$tmp/logs.tgz" | grep -c 'sizes.2.of.3.1.out2') == 1)) \
    "$(ls "$tmp"; cat "$tmp/report.txt")"
out=$(whole_node 0 node)
code=$?
result "parts without time are told" \
    $((code == 1 && $(grep -c '^# left out: node8192, ' <<<"$out") == 1)) "code $code: $out"

# 8 steps that do not count and 4 that do; the second real round is slower by 2 ms.
steps() { # FILE MS... of the last four
    local file=$tmp/$1 i
    shift
    for ((i = 0; i < 12; i++)); do
        echo "gpt rank=0 step=$i start_ns=1 time_ms=$([ $i -lt 8 ] && echo 99 ||
            echo "${*:i - 7:1}") loss=1.5 norm=1.0"
    done >"$file"
    echo "# memory rank=0 allocated=${ALLOCATED:-1000} reserved=2000 other=30" >>"$file"
}
steps gpt.real.1 10 10 10 10
steps gpt.real.2 12 12 12 12
steps gpt.emulated.1 11 11 11 14
out=$(compare steps "$tmp"/gpt.*.?)
code=$?
result "the error of a step beside the truth's own spread" \
    $((code == 0 && $(grep -c '^gpt.mean_error_pct 6.82 % (.* spread 18.18 %)$' \
        <<<"$out") == 1 && \
    $(grep -c '^gpt.max_error_pct 16.67 % ' <<<"$out") == 1 && \
    $(grep -c '^gpt.torch_allocated_bytes 1000 real 1000 emulated$' <<<"$out") == 1)) \
    "code $code: $out"
ALLOCATED=1001 steps gpt.emulated.1 11 11 11 14
out=$(compare steps "$tmp"/gpt.*.?)
code=$?
result "another peak of memory is an error" $((code == 1)) "code $code: $out"
printf 'allreduce 1024 %s 9 20\n' 10.0 >"$tmp/a"
printf 'allreduce 1024 %s 9 20\n' 10.5 >"$tmp/b"
out=$(compare sizes 1 "$tmp/a" -- "$tmp/b")
result "the deviation of a size" \
    $(($(grep -c '^sizes.1.median_error_pct.1024 5.00 %$' <<<"$out") == 1)) "$out"
printf 'allreduce 1000000 %s 9 20\n' 1040 >"$tmp/a"
printf 'broadcast 1000000 %s 9 20\n' 1060 >"$tmp/b"
out=$(compare wire 2 1e9 "$tmp/a")
code=$?
out+=$(compare wire 2 1e9 "$tmp/b")
result "real ranks that do not hold the wire are told" \
    $((code == 0 && $? == 1 && $(grep -c '# the real ranks do not hold' <<<"$out") == 1 && \
    $(grep -c 'wire.over_pct 4.0 %' <<<"$out") == 1)) "code $code: $out"
printf 'send 0 1 0 5 0 %d 512\n' 0 1 2 >"$tmp/a"
printf 'send 0 1 0 5 0 %d 512\n' 0 2 1 >"$tmp/b"
out=$(compare messages "$tmp/a" "$tmp/b")
code=$?
result "messages in another order are an error" \
    $((code == 1 && $(grep -c '^messages.same 1 of 3, on 1 connections$' <<<"$out") == 1 && \
    $(grep -c '^# send 0 1 0: message 1 is ' <<<"$out") == 1)) "code $code: $out"
echo "1..$number"
