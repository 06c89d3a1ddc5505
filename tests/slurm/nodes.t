#!/bin/bash
# A node without the plugin: the step ends there with one sentence, other nodes and
# other steps run.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
cluster_begin 2 --without-plugin n2
crystal=(--crystal-logical-ranks=64 --crystal-parallel=tp=2,pp=4,dp=8)
rank=$CRYSTAL_BUILDDIR/tests/slurm/rank

run srun "${crystal[@]}" -w n2 -J without "$rank" echo NEVER
is "without the plugin: exit code" "$code" 70
has "without the plugin: sentence" "$err" \
    "crystal: capture: node n2 does not load crystal.so; install it and its plugstack.conf line on every node"
hasnt "without the plugin: before anything is captured" "$err" "crystal: plan"
is "without the plugin: program not started" "$out" ""
nothing_left "without the plugin: nothing is left"
run srun "${crystal[@]}" -w n1 -J with "$rank" sh -c 'test $RANK != 7 || echo $RANK/$WORLD_SIZE'
is "with the plugin" "$code $out" "0 7/64"
run srun -w n2 sh -c 'echo ${RANK:-none}'
is "plain srun without the plugin" "$code $out" "0 none"
run srun -N2 --ntasks-per-node=1 "$CRYSTAL_BUILDDIR/scrystal" doctor
is "scrystal doctor on each node" "$(sed -n 's/^\(n[12]\): [a-z]* *Slurm .*/\1/p' <<<"$out" | sort | tr '\n' ' ')" "n1 n2 "
# Where there are only loopback addresses Slurm's daemons would wait for ever.
run unshare --net "$cluster" start "$work/alone" 1
is "a private cluster without a network" "$code $err" "1 cluster: this machine has only loopback addresses, where Slurm does not listen; give it one (ip address add 192.0.2.1/32 dev lo)"
nothing_left "all: nothing is left"
done_testing
