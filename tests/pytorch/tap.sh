# What the tests in this folder share; sourced by them. CRYSTAL_PYTHON names the
# interpreter that has PyTorch; without one the test is skipped.
set -u
python=${CRYSTAL_PYTHON:-${XDG_CACHE_HOME:-$HOME/.cache}/crystal/venv/bin/python}
[ -x "$python" ] || { echo "1..0 # SKIP no $python; run contrib/pytorch/install"; exit 0; }
libs=$CRYSTAL_BUILDDIR/.libs
here=$CRYSTAL_SRCDIR/tests/pytorch
gpt=$CRYSTAL_SRCDIR/contrib/examples/gpt.py
program=$here/ops.py
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
unset CRYSTAL_NCCL_LIBRARY NCCL_NET_PLUGIN NCCL_PROFILER_PLUGIN GPT_SLOW
export OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore
number=0

ok() { # ok NAME COMMAND...: one test
    number=$((number + 1)) name=$1
    shift
    if "$@" >"$tmp/out" 2>&1; then
        echo "ok $number - $name"
    else
        echo "not ok $number - $name"
        excerpt "$tmp/out"
    fi
}

# excerpt FILE: as comments, the lines that name a fault, then the file, not all of its
# middle.
excerpt() {
    grep -nE '(Error|[Ee]rror:|[Ff]ailed|[Ss]ignal|ended with)' "$1" | head -n 8 |
        sed 's/^/# line /'
    awk -v lines="$(wc -l <"$1")" '
        NR <= 40 || NR > lines - 40 { print "# " $0 }
        NR == 41 && lines > 80 { print "# ..." }' "$1"
}

torchrun() { # torchrun RANKS PROGRAM OPTION...
    ranks=$1
    shift
    "$python" -m torch.distributed.run --standalone --nproc-per-node "$ranks" "$@"
}

forked() { # forked RANKS PROGRAM OPTION...: the same with a fraction of the start-up time
    "$python" -u "$here/ranks.py" "$@"
}

# on_hostccl COMMAND...: "gloo" of what runs here is hostccl over the net plugin.
on_hostccl() {
    CRYSTAL_NCCL_LIBRARY=$libs/libcrystal-hostccl.so \
        NCCL_NET_PLUGIN=$libs/libnccl-net-crystal.so "$@"
}

# trains START FILE RANKS OPTION...: runs gpt.py by torchrun or forked, writes
# "step loss norm" lines to FILE.losses.
trains() {
    start=$1 file=$tmp/$2
    shift 2
    "$start" "$1" "$gpt" --steps 5 --batch 8 --microbatches 4 --check --log-all "${@:2}" \
        >"$file" 2>"$tmp/err" ||
        { echo "$start ended with $?"; cat "$tmp/err" "$file"; return 1; }
    losses "$file"
}

losses() { # losses LOG: of the first rank, to LOG.losses
    sed -n 's/^gpt rank=0 step=\([0-9]*\) .* loss=\([0-9.]*\) norm=\([0-9.]*\)$/\1 \2 \3/p' \
        "$1" >"$1.losses"
    [ "$(wc -l <"$1.losses")" -eq 5 ] ||
        { echo "failed: $(wc -l <"$1.losses") of 5 steps of rank 0 in this:"; cat "$1"; false; }
}

same() { # same A B: losses differ by less than 1e-5 of their size, norms by 1e-4
    cat "$tmp/$1.losses" "$tmp/$2.losses" >/dev/null || return
    paste -d ' ' "$tmp/$1.losses" "$tmp/$2.losses" | awk '
        function off(a, b) { return (a < b ? b - a : a - b) / b }
        { print; if ($1 != $4 || off($2, $5) >= 1e-5 || off($3, $6) >= 1e-4) bad = 1 }
        END { exit bad || NR != 5 }'
}

# ops WHERE: shows the cases of ops.py in the file ops as tests of this script.
ops() {
    count=$(sed -n 's/^1\.\.//p' "$tmp/ops")
    while IFS= read -r line; do
        case $line in
        "ok "* | "not ok "*)
            number=$((number + 1))
            echo "${line%%ok *}ok $number - ${line#*- }, $1" ;;
        "#"*) echo "$line" ;;
        esac
    done <"$tmp/ops"
    [ -n "$count" ] || excerpt "$tmp/err"
    ok "all cases ran, $1" [ "${count:-0}" -gt 20 ]
}
