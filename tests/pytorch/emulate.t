#!/bin/bash
# Two sandbox ranks of four, by hand through all stages: gpt.py with its experts on all
# four, whose counts are those of the recording; an interleaved pipeline; every kind of
# operation with integers.
. "$CRYSTAL_SRCDIR/tests/pytorch/tap.sh"
scrystal=$CRYSTAL_BUILDDIR/scrystal
printf 'plan:\n  passes: 1\n' >"$tmp/crystal.yaml"

# staged GRID ITERATIONS PROGRAM OPTION...: its stages; the sandbox's output in $tmp/job.
staged() {
    rm -rf "$tmp/job"
    "$scrystal" layout --config="$tmp/crystal.yaml" --logical-ranks=4 --ranks-per-node=2 \
        --parallel="$1" --iterations="$2" --job-dir="$tmp/job" --write -- \
        "$python" "${@:3}" || return
    for stage in capture graph plan emulate; do
        "$scrystal" $stage --job="$tmp/job" ||
            { code=$?; tail -n 40 "$tmp"/job/log/*.log; return $code; }
    done
}

# Rows of the all-to-alls behind each gathered table of counts: from ranks 2 and 3.
recorded() {
    "$scrystal" show "$tmp/job/ranks/0.trace" | awk '
        $3 == "allgather" && / int64 x 4$/ { want = "from 2" }
        $3 == "recv" && want && $0 ~ want "$" {
            print $(NF - 2) * 4
            want = want == "from 2" ? "from 3" : ""
        }'
}

# The same of the run: eight transfers follow, to and from rank 0, 1, 2 and 3.
emulated() {
    "$scrystal" show "$tmp/job/runs/001/0.run" | sort -n | awk '
        $2 == "allgather" && $5 == 32 { table = $1; bytes = 0 }
        $2 == "recv" && table && ($1 == table + 6 || $1 == table + 8) { print $5 }'
}

counts() { # the counts are alike, uneven, and not those of every step
    recorded >"$tmp/recorded"
    emulated >"$tmp/emulated"
    diff "$tmp/recorded" "$tmp/emulated" && cat "$tmp/recorded" &&
        [ "$(wc -l <"$tmp/recorded")" -eq 20 ] &&
        [ "$(sort -u "$tmp/recorded" | wc -l)" -gt 5 ]
}

ok "gpt.py with ep=4 through all stages" staged ep=4,dp=4 5 "$gpt" --ep 4 --experts 4 \
    --steps 5 --seq 8 --microbatches 2 --layers 2 --data "$CRYSTAL_SRCDIR/LICENSE"
ok "virtual ranks send as many rows as was recorded" counts

ok "operations with integers through all stages" \
    staged tp=4 4 "$CRYSTAL_SRCDIR/tests/pytorch/emulated.py" 4
# Its first messages are sent while the communicators of pairs are being made.
ok "an interleaved pipeline through all stages" staged pp=2,dp=2 4 "$gpt" --pp 2 \
    --chunks 2 --steps 5 --seq 8 --microbatches 2 --layers 4 \
    --data "$CRYSTAL_SRCDIR/LICENSE"
echo "1..$number"
