#!/bin/bash
# --segment, which Slurm has from 24.05 on, with blocks of nodes (topology/block).
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
version=$(PATH=$PATH:/usr/sbin slurmctld -V | grep -oE '[0-9]+\.[0-9]+' | head -n 1)
if [ "$(printf '%s\n' "$version" 24.05 | sort -V | head -n 1)" != 24.05 ]; then
    # Nothing that could be installed is missing.
    pass "not tried here: Slurm $version has no --segment"
    done_testing
fi
conf=$(mktemp -d /tmp/crystal-segment.XXXXXX)
printf 'BlockName=b1 Nodes=n[1-2]\nBlockName=b2 Nodes=n[3-4]\nBlockSizes=2\n' >"$conf/topology.conf"
cluster_begin 4 --conf TopologyPlugin=topology/block --copy "$conf/topology.conf"
rm -r "$conf"
crystal=(--crystal-logical-ranks=8 --crystal-ranks-per-node=2 --crystal-live=all
    --crystal-iterations=2 --crystal-stages=capture)
rank=$CRYSTAL_BUILDDIR/tests/slurm/rank
nodes() { state_field "$(last_job)" NodeList; }
said() { grep -e --segment <<<"$err"; }
run srun -N4 --segment=2 true
is "a plain step" "$code $(nodes)" "0 n[1-4]"
run srun "${crystal[@]}" --segment=1 -J one "$rank"
is "--segment=1" "$code $(state_field "$(last_job)" NumNodes) $(said)" "0 1 "
run srun "${crystal[@]}" --segment=2 --crystal-sandbox=0-3 -w n[3-4] -J two "$rank"
is "--segment=2 of two sandbox nodes" "$code $(nodes) $(said)" "0 n[3-4] "
run srun "${crystal[@]}" --segment=16 --crystal-sandbox=0-3 -J cut "$rank"
is "--segment of the whole job" "$code $(said)" \
    "0 crystal: --segment=16 does not divide the sandbox's 2 node(s), using 2"
submit "${crystal[@]}" -N64 --segment=16 -o batch.out --wrap 'echo $SLURM_JOB_NUM_NODES'
is "--segment of sbatch" "$code $(cat batch.out)" "0 1"
nothing_left "nothing is left"
done_testing
