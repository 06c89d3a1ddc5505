#!/bin/bash
# Every operation of torch.distributed on real ranks: with PyTorch's own gloo, in capture
# (the coordinator performs the operations) and over hostccl; and a training run that has
# gloo's losses.
. "$CRYSTAL_SRCDIR/tests/pytorch/tap.sh"
program=$CRYSTAL_SRCDIR/tests/pytorch/ops.py

# ops WHERE: shows the cases of ops.py in the file ops as tests of this script.
ops() {
    count=$(sed -n 's/^1\.\.//p' "$tmp/ops")
    while IFS= read -r line; do
        case $line in
        "ok "* | "not ok "*)
            number=$((number + 1))
            echo "${line%%ok *}ok $number - ${line#*- }, $1" ;;
        "#"*) echo "$line" ;;
        esac
    done <"$tmp/ops"
    [ -n "$count" ] || sed 's/^/# /' "$tmp/err" | tail -40
    ok "all cases ran, $1" [ "${count:-0}" -gt 20 ]
}

# captured: ops.py as four live ranks; their output is in the job directory.
captured() {
    "$CRYSTAL_BUILDDIR/scrystal" layout --logical-ranks=4 --ranks-per-node=4 \
        --live=all --iterations=1000 --job-dir="$tmp/job" --write -- \
        "$python" "$program" || return
    "$CRYSTAL_BUILDDIR/scrystal" capture --job="$tmp/job" ||
        { code=$?; tail -40 "$tmp"/job/log/*; return $code; }
}

torchrun 4 "$program" >"$tmp/ops" 2>"$tmp/err"
ops "PyTorch's gloo on 4 ranks"
ok "capture of 4 ranks" captured
cp "$tmp/job/log/capture.0.log" "$tmp/ops" && : >"$tmp/err"
ops "capture of 4 ranks"
if [ -e "$libs/libcrystal-hostccl.so" ]; then
    for ranks in 2 4; do
        on_hostccl torchrun $ranks "$program" >"$tmp/ops" 2>"$tmp/err"
        ops "hostccl on $ranks ranks"
    done
    ok "gpt.py over gloo" trains gloo 4 --tp 2 --pp 2
    ok "gpt.py over hostccl" on_hostccl trains hostccl 4 --tp 2 --pp 2
    ok "has the same losses" same gloo hostccl
fi
echo "1..$number"
