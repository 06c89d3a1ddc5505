#!/bin/bash
# Requests that were written for the whole job: each works, is overridden aloud or refused
# with the way out. (Options that are refused by name: options.t.)
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
cluster_begin 4 --conf "PartitionName=low Nodes=n[1-4] PriorityTier=1 State=UP
PartitionName=high Nodes=n[1-4] PriorityTier=10 State=UP
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE"
all=(--crystal-logical-ranks=8 --crystal-ranks-per-node=2 --crystal-live=all --crystal-iterations=2)
crystal=("${all[@]}" --crystal-stages=capture)
rank=$CRYSTAL_BUILDDIR/tests/slurm/rank

# What we say beside the progress.
ours() { grep '^crystal: ' <<<"$err" | grep -vE ' ranks, 2 iterations |; Ctrl-C gives up$'; }
# works NAME NODES SENTENCE OPTION...: the job runs there, and this is all that is said.
works() {
    local name=$1 nodes=$2 sentence=$3
    shift 3
    run srun "${crystal[@]}" "$@" "$rank"
    is "$name" "$code $(state_field "$(last_job)" NodeList) $(ours)" "0 $nodes ${sentence:+crystal: $sentence}"
    hasnt "$name: srun does not complain" "$err" "srun: error"
    rm -rf crystal.rank
}
refused() { # NAME SENTENCE COMMAND...
    local name=$1 sentence=$2
    shift 2
    run "$@"
    is "$name" "$code $(ours)" "2 crystal: $sentence"
}
works "-w" n3 "" -w n3
works "-w, more than the sandbox takes" n2 "3 nodes are named, the sandbox takes the first 1: n2" -w n[2-4]
works "-w, fewer" "n[2-3]" "" -w n2 --crystal-sandbox=0-3
printf 'n4\nn4\nn2\n' >nodes
works "-F" n4 "2 nodes are named, the sandbox takes the first 1: n4" -F nodes
works "-x" n3 "" -x n[1-2]
works "-c" n1 "" -c 8
works "--mem" n1 "" --mem=1G
works "--contiguous" "n[1-2]" "" --contiguous --crystal-sandbox=0-3
works "--switches" n1 "" --switches=1
works "--exclusive" n1 "" --exclusive
works "--gpus-per-node" n1 "" --gpus-per-node=8
works "--gres" n1 "" --gres=gpu:4
works "--cpus-per-gpu, --mem-per-gpu" n1 "" --gres=gpu:2 --cpus-per-gpu=2 --mem-per-gpu=10
works "--begin" n1 "" --begin=now+1
works "--dependency" n1 "" --dependency="afterany:$(last_job)"
refused "-c that never fits" "--cpus-per-task: 2 ranks of 9 CPUs need 18 CPUs of one node, those of partition 'main' have 16; give 8 or less, or leave it out" \
    srun "${crystal[@]}" -c 9 "$rank"
run srun "${crystal[@]}" --mem=10G "$rank"
has "--mem that never fits is Slurm's to refuse" "$code $err" "1 salloc: error: Memory specification can not be satisfied"
run srun --x11 true
plain=$err
run srun "${crystal[@]}" --x11 "$rank"
is "--x11 without a display: as without us" "$err" "$plain"
printf '#!/bin/sh\n#SBATCH -N64 --gpus=512\nsrun true\n' >script
refused "--gpus in a script" "--gpus does not go with --crystal-logical-ranks: the allocation is whole sandbox nodes; leave it out, --gres or --gpus-per-node say what a node has" \
    sbatch "${crystal[@]}" script
refused "--gpus of a job" "the job has --gpus=8 of 2 nodes, the sandbox is on 1 of them; ask for the job's GPUs by --gpus-per-node or --gres" \
    salloc --quiet -N2 --gpus=8 srun "${crystal[@]}" "$rank"
