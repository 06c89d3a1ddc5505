#!/bin/bash
# contrib/examples/gpt.py under torchrun with PyTorch's own gloo: however the run is
# split, its losses are those of a single process, and they fall.
. "$CRYSTAL_SRCDIR/tests/pytorch/tap.sh"

fails() { # fails TEXT RANKS OPTION...: the run ends with TEXT
    torchrun "$2" "$gpt" --steps 2 "${@:3}" >"$tmp/fails" 2>&1 && return 1
    grep -F "$1" "$tmp/fails" || { cat "$tmp/fails"; return 1; }
}

took() { # took LEAST_MS MOST_MS FILE: the fastest step's time lies between
    awk -v least="$1" -v most="$2" '/^step/ && (!ms || $(NF - 1) < ms) { ms = $(NF - 1) }
        END { print ms " ms"; exit !(ms >= least && ms <= most) }' "$tmp/$3"
}

ok "one process" trains single 1
ok "tp=2 pp=2 dp=2 trains" trains split 8 --tp 2 --pp 2
ok "tp=2 pp=2 dp=2 has the losses of one process" same single split
ok "pp=4 trains, each stage 10 ms forward and 20 ms backward" \
    trains stages 4 --pp 4 --compute-ms 10
ok "pp=4 has the losses of one process" same single stages
# (4 microbatches + 3 stages to fill) * 30 ms
ok "1F1B takes 7 slots of 30 ms" took 210 320 stages
ok "a slow rank stretches its stage" trains slow 4 --pp 4 --compute-ms 10 --slow 1=3
# The slow stage works 4 * 90 ms; the first one's 10 and 20 ms come before and after.
ok "1F1B waits for the slow stage" took 390 560 slow
ok "a grid that does not fit is refused" \
    fails "1 ranks are no multiple of tp=2 times pp=1" 1 --tp 2
echo "1..$number"
