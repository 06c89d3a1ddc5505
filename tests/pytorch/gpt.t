#!/bin/bash
# contrib/examples/gpt.py with PyTorch's own gloo, once under torchrun: however the run is
# split, its losses are those of a single process, and they fall. Its schedules:
# gpt_time.t.
. "$CRYSTAL_SRCDIR/tests/pytorch/tap.sh"

fails() { # fails TEXT OPTION...: one process ends with TEXT
    forked 1 "$gpt" --steps 2 "${@:2}" >"$tmp/fails" 2>&1 && return 1
    grep -F -e "$1" "$tmp/fails" || { cat "$tmp/fails"; return 1; }
}

differs() { # differs A B: no loss is alike
    paste -d ' ' "$tmp/$1.losses" "$tmp/$2.losses" | awk '$2 == $5 { bad = 1 } END { exit bad }'
}

ok "one process" trains forked single 1
ok "a line is one write, whole among those of other ranks" \
    "$python" "$here/writes.py" "$python" -u "$here/ranks.py" 1 "$gpt" --steps 2 --log-all
ok "tp=2 pp=2 dp=2 trains" trains torchrun split 8 --tp 2 --pp 2
ok "tp=2 pp=2 dp=2 has the losses of one process" same single split
ok "four experts in one process" trains forked experts 1 --experts 4
ok "they are not the model without" differs single experts
ok "ep=2 dp=4 trains" trains forked split 4 --ep 2 --experts 4 --microbatches 2
ok "ep=2 dp=4 has the losses of one process" same experts split
ok "tp=2 pp=2 ep=2, two pieces a stage, trains" \
    trains forked split 8 --tp 2 --pp 2 --ep 2 --chunks 2 --experts 4
ok "it has the losses of one process" same experts split
ok "a grid that does not fit is refused" \
    fails "1 ranks are no multiple of tp=2 times pp=1" --tp 2
ok "experts that do not fit are refused" \
    fails "1 replicas are no multiple of ep=2" --ep 2
ok "pieces without stages are refused" \
    fails "--chunks above 1 needs --pp above 1" --chunks 2
echo "1..$number"
