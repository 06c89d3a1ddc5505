#!/bin/bash
# The schedules of contrib/examples/gpt.py, with PyTorch's own gloo: a step that sleeps for
# its computation takes no less than the schedule says, on any machine; how much longer a
# loaded one takes is bounded by what a worse schedule takes at the least. Its losses are
# those of a single process.
. "$CRYSTAL_SRCDIR/tests/pytorch/tap.sh"

took() { # took LEAST_MS WORSE_MS FILE: the fastest step's time lies between
    awk -v least="$1" -v worse="$2" '/^step/ && (!ms || $(NF - 1) < ms) { ms = $(NF - 1) }
        END { print ms " ms"; exit !(ms >= least && ms < worse) }' "$tmp/$3"
}

ok "one process" trains forked single 1
ok "pp=4 trains, each stage 10 ms forward and 20 ms backward" \
    trains forked stages 4 --pp 4 --compute-ms 10
ok "pp=4 has the losses of one process" same single stages
# (4 microbatches + 3 stages to fill) * 30 ms; one after the other they take 4 * 4 * 30.
ok "1F1B takes 7 slots of 30 ms" took 210 480 stages
ok "a slow rank stretches its stage" trains forked slow 4 --pp 4 --compute-ms 10 --slow 1=3
# The slow stage works 4 * 90 ms; the first one's 10 and 20 ms come before and after. One
# after the other they take 4 * (90 + 3 * 30).
ok "1F1B waits for the slow stage" took 390 720 slow

ok "interleaved pp=4 trains, each stage 60 ms forward and 120 ms backward" \
    trains forked chunks 4 --pp 4 --chunks 2 --layers 8 --compute-ms 60
# Filling the pipeline takes the time of 3 pieces, 4 * 180 + 3 * 90 ms, not of 3 stages.
ok "an interleaved pipeline waits half as long" took 990 1260 chunks

echo "1..$number"
