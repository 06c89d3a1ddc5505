#!/bin/bash
# Steps of an emulated srun: order and names, which srun is emulated, exit codes, stdin,
# the environment of a task.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
cluster_begin 4
: >"$work/cluster/crystal.yaml" # as many passes as plan takes by itself
crystal=(--crystal-logical-ranks=64 --crystal-parallel=tp=2,pp=4,dp=8)
rank=$CRYSTAL_BUILDDIR/tests/slurm/rank
exact=$CRYSTAL_BUILDDIR/tests/programs/exactprog

# --- srun without an allocation
run srun "${crystal[@]}" -N8 -n64 -J first "$rank" sh -c \
    'echo $RANK $LOCAL_RANK $WORLD_SIZE $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURM_NTASKS $SLURM_NNODES $SLURM_NTASKS_PER_NODE'
is "srun: exit code" "$code" 0
is "srun: tasks are the sandbox ranks" "$(sort -n <<<"$out")" "$(for i in 0 1 2 3 4 5 6 7; do echo "$i $i 64 $i $i 0 64 8 8"; done)"
is "srun: NumNodes" "$(job_field NumNodes)" 1
is "srun: JobName" "$(job_field JobName)" first
is "srun: steps in slurmctld's log" "$(step_names | tr '\n' ' ')" \
    "crystal-coord crystal-capture crystal-plan crystal-agent first "
matches "srun: progress of capture" "$err" '^crystal: capture: 8 of 64 ranks, 3 iterations \.\.\. [0-9.]+ s$'
matches "srun: progress of plan" "$err" '^crystal: plan: 8 of 64 ranks, 3 iterations \.\.\. [0-9.]+ s$'
matches "srun: progress of emulate" "$err" '^crystal: emulate: 8 of 64 ranks$'
matches "srun: report" "$err" "^crystal: report: $PWD/crystal.first/report.txt\$"
is "srun: the last line tells of stand-ins" "$(tail -n 1 <<<"$err")" \
    "crystal: values of virtual ranks are stand-ins, so times hold and losses do not; --crystal-live=all --crystal-payload=all for real ones"
matches "srun: the report is about it" "$(head -n 1 crystal.first/report.txt)" '^first: 64 ranks on 8: '
matches "srun: what is behind the recording" "$err" \
    '^crystal: net: iteration [1-9] is the first that was not recorded: from there on integers of virtual ranks are those of the last recorded iteration, as they were the same in all \(communicator '
nothing_left "srun: nothing is left"

# --- who keeps others waiting in capture
mkfifo "$work/go"
timeout --kill-after=5 600 srun --crystal-logical-ranks=4 --crystal-ranks-per-node=2 \
    --crystal-live=all --crystal-iterations=2 -J late --crystal-stages=capture \
    sh -c "[ \$RANK != 0 ] || read go <$work/go; exec $exact --per-node 2" >late.out 2>late.err &
pid=$!
wait_until 300 grep -q 'keeps others waiting' late.err
timeout 300 sh -c "echo go >$work/go"
wait "$pid"
is "late: exit code" "$?" 0
matches "late: who" "$(cat late.err)" '^crystal: coordinator: rank 0 \(pid [0-9]+\) uses no CPU and keeps others waiting; rank [0-9]+ waits in the store '

# --- no stand-ins, no word of them
run srun --crystal-logical-ranks=4 --crystal-ranks-per-node=2 --crystal-live=all \
    --crystal-payload=all --crystal-sandbox=0-1 -J real "$exact" --per-node 2
is "real values: exit code" "$code" 0
matches "real values: report" "$err" "^crystal: report: $PWD/crystal.real/report.txt\$"
hasnt "real values: no word of stand-ins" "$err" stand-ins

# --- a second run skips what is current, and says so
run srun "${crystal[@]}" -J first --crystal-sandbox=8-15 "$rank" sh -c \
    'echo $RANK $LOCAL_RANK $WORLD_SIZE $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURM_NTASKS $SLURM_NNODES $SLURM_NTASKS_PER_NODE'
is "second: exit code" "$code" 0
is "second: tasks are the sandbox ranks" "$(sort -n <<<"$out")" "$(for i in 0 1 2 3 4 5 6 7; do echo "$((i + 8)) $i 64 $((i + 8)) $i 1 64 8 8"; done)"
has "second: capture is skipped aloud" "$err" "crystal: capture is current, skipped"
hasnt "second: no capture" "$err" "capture: 8 of 64"

# --- three sruns in one script of which one names the options
cat >script <<SCRIPT
#!/bin/bash
#SBATCH --output=script.out
srun -n2 -l sh -c 'echo before \$SLURM_NTASKS \${RANK:-none}'
srun "\$@" $rank sh -c 'test \$RANK = 3 && echo emulated \$SLURM_NTASKS; exit 0'
echo code \$?
srun -N1 -n1 sh -c 'echo after \$SLURM_NTASKS \${RANK:-none}'
SCRIPT
submit -J three "${crystal[@]}" script "${crystal[@]}"
is "three sruns: exit code" "$code" 0
is "three sruns: output" "$(grep -v '^crystal' script.out | sort)" $'0: before 2 none\n1: before 2 none\nafter 1 none\ncode 0\nemulated 64'

