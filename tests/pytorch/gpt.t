#!/bin/sh
# contrib/examples/gpt.py under torchrun with PyTorch's own gloo: however the run is
# split, its losses are those of a single process, and they fall.
# CRYSTAL_PYTHON names the interpreter that has PyTorch.
set -u
python=${CRYSTAL_PYTHON:-${XDG_CACHE_HOME:-$HOME/.cache}/crystal/venv/bin/python}
[ -x "$python" ] || { echo "1..0 # SKIP no $python; run contrib/pytorch/install"; exit 0; }
gpt=$CRYSTAL_SRCDIR/contrib/examples/gpt.py
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
unset CRYSTAL_NCCL_LIBRARY GPT_SLOW
export OMP_NUM_THREADS=1
number=0

ok() { # ok NAME COMMAND...: one test
    number=$((number + 1)) name=$1
    shift
    if "$@" >"$tmp/out" 2>&1; then
        echo "ok $number - $name"
    else
        echo "not ok $number - $name"
        sed 's/^/# /' "$tmp/out"
    fi
}

# gpt FILE RANKS OPTION...: a run's rank 0 lines go to FILE.
gpt() {
    file=$1 ranks=$2
    shift 2
    "$python" -m torch.distributed.run --standalone --nproc-per-node "$ranks" "$gpt" \
        --steps 5 --batch 8 --microbatches 4 --check "$@" >"$tmp/$file" 2>"$tmp/err" ||
        { cat "$tmp/$file" "$tmp/err"; return 1; }
    sed -n 's/^step \([0-9]*\) loss \([0-9.]*\) norm \([0-9.]*\) .*/\1 \2 \3/p' \
        "$tmp/$file" >"$tmp/$file.losses"
    [ "$(wc -l <"$tmp/$file.losses")" -eq 5 ] || { cat "$tmp/$file"; return 1; }
}

same() { # same A B: losses and norms differ by less than 1e-4 and 1e-3
    paste -d ' ' "$tmp/$1.losses" "$tmp/$2.losses" | awk '
        function abs(x) { return x < 0 ? -x : x }
        { print; if ($1 != $4 || abs($2 - $5) >= 1e-4 || abs($3 - $6) > 1.001e-3) bad = 1 }
        END { exit bad || NR != 5 }'
}

fails() { # fails TEXT RANKS OPTION...: the run ends with TEXT
    text=$1 ranks=$2
    shift 2
    "$python" -m torch.distributed.run --standalone --nproc-per-node "$ranks" "$gpt" \
        --steps 2 "$@" >"$tmp/fails" 2>&1 && return 1
    grep -F "$text" "$tmp/fails" || { cat "$tmp/fails"; return 1; }
}

# took LEAST_MS MOST_MS FILE: the last step's time lies between.
took() {
    awk -v least="$1" -v most="$2" '/^step/ { ms = $(NF - 1) }
        END { print ms " ms"; exit !(ms >= least && ms <= most) }' "$tmp/$3"
}

ok "one process" gpt single 1
ok "tp=2 pp=2 dp=2 trains" gpt split 8 --tp 2 --pp 2
ok "tp=2 pp=2 dp=2 has the losses of one process" same single split
ok "pp=4 trains, each stage 10 ms forward and 20 ms backward" \
    gpt stages 4 --pp 4 --compute-ms 10
ok "pp=4 has the losses of one process" same single stages
# (4 microbatches + 3 stages to fill) * 30 ms
ok "1F1B takes 7 slots of 30 ms" took 210 320 stages
ok "a slow rank stretches its stage" gpt slow 4 --pp 4 --compute-ms 10 --slow 1=3
# The slow stage works 4 * 90 ms; the first one's 10 and 20 ms come before and after.
ok "1F1B waits for the slow stage" took 390 560 slow
ok "a grid that does not fit is refused" \
    fails "1 ranks are no multiple of tp=2 times pp=1" 1 --tp 2
echo "1..$number"
