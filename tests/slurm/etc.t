#!/bin/bash
# What is installed for users and admins beside the plugin: the batch template, the chain
# of three jobs, and the limits of job_submit.lua.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
lua=$(find /usr/lib /usr/lib64 -name job_submit_lua.so -print -quit 2>/dev/null)
etc=$CRYSTAL_SRCDIR/etc/slurm
options=()
if [ -n "$lua" ]; then # with one node as the limit, and without the QOS
    scripts=$(mktemp -d)
    {
        sed 's/nodes_max, qos = 4, "emulate"/nodes_max, qos = 1, nil/' "$etc/job_submit.lua"
        cat <<'LUA'
function slurm_job_submit(job, partitions, uid) return crystal_job_submit(job, partitions, uid) end
function slurm_job_modify(job, old, partitions, uid) return slurm.SUCCESS end
LUA
    } >"$scripts/job_submit.lua"
    options=(--conf JobSubmitPlugins=lua --copy "$scripts/job_submit.lua")
fi
cluster_begin 4 "${options[@]}"
[ -z "$lua" ] || rm -r "$scripts"
rank=$CRYSTAL_BUILDDIR/tests/slurm/rank
crystal=(--crystal-logical-ranks=8 --crystal-ranks-per-node=2 --crystal-live=all --crystal-iterations=2)

# --- the template, with its marked lines changed
sed "s/logical-ranks=1024/logical-ranks=8/; s/parallel=tp=8,pp=4,dp=32/parallel=tp=2,dp=4 --crystal-iterations=2/
    s/sandbox=0-7 /sandbox=0-1 --crystal-ranks-per-node=2 /; s#^program=.*#program=($rank true)#" \
    "$etc/emulate.sbatch" >template
is "the template: its marked lines and the iterations" "$(diff "$etc/emulate.sbatch" template | grep -c '^>')" 4
submit template
is "the template: exit code" "$code" 0
matches "the template: report" "$(cat emulate.*.out)" "^crystal: report: $PWD/crystal.emulate/report.txt\$"
[ "$code" = 0 ] || sed 's/^/# /' emulate.*.out

# --- the chain
run "$etc/emulate-chain" "${crystal[@]}" --job-name=chain -- "$rank" sh -c 'echo "rank $RANK"'
is "the chain: exit code" "$code" 0
jobs=($out)
is "the chain: three jobs" "${#jobs[@]}" 3
wait_until 300 job_is_over "${jobs[2]}"
is "the chain: states" "$(for j in "${jobs[@]}"; do state_field "$j" JobState; done | tr '\n' ' ')" "COMPLETED COMPLETED COMPLETED "
is "the chain: the program ran in the last" "$(cat chain.*.out | grep '^rank' | sort | tr '\n' ' ')" "rank 0 rank 1 "
is "the chain: each ran its stage" "$(for j in "${jobs[@]}"; do grep -oE '^crystal: (capture|plan|emulate): [0-9]' "chain.$j.out" | cut -d' ' -f2 | sort -u; done | tr '\n' ' ')" "capture: plan: emulate: "
run "$etc/emulate-chain" "${crystal[@]}" --job-name=broken -- false
jobs=($out)
wait_until 300 job_is_over "${jobs[2]}"
is "the chain: nothing behind a failed stage" "$(for j in "${jobs[@]}"; do state_field "$j" JobState; done | tr '\n' ' ')" "FAILED CANCELLED CANCELLED "
run "$etc/emulate-chain" --help
is "the chain: usage" "$code" 2

# --- job_submit.lua
if [ -n "$lua" ]; then
    run sbatch "${crystal[@]}" --crystal-sandbox=0-3 --wrap true
    is "job_submit.lua: more nodes" "$code" 1
    has "job_submit.lua: sentence" "$err" "emulated jobs have at most 1 nodes"
    run sbatch "${crystal[@]}" --wrap true
    is "job_submit.lua: as many" "$code" 0
    run sbatch -N2 --wrap true
    is "job_submit.lua: other jobs" "$code" 0
fi
scancel -u root
nothing_left "nothing is left"
done_testing