# --- bare salloc: an allocation that knows nothing of us
run salloc --quiet bash -c "srun ${crystal[*]} -J bare $rank sh -c 'test \$RANK = 7 && echo rank 7; exit 0'; srun -N1 hostname"
is "bare salloc: exit code" "$code" 0
is "bare salloc: output" "$out" $'rank 7\n'"$(uname -n)"
run salloc --quiet "${crystal[@]}" -J shaped srun --crystal-stages=capture,plan,emulate "$rank" sh -c 'echo $WORLD_SIZE'
is "salloc's options are the step's defaults" "$code $(sort -u <<<"$out")" "0 64"
run salloc --quiet -N1 srun --crystal-logical-ranks=64 --crystal-parallel=tp=2,pp=4,dp=8 --crystal-job-dir="$work/given dir" "$rank" true
is "job directory with a blank: exit code" "$code" 0
is "job directory with a blank: mode" "$(stat -c %a "$work/given dir")" 700

# --- launch lines
run srun "${crystal[@]}" -J line bash -c "RANK=\$SLURM_PROCID WORLD_SIZE=\$SLURM_NTASKS exec $rank sh -c 'echo \$RANK/\$WORLD_SIZE'"
is "bash -c with SLURM_PROCID" "$code $(sort -n <<<"$out" | tail -n 1)" "0 7/64"
run srun "${crystal[@]}" -J master bash -c "MASTER_ADDR=\$(scontrol show hostnames | head -n 1) exec $rank sh -c 'getent hosts \$MASTER_ADDR >/dev/null && echo \$MASTER_ADDR'"
is "MASTER_ADDR from scontrol" "$code $(sort -u <<<"$out")" "0 n1"

# --- exit codes and stdin
run srun "${crystal[@]}" -J code "$rank" sh -c 'test $RANK = 5 && exit 42; exit 0'
is "the program's exit code" "$code" 42
is "the program's exit code in the job" "$(job_field ExitCode)" 42:0
run srun "${crystal[@]}" -J failing sh -c 'exit 7'
matches "a failing stage's exit code" "$code" '^[1-9][0-9]*$'
has "a failing stage: sentence" "$err" "crystal: the capture stage failed (exit code $code); the program was not started"
nothing_left "a failing stage: nothing is left"
run bash -c "echo hello | srun ${crystal[*]} -J stdin $rank sh -c 'if test \$RANK = 0; then read x; echo got \$x; fi'"
is "stdin goes to the program" "$code $out" "0 got hello"
run srun "${crystal[@]}" -J label -l -o label.out "$rank" sh -c 'echo $RANK'
is "-l and -o are the program's" "$code $(sort -n label.out | tail -n 1)" "0 7: 7"
port=$(free_port)
run env MASTER_PORT="$port" srun "${crystal[@]}" -J port "$rank" sh -c 'test $RANK != 0 || echo $MASTER_PORT'
is "MASTER_PORT of the environment is the store's" "$code $out" "0 $port"
run srun "${crystal[@]}" -J part --crystal-stages=capture "$rank" sh -c 'echo NEVER'
is "--crystal-stages=capture: exit code" "$code" 0
is "--crystal-stages=capture: no program" "$out" ""

# --- several sandbox nodes: each captures its share of the live ranks
run srun "${crystal[@]}" --crystal-sandbox=0-7,56-63 -J several --crystal-stages=capture \
    "$rank" sh -c 'echo NEVER'
is "two sandbox nodes: exit code" "$code $out" "0 "
is "two sandbox nodes: NumNodes" "$(job_field NumNodes)" 2
is "two sandbox nodes: traces" "$(cd crystal.several/ranks && echo *.trace)" \
    "$(seq -s ' ' -f %g.trace 0 7)"
is "two sandbox nodes: the same operations in each" \
    "$(for i in 0 3 4 7; do "$CRYSTAL_BUILDDIR/scrystal" show crystal.several/ranks/$i.trace | grep -c coll; done | sort -u | wc -l)" 1
cat >shares <<SCRIPT
#!/bin/sh
echo \$SLURMD_NODENAME >node.\$RANK
exec $rank
SCRIPT
chmod +x shares
run srun "${crystal[@]}" --crystal-sandbox=0-7,56-63 -J shares --crystal-stages=capture ./shares
is "two sandbox nodes: shares" "$code $(cat node.0 node.3 | sort -u | wc -l) $(cat node.4 node.7 | sort -u | wc -l) $(cat node.? | sort -u | wc -l)" "0 1 1 2"
for lrank in 1 6; do
    run srun "${crystal[@]}" --crystal-sandbox=0-7,56-63 -J "dies-$lrank" \
        --crystal-stages=capture sh -c "test \$RANK = $lrank && exit 5; exec $rank"
    is "two sandbox nodes, rank $lrank dies: exit code" "$code" 70
    is "two sandbox nodes, rank $lrank dies: one sentence" \
        "$(grep -E '^crystal: capture: (rank|the)' <<<"$err")" \
        "crystal: capture: rank $lrank ended with code 5; see $PWD/crystal.dies-$lrank/log/capture.$lrank.log"
    nothing_left "two sandbox nodes, rank $lrank dies: nothing is left"
done
run srun "${crystal[@]}" --crystal-sandbox=0-7,56-63 -J worlds --crystal-stages=capture \
    env WORLD_SIZE=4 "$rank"
is "two sandbox nodes, another world size: one sentence" "$code $(grep -c 'runs with world size 4' <<<"$err")" "70 1"
# --- slurmd's log is for admins: a line for each job at most
is "slurmd's log" "$(grep -h 'crystal:' "$work"/cluster/log/slurmd-n*.log | wc -l)" 0
nothing_left "all: nothing is left"
done_testing
