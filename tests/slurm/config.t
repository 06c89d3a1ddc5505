#!/bin/bash
# crystal.yaml: what it asks of Slurm, whom and what it refuses, on the submit node and
# on the sandbox node by that node's own file; where job directories go.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
cluster_begin 4 --conf "PartitionName=few Nodes=n[3-4] State=UP
PartitionName=big Nodes=n[1-4] MinNodes=3 State=UP
PartitionName=small Nodes=n[1-4] MaxNodes=2 State=UP"
crystal=(--crystal-logical-ranks=16 --crystal-ranks-per-node=4 --crystal-live=all
    --crystal-iterations=2 --crystal-stages=capture)
rank=$CRYSTAL_BUILDDIR/tests/slurm/rank
config=$work/cluster/crystal.yaml

# --- what is asked of Slurm; the user's own options win
cat >"$config" <<YAML
request:
  partition: few
  cpus_per_task: 2
  mem_per_node: 100M
  exclusive: yes
  comment: from the file
  constraint: ""
YAML
fields() { for f in Partition CPUs/Task MinMemoryNode OverSubscribe Comment NumTasks; do state_field "$1" "$f"; done | tr '\n' ' '; }
submit "${crystal[@]}" -N4 --wrap true
is "request: sbatch" "$code $(fields "$(last_job)")" "0 few 2 100M NO from 4 "
submit "${crystal[@]}" -p main -c 1 --mem=200M --comment=own --wrap true
is "request: the command line wins" "$code $(fields "$(last_job)")" "0 main 1 200M NO own 4 "
printf '#!/bin/sh\n#SBATCH --partition=main --comment="in the script"\nexit 0\n' >script
submit "${crystal[@]}" -o script.out script
is "request: a script's #SBATCH lines win" "$code $(fields "$(last_job)")" "0 main 2 100M NO in 4 "
run srun "${crystal[@]}" -J asked "$rank" true
is "request: srun" "$code $(state_field "$(last_job)" Partition)" "0 few"
has "the job's comment says what it is" "$(scontrol --oneliner show job "$(last_job)")" \
    "Comment=from the file; crystal n=16 sandbox=0-3 dir=$PWD/crystal.asked "
printf 'request: {partition: nowhere}\n' >"$config"
run srun "${crystal[@]}" "$rank" true
is "request: no such partition" "$code" 1
has "request: no such partition: Slurm's sentence" "$err" "invalid partition specified: nowhere"

# --- partitions that never give a job so small
: >"$config"
run sbatch "${crystal[@]}" -p big --wrap true
is "MinNodes: exit code" "$code" 2
is "MinNodes: sentence" "$err" "crystal: partition 'big' has only jobs of 3 nodes and more (MinNodes), the sandbox needs 1; give another --partition, or more nodes with --crystal-sandbox"
run salloc --quiet "${crystal[@]}" --crystal-sandbox=0-11 -p big true
is "MinNodes: enough" "$code" 0

# --- and those that never give one so large
never() { # NAME SENTENCE OPTION...
    local name=$1 sentence=$2
    shift 2
    run srun "${crystal[@]}" "$@" "$rank" true
    is "$name" "$code $err" "2 crystal: partition $sentence"
    run sbatch "${crystal[@]}" "$@" --wrap true
    is "$name: sbatch" "$code $err" "2 crystal: partition $sentence"
}
never "fewer nodes than that" "'few' has 2 node(s), the job needs 3; name fewer ranks with --crystal-sandbox, or give another --partition" \
    -p few --crystal-sandbox=0-11
never "MaxNodes" "'small' has only jobs of 2 node(s) and less (MaxNodes), the job needs 3; name fewer ranks with --crystal-sandbox, or give another --partition" \
    -p small --crystal-sandbox=0-11
never "too many assistants" "'main' has 4 node(s), the job needs 10 with its assistants; ask for fewer with --crystal-assistants or --crystal-sandbox, or give another --partition" \
    --crystal-wire=real --crystal-assistants=9
run salloc --quiet "${crystal[@]}" --crystal-sandbox=0-7 -p small true
is "MaxNodes: enough" "$code" 0

