#!/bin/bash
# crystal.yaml: what it asks of Slurm, whom and what it refuses, on the submit node and
# on the sandbox node by that node's own file; where job directories go.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
cluster_begin 4 --conf "PartitionName=few Nodes=n[3-4] State=UP
PartitionName=big Nodes=n[1-4] MinNodes=3 State=UP"
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
