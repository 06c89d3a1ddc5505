#!/bin/bash
# Assistants as a component of their own (assistants.place: het): nodes of another
# partition, without GPUs, in a heterogeneous job. Every result of every rank is compared
# with its closed form (tests/programs/exactprog.c).
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
cluster_begin 4 --conf "PartitionName=gpus Nodes=n[1-2] State=UP
PartitionName=helpers Nodes=n[3-4] State=UP"
exact=$CRYSTAL_BUILDDIR/tests/programs/exactprog
config=$work/cluster/crystal.yaml
crystal=(--crystal-logical-ranks=16 --crystal-ranks-per-node=4 --crystal-live=all
    --crystal-iterations=3 --crystal-wire=real)
echo 'assistants: {place: het, partition: helpers}' >"$config"

exact_lines() { # RANK...
    local rank
    for rank; do
        echo "rank $rank exact $((rank % 5 ? 196602 : 199602))"
    done
}
# One of the two components of the last job: field FIELD of component OFFSET.
component() { # OFFSET FIELD
    scontrol --oneliner show job | grep " HetJobOffset=$1 " | tail -n 1 | tr ' ' '\n' |
        sed -n "s|^$2=||p"
}
given() { # JOB NODE: bytes that the sandbox made for the assistant
    sed -n 's/^given_bytes: \([0-9]*\).*/\1/p' "crystal.$1/runs/001/assistant.$2.yaml"
}
nodes_of() { # OFFSET: "PARTITION NODES GRES"
    echo "$(component "$1" Partition) $(component "$1" NodeList) $(component "$1" TresPerNode)"
}

# --- srun
run srun -p gpus "${crystal[@]}" --gres=gpu:4 -J one "$exact"
is "srun: exit code" "$code" 0
is "srun: every rank is exact" "$(sort -k2n <<<"$out")" "$(exact_lines 0 1 2 3)"
is "srun: the sandbox's component" "$(nodes_of 0)" "gpus n1 gres:gpu:4"
is "srun: the assistant's component" "$(nodes_of 1)" "helpers n3 "
has "srun: the wire" "$(cat crystal.one/report.txt)" "TCP to 1 assistant node;"
is "srun: the assistant has made all that it has sent" "$(given one 1)" 0
nothing_left "srun: nothing is left"

# --- the program sees a job of one part (but for what Slurm itself leaves of PACK, as
# components were called once)
run srun -p gpus "${crystal[@]}" -J seen bash -c \
    "env | sed -n 's/^\\(SLURM_[A-Z_]*HET[A-Z_0-9]*\\)=.*/sees \\1/p'; exec $exact"
is "the program: exit code" "$code" 0
is "the program does not see components" "$(grep sees <<<"$out")" ""
is "the program: every rank is exact" "$(grep exact <<<"$out" | sort -uk2n)" "$(exact_lines 0 1 2 3)"

# --- a batch script for two sandbox nodes
cat >script <<TEXT
#!/bin/bash
#SBATCH --partition=gpus ${crystal[*]} --crystal-sandbox=0-3,12-15
srun ${crystal[*]} --crystal-sandbox=0-3,12-15 -J two $exact
echo "code \$?"
TEXT
submit -o script.out script
is "sbatch: exit code" "$(grep ^code script.out)" "code 0"
is "sbatch: every rank is exact" "$(grep exact script.out | sort -k2n)" \
    "$(exact_lines 0 1 2 3 12 13 14 15)"
is "sbatch: the sandbox's component" "$(nodes_of 0)" "gpus n[1-2] "
is "sbatch: the assistants' component" "$(nodes_of 1)" "helpers n[3-4] "
nothing_left "sbatch: nothing is left"

# --- what cannot be
run salloc --quiet -N2 srun "${crystal[@]}" -J one --crystal-stages=emulate "$exact"
is "a job of one part: exit code" "$code" 2
has "a job of one part: sentence" "$err" "crystal: the job has no component for assistants (assistants.place: het); give sbatch or salloc the same --crystal- options"
run salloc --quiet -N1 : -N1 : -N1 srun "${crystal[@]}" -J one --crystal-stages=emulate "$exact"
is "three parts: exit code" "$code" 2
has "three parts: sentence" "$err" "crystal: the job has 3 components, one for the sandbox and one for assistants are emulated; give sbatch or salloc only these"
run sbatch "${crystal[@]}" --array=0-1 --wrap true
is "an array: exit code" "$code" 2
has "an array: sentence" "$err" "crystal: --array: Slurm has no arrays of heterogeneous jobs, which assistants.place: het makes of this one; use --crystal-wire=modelled or place: same"
echo 'assistants: {place: het, partition: nowhere}' >"$config"
run srun "${crystal[@]}" -J one --crystal-stages=emulate "$exact"
is "no such partition: exit code" "$code" 2
has "no such partition: sentence" "$err" "crystal: assistants.partition: there is no partition 'nowhere'; sinfo lists those that there are"
echo 'assistants: {place: het, partition: helpers}' >"$config"
run srun "${crystal[@]}" --crystal-assistants=3 -J one --crystal-stages=emulate "$exact"
is "too many for the partition: exit code" "$code" 2
has "too many for the partition: sentence" "$err" "crystal: partition 'helpers' has 2 node(s), the job needs 3 of them with its assistants; ask for fewer with --crystal-assistants, or set assistants.partition"
echo 'assistants: {place: het}' >"$config"
run srun -p gpus "${crystal[@]}" --crystal-assistants=2 -J one --crystal-stages=emulate "$exact"
is "too many for the job's own partition: exit code" "$code" 2
has "too many for the job's own partition: sentence" "$err" "partition 'gpus' has 2 node(s), the job needs 3 of them"
run srun -p gpus "${crystal[@]}" -J one --crystal-stages=emulate "$exact"
is "the job's own partition: exit code" "$code" 0
is "the job's own partition: the assistant's component" "$(nodes_of 1)" "gpus n2 "
echo 'assistants: {partition: helpers}' >"$config"
run srun "${crystal[@]}" -J one --crystal-stages=emulate "$exact"
is "a partition without a place: exit code" "$code" 2
has "a partition without a place: sentence" "$err" "assistants.partition: only nodes of their own component come from another partition; set assistants.place: het too, or leave it out"
run salloc --quiet -N1 : -N1 srun "${crystal[@]}" --crystal-wire=modelled -J one "$exact"
is "parts of a user's own: exit code" "$code" 2
nothing_left "what cannot be: nothing is left"
done_testing
