#!/bin/bash
# Every operation of torch.distributed in capture: four live ranks, whose operations the
# coordinator performs.
. "$CRYSTAL_SRCDIR/tests/pytorch/tap.sh"

# captured: ops.py as four live ranks; their output is in the job directory.
captured() {
    "$CRYSTAL_BUILDDIR/scrystal" layout --logical-ranks=4 --ranks-per-node=4 \
        --live=all --iterations=1000 --job-dir="$tmp/job" --write -- \
        "$python" "$program" || return
    "$CRYSTAL_BUILDDIR/scrystal" capture --job="$tmp/job" ||
        { code=$?; tail -40 "$tmp"/job/log/*; return $code; }
}

ok "capture of 4 ranks" captured
cp "$tmp/job/log/capture.0.log" "$tmp/ops" && : >"$tmp/err"
ops "capture of 4 ranks"
echo "1..$number"
