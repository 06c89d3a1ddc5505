#!/bin/bash
# contrib/examples/gpt.py with PyTorch's own gloo, once under torchrun: however the run is
# split, its losses are those of a single process, and they fall. A step that sleeps for
# its computation takes no less than the schedule says, on any machine; how much longer a
# loaded one takes is bounded by what a worse schedule takes at the least.
. "$CRYSTAL_SRCDIR/tests/pytorch/tap.sh"

fails() { # fails TEXT OPTION...: one process ends with TEXT
    forked 1 "$gpt" --steps 2 "${@:2}" >"$tmp/fails" 2>&1 && return 1
    grep -F -e "$1" "$tmp/fails" || { cat "$tmp/fails"; return 1; }
}

differs() { # differs A B: no loss is alike
    paste -d ' ' "$tmp/$1.losses" "$tmp/$2.losses" | awk '$2 == $5 { bad = 1 } END { exit bad }'
}

took() { # took LEAST_MS WORSE_MS FILE: the fastest step's time lies between
    awk -v least="$1" -v worse="$2" '/^step/ && (!ms || $(NF - 1) < ms) { ms = $(NF - 1) }
        END { print ms " ms"; exit !(ms >= least && ms < worse) }' "$tmp/$3"
}

ok "one process" trains forked single 1
ok "a line is one write, whole among those of other ranks" \
    "$python" "$here/writes.py" "$python" -u "$here/ranks.py" 1 "$gpt" --steps 2 --log-all
ok "tp=2 pp=2 dp=2 trains" trains torchrun split 8 --tp 2 --pp 2
ok "tp=2 pp=2 dp=2 has the losses of one process" same single split
ok "pp=4 trains, each stage 10 ms forward and 20 ms backward" \
    trains forked stages 4 --pp 4 --compute-ms 10
ok "pp=4 has the losses of one process" same single stages
# (4 microbatches + 3 stages to fill) * 30 ms; one after the other they take 4 * 4 * 30.
ok "1F1B takes 7 slots of 30 ms" took 210 480 stages
ok "a slow rank stretches its stage" trains forked slow 4 --pp 4 --compute-ms 10 --slow 1=3
# The slow stage works 4 * 90 ms; the first one's 10 and 20 ms come before and after. One
# after the other they take 4 * (90 + 3 * 30).
ok "1F1B waits for the slow stage" took 390 720 slow

ok "four experts in one process" trains forked experts 1 --experts 4
ok "they are not the model without" differs single experts
ok "ep=2 dp=4 trains" trains forked split 4 --ep 2 --experts 4 --microbatches 2
ok "ep=2 dp=4 has the losses of one process" same experts split
ok "tp=2 pp=2 ep=2, two pieces a stage, trains" \
    trains forked split 8 --tp 2 --pp 2 --ep 2 --chunks 2 --experts 4
ok "it has the losses of one process" same experts split
ok "interleaved pp=4 trains, each stage 60 ms forward and 120 ms backward" \
    trains forked chunks 4 --pp 4 --chunks 2 --layers 8 --compute-ms 60
# Filling the pipeline takes the time of 3 pieces, 4 * 180 + 3 * 90 ms, not of 3 stages.
ok "an interleaved pipeline waits half as long" took 990 1260 chunks

ok "a grid that does not fit is refused" \
    fails "1 ranks are no multiple of tp=2 times pp=1" --tp 2
ok "experts that do not fit are refused" \
    fails "1 replicas are no multiple of ep=2" --ep 2
ok "pieces without stages are refused" \
    fails "--chunks above 1 needs --pp above 1" --chunks 2
echo "1..$number"
