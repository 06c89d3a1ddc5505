#!/bin/bash
# --crystal-payload=all: four sandbox ranks of gpt.py among twelve virtual ones, whose
# every contribution was recorded, have the losses of sixteen real ranks.
. "$CRYSTAL_SRCDIR/tests/pytorch/tap.sh"
steps=20
set -- --tp 2 --pp 2 --steps $steps --data "$CRYSTAL_SRCDIR/LICENSE" --log-all

real() {
    forked 16 "$gpt" "$@" >"$tmp/real" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
}

# emulated OPTION...: the stages by hand; output of the sandbox in the file emulated.
emulated() {
    "$CRYSTAL_BUILDDIR/scrystal" layout --logical-ranks=16 --ranks-per-node=4 \
        --parallel=tp=2,pp=2,dp=4 --sandbox=0-3 --live=all --payload=all \
        --iterations=$steps --job-dir="$tmp/job" --write -- "$python" "$gpt" "$@" || return
    for stage in capture graph plan emulate; do
        "$CRYSTAL_BUILDDIR/scrystal" $stage --job="$tmp/job" >"$tmp/emulated" 2>&1 ||
            { tail -n 40 "$tmp/emulated" "$tmp"/job/log/*; return 1; }
    done
}

# losses FILE: "rank step loss" of the sandbox ranks, sorted.
losses() {
    sed -n 's/^gpt rank=\([0-3]\) step=\([0-9]*\) .* loss=\([0-9.]*\) .*/\1 \2 \3/p' "$1" |
        sort -n -k1,1 -k2,2
}

# Within 1e-5 of each other.
agree() {
    join -j 1 <(losses "$tmp/real" | sed 's/ /_/' | sort) \
        <(losses "$tmp/emulated" | sed 's/ /_/' | sort) | awk -v want=$((4 * steps)) '
        function abs(x) { return x < 0 ? -x : x }
        { off = abs($2 / $3 - 1); if (off > worst) worst = off; if (off > 1e-5) print }
        END { print NR " losses, worst " worst; exit worst > 1e-5 || NR != want }'
}

stand_ins() {
    ! grep -q "met stand-ins" "$tmp/job/report.txt" || { cat "$tmp/job/report.txt"; false; }
}

ok "16 real ranks" real "$@"
ok "4 sandbox ranks of 16" emulated "$@"
ok "losses agree to 1e-5" agree
ok "nothing was a stand-in" stand_ins
echo "1..$number"