# --- a job that has to wait says so, once; one that starts does not
is_in() { [ "$(state_field "$1" JobState)" = "$2" ]; } # JOBID STATE
all_idle() { [ "$(sinfo -h -N -p main -t idle -o %N | wc -l)" -eq 4 ]; }
wait_until 300 all_idle || fail "four nodes are idle" "$(sinfo)"
run srun "${crystal[@]}" -J starts sh -c "[ \$RANK != 0 ] || sleep 7; exec $rank true"
is "starts: exit code" "$code" 0
hasnt "starts: no word of waiting" "$err" "waits for"
wait_until 300 all_idle || fail "four nodes are idle again" "$(sinfo)"
holder=$(sbatch --parsable --output=/dev/null --exclusive -N4 --wrap 'sleep 30000')
wait_until 300 is_in "$holder" RUNNING || fail "the holder runs" "$(squeue)"
timeout --kill-after=5 600 srun "${crystal[@]}" --crystal-sandbox=0-7 -J waits "$rank" true >waits.out 2>waits.err &
pid=$!
wait_until 300 grep -q 'waits for' waits.err
is "waits: sentence" "$(cat waits.err)" "crystal: job $(last_job) waits for 2 nodes ($(state_field "$(last_job)" Reason)); Ctrl-C gives up"
scancel "$holder"
wait "$pid"
is "waits: goes on" "$? $(grep -c 'waits for' waits.err)" "0 1"
nothing_left "waits: nothing is left"

# --- who and how much
refused() { # NAME SENTENCE OPTION...
    local name=$1 sentence=$2
    shift 2
    run srun "${crystal[@]}" "$@" "$rank" true
    is "$name" "$code $err" "2 crystal: layout: $sentence"
}
printf 'allow: {groups: daemon}\n' >"$config"
refused "allow.groups" "you are in none of the groups that may emulate (allow.groups); ask the cluster's admin"
printf 'allow: {partitions: [few, main]}\n' >"$config"
refused "allow.partitions" "partition 'big' is none for emulated jobs (allow.partitions); use --partition=few" -p big
run salloc --quiet "${crystal[@]}" true
is "allow.partitions: the default one is named" "$code" 0
printf 'allow: {partitions: [few]}\n' >"$config"
refused "allow.partitions: the default one is not" "partition 'main' is none for emulated jobs (allow.partitions); use --partition=few"
printf 'limits: {sandbox_nodes: 1}\n' >"$config"
refused "limits.sandbox_nodes" "--crystal-sandbox: needs 2 nodes, limits.sandbox_nodes lets a job have 1; name fewer ranks" --crystal-sandbox=0-7
mkdir -m 700 crystal.full && head -c 3M /dev/zero >crystal.full/x
printf 'limits: {job_dir_bytes: 2MiB}\n' >"$config"
run srun "${crystal[@]}" -J full "$rank" true
is "limits.job_dir_bytes: exit code" "$code" 2
matches "limits.job_dir_bytes: sentence" "$err" "^crystal: layout: job directory $PWD/crystal.full holds 3[0-9]* bytes, more than the 2097152 of limits.job_dir_bytes; "

# --- the node's own file counts, too: there the user cannot choose another
printf 'limits: {logical_ranks: 8}\n' >"$config"
: >mine.yaml
mkdir "$work/cluster/mine.d"
sed "s#config=[^ ]*#config=$PWD/mine.yaml#" "$work/cluster/plugstack.conf.d/crystal.conf" >"$work/cluster/mine.d/crystal.conf"
echo "include $work/cluster/mine.d/*.conf" >"$work/cluster/mine.conf"
sed "s#^PlugStackConfig=.*#PlugStackConfig=$work/cluster/mine.conf#" "$SLURM_CONF" >"$work/cluster/mine-slurm.conf"
run env SLURM_CONF="$work/cluster/mine-slurm.conf" srun "${crystal[@]}" -J mine "$rank" true
is "on the node: exit code" "$code" 70
has "on the node: sentence" "$err" "crystal: capture: node n1: 16 logical ranks are more than the 8 of limits.logical_ranks"

# --- job directories
: >"$config"
mkdir dirs
printf 'job_dir: %s/dirs/%%u.%%j\nspill_dir: %s/spill/%%u/%%j\n' "$PWD" "$PWD" >"$config"
run srun "${crystal[@]}" "$rank" true
is "job_dir with %j" "$code $(test -d "dirs/$(id -un).$(last_job)" && echo there)" "0 there"
is "spill_dir with %u and %j" "$(ls "spill/$(id -un)/$(last_job)/$(id -un).$(last_job)-"* | tr '\n' ' ')" \
    "0.payload 1.payload 10.payload 11.payload 12.payload 13.payload 14.payload 15.payload 2.payload 3.payload 4.payload 5.payload 6.payload 7.payload 8.payload 9.payload "
printf 'port_range: 31990-31999\n' >"$config"
run srun "${crystal[@]}" -J ports "$rank" true
is "port_range: exit code" "$code" 0
is "port_range: in the layout" "$(sed -n '/^ports:/,/last/p' crystal.ports/layout.yaml | tr -s ' \n' ' ')" "ports: first: 31990 last: 31999 "
run srun "${crystal[@]}" -J ports --crystal-iterations=3 sh -c "echo \$MASTER_PORT >port; exec $rank"
matches "port_range: the store's" "$code $(cat port)" '^0 3199[0-9]$'
nothing_left "nothing is left"
done_testing
