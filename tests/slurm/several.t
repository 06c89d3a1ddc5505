#!/bin/bash
# A sandbox of several nodes: every result of every rank is compared with its closed form
# (tests/programs/exactprog.c), and a node, or a rank of it, fails.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
cluster_begin 4
exact=$CRYSTAL_BUILDDIR/tests/programs/exactprog
crystal=(--crystal-logical-ranks=16 --crystal-ranks-per-node=4 --crystal-live=all
    --crystal-iterations=3)
apart=("--crystal-sandbox=0-3,12-15")

# What a rank prints that has compared all; roots of reductions of the world have more.
exact_lines() { # RANK...
    local rank
    for rank; do
        echo "rank $rank exact $((rank % 5 ? 196602 : 199602))"
    done
}

# --- two nodes, the first and the last of the target
run srun "${crystal[@]}" "${apart[@]}" -J two "$exact"
is "two nodes: exit code" "$code" 0
is "two nodes: every rank is exact" "$(sort -k2n <<<"$out")" "$(exact_lines 0 1 2 3 12 13 14 15)"
is "two nodes: NumNodes" "$(job_field NumNodes)" 2
has "two nodes: plan" "$err" "crystal: plan: 8 of 16 ranks"
is "two nodes: both have measured" "$(cd crystal.two/log && echo coord.?.log)" "coord.0.log coord.1.log"
has "two nodes: report" "$err" "crystal: report: $PWD/crystal.two/report.txt"
matches "two nodes: the report has all ranks" "$(grep -cE '^ +(0|1|2|3|12|13|14|15) ' crystal.two/report.txt)" '^8$'
has "two nodes: the report says how" "$(cat crystal.two/report.txt)" "TCP between nodes"
is "two nodes: each leaves its part" "$(cd crystal.two/runs/001 && echo run*.yaml)" "run.1.yaml run.yaml"
is "two nodes: no failure" "$(grep -h '^failure' crystal.two/runs/001/run*.yaml | sort -u)" 'failure: ""'
nothing_left "two nodes: nothing is left"

# --- again, only emulate; tasks see their own numbers on the node that they run on
cat >where <<SCRIPT
#!/bin/sh
echo "\$SLURMD_NODENAME \$RANK \$SLURM_NODEID \$SLURM_LOCALID" >where.\$RANK
[ "\$RANK" = "\${LASTING:-none}" ] || exec $exact
$exact
code=\$?
sleep 7
exit \$code
SCRIPT
chmod +x where
run srun "${crystal[@]}" "${apart[@]}" -J two --crystal-stages=emulate "$exact"
is "again: exit code" "$code $(wc -l <<<"$out")" "0 8"
run srun "${crystal[@]}" "${apart[@]}" -J where ./where
is "tasks: exit code" "$code" 0
is "tasks: numbers" "$(cat where.0 where.3 where.12 where.15 | cut -d' ' -f2-)" $'0 0 0\n3 0 3\n12 3 0\n15 3 3'
is "tasks: nodes" "$(cut -d' ' -f1 where.0 where.3 | sort -u | wc -l) $(cut -d' ' -f1 where.12 where.15 | sort -u | wc -l) $(cut -d' ' -f1 where.* | sort -u | wc -l)" "1 1 2"

# --- three nodes, of which two are neighbours
run srun "${crystal[@]}" --crystal-sandbox=0-3,8-15 -J three "$exact"
is "three nodes: exit code" "$code" 0
is "three nodes: every rank is exact" "$(sort -k2n <<<"$out")" "$(exact_lines 0 1 2 3 8 9 10 11 12 13 14 15)"
nothing_left "three nodes: nothing is left"

# --- faults
# Sentences about what went wrong, but that of a rank that keeps others waiting.
sentences() {
    grep -E '^crystal: (emulate|agent|coordinator): ' <<<"$err" |
        grep -cvE ' of 16 ranks$|keeps others waiting'
}
run env EXACT_FAIL="13 exit" srun "${crystal[@]}" "${apart[@]}" -J two --crystal-stages=emulate "$exact"
is "a rank of the second node exits: exit code" "$code" 7
is "a rank of the second node exits: one sentence" "$(sentences)" 1
nothing_left "a rank of the second node exits: nothing is left"
# All tasks of its node end; one of the other node lasts longer than that node's agent
# waits for a reason before it tells of those that died of the first.
run env EXACT_FAIL="2 kill" LASTING=13 \
    srun "${crystal[@]}" "${apart[@]}" -J where --crystal-stages=emulate ./where
is "a rank of the first node is killed: exit code" "$code" 137
is "a rank of the first node is killed: one sentence" "$(sentences)" 1
has "a rank of the first node is killed: which" "$err" \
    "crystal: emulate: rank 2 was ended by signal 9 (Killed)"
nothing_left "a rank of the first node is killed: nothing is left"

agents() { # NODE: process ids of its agent
    local environ
    for environ in $(grep -lszx "SLURM_NODEID=$1" /proc/[0-9]*/environ 2>/dev/null); do
        grep -qsz "^SLURM_CONF=$work/cluster" "$environ" || continue
        tr '\0' ' ' <"${environ%environ}cmdline" 2>/dev/null | grep -q '^[^ ]*scrystal agent ' &&
            basename "${environ%/environ}"
    done
}
export EXACT_FAIL="14 hang" EXACT_BEGUN=$work/begun
mkdir "$EXACT_BEGUN"
{
    wait_until 300 test -e crystal.two/agent.1.env
    for rank in 0 1 2 3 12 13 14 15; do
        wait_until 300 test -e "$EXACT_BEGUN/$rank"
    done
    kill -9 $(agents 1)
} &
run srun "${crystal[@]}" "${apart[@]}" -J two --crystal-stages=emulate "$exact"
wait $!
matches "an agent is killed: exit code" "$code" '^[1-9][0-9]*$'
is "an agent is killed: one sentence" "$(sentences)" 1
has "an agent is killed: which" "$err" "the agent of node 1 (pid "
nothing_left "an agent is killed: nothing is left"
done_testing
