#!/bin/sh
# scrystal layout as people read it: the drawing and the YAML of a machine with 8 GPUs and
# 8 NICs under 4 switches, and sentences that name options as they were given.
set -u
: "${CRYSTAL_BUILDDIR:=.}"
work=$(mktemp -d /tmp/crystal-layout.XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
count=0
is() { # NAME GOT-FILE WANT-FILE
    count=$((count + 1))
    if difference=$(diff -u "$3" "$2"); then
        echo "ok $count - $1"
    else
        echo "not ok $count - $1"
        echo "$difference" | sed 's/^/# /'
    fi
}
layout() {
    "$CRYSTAL_BUILDDIR/scrystal" layout --topology="$work/machine.xml" \
        --parallel=tp=2,pp=4,dp=8 "$@" >"$work/got" 2>&1
    echo "exit code $?" >>"$work/got"
}
"$CRYSTAL_BUILDDIR/tests/unit/topology" "$work/machine.xml" || echo "Bail out! no machine"

# agent.K.env has one setting a line
cat >"$work/want" <<TEXT
crystal: layout: --job-dir: the path has a line break behind '$work/two'; give a directory without one
exit code 2
TEXT
mkdir "$work/two
lines"
layout --logical-ranks=64 --write --job-dir="$work/two
lines/job"
is "a line break in the job directory" "$work/got" "$work/want"
sed -i 's/--job-dir/--crystal-job-dir/' "$work/want"
(cd "$work/two
lines" && layout --logical-ranks=64 --request)
is "a line break in the working directory, under srun" "$work/got" "$work/want"
cat >"$work/want" <<TEXT
crystal: capture: job directory: the path has a line break behind '$work/two'; give a directory without one
exit code 2
TEXT
"$CRYSTAL_BUILDDIR/scrystal" capture --job="$work/two
lines" -- true >"$work/got" 2>&1
echo "exit code $?" >>"$work/got"
is "a line break in the job directory of a stage" "$work/got" "$work/want"
cat >"$work/want" <<TEXT
job_dir=$work/a_b
TEXT
layout --logical-ranks=64 --request --job-dir="$work/%x" --job-name="a
b"
grep ^job_dir "$work/got" >"$work/line"
is "a line break in the job's name" "$work/line" "$work/want"

cat >"$work/want" <<'TEXT'
64 ranks, 8 a node; sandbox 8-15, 56 virtual ranks

target node 1
+- NUMA node 0
|  +- rank 8     cpus 0-3,32-35    GPU 0000:1a:00.0 --PIX-- mlx5_0
|  +- rank 9     cpus 4-7,36-39    GPU 0000:1c:00.0 --PIX-- mlx5_1
|  +- rank 10    cpus 8-11,40-43   GPU 0000:3c:00.0 --PIX-- mlx5_2
|  `- rank 11    cpus 12-15,44-47  GPU 0000:3d:00.0 --PIX-- mlx5_3
`- NUMA node 1
   +- rank 12    cpus 16-19,48-51  GPU 0000:8a:00.0 --PIX-- mlx5_4
   +- rank 13    cpus 20-23,52-55  GPU 0000:8b:00.0 --PIX-- mlx5_5
   +- rank 14    cpus 24-27,56-59  GPU 0000:ba:00.0 --PIX-- mlx5_6
   `- rank 15    cpus 28-31,60-63  GPU 0000:bd:00.0 --PIX-- mlx5_7

PIX: below one PCIe switch; PXB: several switches; PHB: below one PCIe root;
NODE: at one NUMA node; SYS: farther
exit code 0
TEXT
layout --logical-ranks=64 --sandbox=8-15 --draw
is "drawing" "$work/got" "$work/want"

cat >"$work/want" <<'TEXT'
logical_ranks: 64
ranks_per_node: 2
target_nodes: 32
sandbox: "0-1"
live: "0-7"
virtual_ranks: 62
wire:
  bytes_per_s: 1250000000
  latency_ns: 50000
nodes:
  - target_node: 0
    processes:
      - {rank: 0, numa: 0, cpus: "0-7,32-39", gpu: "0000:1a:00.0", nic: "mlx5_0", distance: PIX}
      - {rank: 1, numa: 0, cpus: "8-15,40-47", gpu: "0000:1c:00.0", nic: "mlx5_1", distance: PIX}
exit code 0
TEXT
layout --logical-ranks=64 --ranks-per-node=2
is "YAML" "$work/got" "$work/want"

echo "crystal: layout: --sandbox: rank list '64' names ranks beyond 63
exit code 2" >"$work/want"
layout --logical-ranks=64 --sandbox=64
is "by hand the options have short names" "$work/got" "$work/want"
echo "crystal: layout: --crystal-sandbox: rank list '64' names ranks beyond 63
exit code 2" >"$work/want"
layout --logical-ranks=64 --sandbox=64 --request
is "for the plugin they have srun's" "$work/got" "$work/want"
echo "crystal: layout: topology: /nowhere.xml: No such file or directory
exit code 2" >"$work/want"
layout --logical-ranks=64 --topology=/nowhere.xml
is "no such machine" "$work/got" "$work/want"
echo "nvlink: {nodes: 2}" >"$work/yaml"
echo "crystal: layout: nvlink.nodes: virtual ranks are not yet reached by NVLink, so no domain of 2 target nodes can be cut by the sandbox; take it as one node with --ranks-per-node=8 where a real node has as many GPUs, or set it to 1, which has NICs between the nodes
exit code 2" >"$work/want"
layout --logical-ranks=64 --ranks-per-node=4 --config="$work/yaml"
is "an NVLink domain of several nodes" "$work/got" "$work/want"
echo "1..$count"
