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

# blamed CASE PATTERN: the capture of site.py's case ends with such a sentence.
blamed() {
    rm -rf "$tmp/job"
    "$CRYSTAL_BUILDDIR/scrystal" layout --logical-ranks=4 --ranks-per-node=4 \
        --live=all --job-dir="$tmp/job" --write -- \
        "$python" "$CRYSTAL_SRCDIR/tests/pytorch/site.py" "$1" || return
    ! "$CRYSTAL_BUILDDIR/scrystal" capture --job="$tmp/job" 2>"$tmp/blamed" || return
    cat "$tmp/blamed" "$tmp/job/diagnosis.txt"
    grep -q "$2" "$tmp/blamed"
}
line=$(grep -n '# here$' "$CRYSTAL_SRCDIR/tests/pytorch/site.py")
place="at site.py:${line%%:*} in count (_backend[^ )]*+0x[0-9a-f]*)"

# Whoever calls first is what the others are compared with.
four="allreduce of 4 x float32 (sum) $place" five="allreduce of 5 x float32 (sum) $place"
ok "a mismatch is told with the lines of the script" blamed count \
    "calls $four, .*calls $five\|calls $five, .*calls $four"
ok "a cycle of first receives is told by its pairs" blamed cycle \
    "wait for ever: rank 0 waits in the store for the key '/default_pg/0//cpu//1:0'"
echo "1..$number"
