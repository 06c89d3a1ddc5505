#!/bin/bash
# Iterations by NVTX ranges of stock torch.cuda.nvtx and of the nvtx package, without a GPU.
. "$CRYSTAL_SRCDIR/tests/pytorch/tap.sh"
scrystal=$CRYSTAL_BUILDDIR/scrystal

# captured RANGE ITERATIONS WAY...: two ranks, and their graph
captured() {
    rm -rf "$tmp/job"
    printf 'capture: {iteration_range: "%s"}\n' "$1" >"$tmp/crystal.yaml"
    "$scrystal" layout --config="$tmp/crystal.yaml" --logical-ranks=2 --ranks-per-node=2 \
        --live=all --iterations="$2" --job-dir="$tmp/job" --write -- \
        "$python" "$here/ranges.py" gloo 40 "${@:3}" || return
    "$scrystal" capture --job="$tmp/job" && "$scrystal" graph --job="$tmp/job" ||
        { code=$?; tail -n 40 "$tmp"/job/log/*.log; return $code; }
}

# has COUNT CALLS: both ranks have so many iterations, of so many all-reduces each
has() {
    "$scrystal" show "$tmp/job/job.graph" | awk -v count="$1" -v calls="$2" '
        /^operations of rank/ { ranks++; inside = 0 }
        /^-- iteration/ { iterations++; inside = 1 }
        /^-- after/ { inside = 0 }
        / allreduce / && inside { all++ }
        END {
            print ranks, iterations, all
            exit ranks != 2 || iterations != 2 * count || all != 2 * count * calls
        }'
}

printed() { # STEPS: nothing of what rank 0 has printed is lost
    tail -n 1 "$tmp/job/log/capture.0.log"
    [ "$(grep -c '^rank 0 step ' "$tmp/job/log/capture.0.log")" -eq "$1" ]
}

# The warm-up and three more; the fifth or, in a step, the sixth begins where they end.
ok "without a range: capture" captured "" 3 pushed
ok "without a range what repeats is half a step" has 4 1
ok "torch.cuda.nvtx: capture" captured "step*" 3 pushed started
ok "torch.cuda.nvtx, pushed and started: a step" has 4 2
ok "torch.cuda.nvtx: the output is whole" printed 4
if "$python" -c 'import nvtx' 2>/dev/null; then
    ok "the nvtx package: capture" captured "step*" 3 annotated registered
    ok "the nvtx package, in domains, registered: a step" has 4 2
else
    number=$((number + 1))
    echo "ok $number - the nvtx package # SKIP not installed; run contrib/pytorch/install"
fi
silent() {
    captured step 3 pushed >"$tmp/silent" 2>&1 && return 1
    cat "$tmp/silent"
    grep -q "its optimizer has stepped 23 times, and the NVTX range 'step' has not begun" \
        "$tmp/silent"
}
ok "a range that has another name" silent
echo "1..$number"