run salloc --quiet -N1 --gpus=8 srun "${crystal[@]}" "$rank"
is "--gpus of a job on the sandbox's node" "$code $(ours)" "0 crystal: SLURM_GPUS=8 counts the GPUs of all tasks, ignoring"
rm -rf crystal.rank
printf '#!/bin/sh\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N1\nsrun true\n' >script
refused "heterogeneous, in a script" "heterogeneous jobs are not emulated; use a job of one part" \
    sbatch "${crystal[@]}" script
refused "a node that the job has not" "node 'n4' is none of the job's (n1,n2); name one of these or none" \
    salloc --quiet -w n[1-2] srun "${crystal[@]}" -w n4 "$rank"
refused "-x that leaves too few" "--exclude leaves 1 of the job's nodes, the sandbox needs 2; exclude fewer" \
    salloc --quiet -w n[1-2] srun "${crystal[@]}" --crystal-sandbox=0-3 -x n1 "$rank"
run salloc --quiet -w n[1-3] srun "${all[@]}" -J chosen -x n1 "$rank" sh -c 'echo $SLURMD_NODENAME'
is "agents and program meet where -x leaves nodes" "$code $(sort -u <<<"$out")" "0 n2"
run salloc --quiet -w n[1-3] srun "${all[@]}" -J chosen -w n3 --crystal-stages=emulate "$rank" sh -c 'echo $SLURMD_NODENAME'
is "... where -w says" "$code $(sort -u <<<"$out")" "0 n3"

# --- job arrays: a directory for each task
submit "${crystal[@]}" --array=3-4 -J array -o array.%a --wrap "srun ${crystal[*]} $rank"
is "array: a task" "$code" 0
wait_until 300 test -e crystal.array.3/ranks/7.trace -a -e crystal.array.4/ranks/7.trace
is "array: directories" "$(echo crystal.array*)" "crystal.array.3 crystal.array.4"

# --- a job that comes again goes on behind the last finished stage
# (exec: linuxproc loses a child that a shell begets while it is killed.)
cat >job <<SCRIPT
#!/bin/bash
#SBATCH --open-mode=append --requeue
srun ${all[*]} $rank sh -c 'test "\${SLURM_RESTART_COUNT:-0}" != 0 || exec sleep 3000; exit 0'
echo run \${SLURM_RESTART_COUNT:-0}: code \$?
SCRIPT
is_back() { [ "$(state_field "$1" JobState) $(state_field "$1" Restarts)" = "PENDING 1" ]; } # JOB
# Slurm would let it wait for two minutes. It must not start in the second in which the first
# run was ended: slurmd takes it for that one, "already killed", since credentials count
# whole seconds. The first run's shell may live to say a code, or not.
again() { # NAME JOB: has been put back
    wait_until 300 is_back "$2" || fail "$1: comes again" "$(scontrol show job "$2")"
    scontrol update JobId="$2" StartTime=now+2
    wait_until 300 job_is_over "$2"
    is "$1: state" "$(state_field "$2" JobState) $(state_field "$2" Restarts)" "COMPLETED 1"
    is "$1: goes on behind plan" "$(grep -c "^crystal: capture: .* ranks, 2 iterations " "$1.out") $(grep 'skipped\|^run 1' "$1.out" | tr '\n' ' ')" \
        "1 crystal: capture and plan are current, skipped run 1: code 0 "
}
run sbatch --parsable "${all[@]}" -J requeue -o requeue.out job
id=$out
wait_until 300 test -s crystal.requeue/runs/001/1.run
matches "requeue: the lock names the job" "$(cat crystal.requeue/lock)" "^process [0-9]+ on .*, job $id \\(restart 0\\)\$"
scontrol requeue "$id"
again requeue "$id"
run sbatch --parsable "${all[@]}" -J preempted -o preempted.out -p low --exclusive -w n1 job
id=$out
wait_until 300 test -s crystal.preempted/runs/001/1.run
run srun -p high -w n1 --exclusive true
is "preemption: the other job" "$code" 0
again preempted "$id"
nothing_left "nothing is left"
done_testing
