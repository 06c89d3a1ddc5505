#!/bin/bash
# The real wire under Slurm: nodes of the job that run no rank send what virtual ranks
# send. Every result of every rank is compared with its closed form
# (tests/programs/exactprog.c). Then an assistant is killed.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
cluster_begin 4
exact=$CRYSTAL_BUILDDIR/tests/programs/exactprog
crystal=(--crystal-logical-ranks=16 --crystal-ranks-per-node=4 --crystal-live=all
    --crystal-iterations=3 --crystal-wire=real)

exact_lines() { # RANK...
    local rank
    for rank; do
        echo "rank $rank exact $((rank % 5 ? 196602 : 199602))"
    done
}
moved() { # JOB NODE: kilobytes that an assistant has sent and taken in run 1
    sed -n 's/^\(sent\|taken\)_bytes: \([0-9]*\)...$/\2/p' "crystal.$1/runs/001/assistant.$2.yaml"
}

# --- one sandbox node, one assistant
run srun "${crystal[@]}" -J one "$exact"
is "one assistant: exit code" "$code" 0
is "one assistant: every rank is exact" "$(sort -k2n <<<"$out")" "$(exact_lines 0 1 2 3)"
is "one assistant: NumNodes" "$(job_field NumNodes)" 2
is "one assistant: a step of its own" "$(step_names | grep -cx crystal-assist)" 1
has "one assistant: the wire" "$(cat crystal.one/report.txt)" \
    "Wire: real, host memory, TCP to 1 assistant node;"
matches "one assistant: what has crossed" "$(moved one 1 | tr '\n' ' ')" '^[0-9]{3,} [0-9]{3,} $'
matches "one assistant: the report says it" "$(cat crystal.one/report.json)" \
    '"assistants": 1, "sent_bytes": [0-9]{6,}, "taken_bytes": [0-9]{6,}'
nothing_left "one assistant: nothing is left"

# --- in an allocation: the options make it larger; without them there is no node for one
run salloc --quiet "${crystal[@]}" --crystal-sandbox=0-3,12-15 \
    srun "${crystal[@]}" --crystal-sandbox=0-3,12-15 -J two "$exact"
is "two nodes and two assistants: exit code" "$code" 0
is "two nodes and two assistants: every rank is exact" "$(sort -k2n <<<"$out")" \
    "$(exact_lines 0 1 2 3 12 13 14 15)"
is "two nodes and two assistants: NumNodes" "$(job_field NumNodes)" 4
is "two nodes and two assistants: each has moved something" \
    "$(for node in 2 3; do moved two $node | grep -c '^[0-9][0-9][0-9]'; done | tr '\n' ' ')" "2 2 "
has "two nodes and two assistants: the wire" "$(cat crystal.two/report.txt)" \
    "Wire: real, host memory, TCP between nodes and to 2 assistant nodes;"
run salloc --quiet -N1 srun "${crystal[@]}" -J one --crystal-stages=emulate "$exact"
is "no node for it: exit code" "$code" 2
has "no node for it: sentence" "$err" "crystal: the job has 1 node(s), the sandbox needs 2 with its assistants; give sbatch or salloc the same --crystal- options"
run srun "${crystal[@]}" -J one --crystal-assistants=3 --crystal-stages=emulate "$exact"
is "three for one node: exit code" "$code" 0
is "three for one node: NumNodes" "$(job_field NumNodes)" 4
is "three for one node: every rank is exact" "$(sort -k2n <<<"$out")" "$(exact_lines 0 1 2 3)"
nothing_left "three for one node: nothing is left"

# --- an assistant is killed
assistant() { # process ids of its agent
    local environ
    for environ in $(grep -lszx "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ 2>/dev/null); do
        tr '\0' ' ' <"${environ%environ}cmdline" 2>/dev/null |
            grep -q '^[^ ]*scrystal agent .*--first-node=1 ' &&
            basename "${environ%/environ}"
    done
}
export EXACT_FAIL="2 hang" EXACT_BEGUN=$work/begun
mkdir "$EXACT_BEGUN"
{
    for rank in 0 1 2 3; do
        wait_until 300 test -e "$EXACT_BEGUN/$rank"
    done
    # shellcheck disable=SC2046 # it, and what guards it
    kill -9 $(assistant)
} &
run srun "${crystal[@]}" -J one --crystal-stages=emulate "$exact"
wait $!
unset EXACT_FAIL EXACT_BEGUN
matches "an assistant is killed: exit code" "$code" '^[1-9][0-9]*$'
is "an assistant is killed: one sentence" \
    "$(grep -E '^crystal: (emulate|agent|coordinator): ' <<<"$err" | grep -cvE ' of 16 ranks$|keeps others waiting')" 1
has "an assistant is killed: which" "$err" "the agent of node 1 (pid "
nothing_left "an assistant is killed: nothing is left"

# --- PyTorch, where it is: one sandbox and one assistant node have the losses that the
# modelled wire gives
venv=${CRYSTAL_PYTHON:-${XDG_CACHE_HOME:-$HOME/.cache}/crystal/venv/bin/python}
venv=${venv%/bin/python}
if [ ! -x "$venv/bin/python" ]; then
    echo "# no $venv, so gpt.py is not run; run contrib/pytorch/install"
    done_testing
fi
export OMP_NUM_THREADS=1 PYTHONWARNINGS=ignore
# shellcheck source=/dev/null
. "$venv/bin/activate"
losses() { sed -n 's/^gpt \(rank=[0-9]* step=[0-9]*\) .* \(loss=.*\)/\1 \2/p' <<<"$out" | sort; }
gpt=(--crystal-logical-ranks=16 --crystal-ranks-per-node=4 --crystal-iterations=4
    --crystal-parallel=tp=2,pp=2,dp=4 --crystal-sandbox=4-7 -J gpt)
run srun "${gpt[@]}" --crystal-wire=real python "$CRYSTAL_SRCDIR/contrib/examples/gpt.py" \
    --tp 2 --pp 2 --steps 5 --log-all
is "gpt.py: exit code" "$code" 0
real=$(losses)
is "gpt.py: each rank has 5 losses" "$(grep -cE '^rank=[4-7] .* loss=[0-9.]+ norm=[0-9.]+$' <<<"$real")" 20
has "gpt.py: the wire" "$(cat crystal.gpt/report.txt)" "TCP to 1 assistant node;"
is "gpt.py: NumNodes" "$(job_field NumNodes)" 2
run srun "${gpt[@]}" --crystal-stages=emulate python "$CRYSTAL_SRCDIR/contrib/examples/gpt.py" \
    --tp 2 --pp 2 --steps 5 --log-all
is "gpt.py, modelled: exit code" "$code" 0
is "gpt.py, modelled: the same losses" "$(losses)" "$real"
has "gpt.py, modelled: the wire" "$(cat crystal.gpt/report.txt)" "Wire: modelled,"
nothing_left "gpt.py: nothing is left"
done_testing
