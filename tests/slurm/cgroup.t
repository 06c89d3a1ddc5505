#!/bin/bash
# Processes tracked and devices confined by control groups (proctrack/cgroup, task/cgroup,
# ConstrainDevices): agents and ranks get the GPUs of their step and no other, and what a
# rank leaves behind ends with its step. A GPU here is a device without a driver: one that is
# confined cannot be opened for want of permission, another for want of the driver.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
devices=/sys/fs/cgroup/devices
if ! mkdir $devices/crystal-test.$$ 2>/dev/null; then
    # Nothing that could be installed is missing: the machine has none, or keeps it.
    pass "not tried here: no devices controller of cgroup v1 in $devices that may be written"
    done_testing
fi
rmdir $devices/crystal-test.$$
conf=$(mktemp -d /tmp/crystal-cgroup.XXXXXX)
printf 'CgroupPlugin=cgroup/v1\nConstrainDevices=yes\n' >"$conf/cgroup.conf"
cluster_begin 1 --conf "ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup" --copy "$conf/cgroup.conf"
rm -r "$conf"
crystal=(--crystal-logical-ranks=8 --crystal-ranks-per-node=2 --crystal-live=all --crystal-iterations=2)
rank=$CRYSTAL_BUILDDIR/tests/slurm/rank
printf 'request: {gres_per_node: "gpu:2"}\nstage: {plan: {wrapper: [./look]}, capture: {wrapper: [./look]}}\n' >"$work/cluster/crystal.yaml"
# Which GPUs the rank may open, in each stage.
cat >look <<SCRIPT
#!/bin/bash
for i in 0 1 2 3 4 5 6 7; do
    (: <$work/cluster/dev/gpu\$i) 2>&1 | grep -q 'Operation not permitted' || printf '%s ' \$i
done >gpus.\$CRYSTAL_STAGE.\$RANK
exec "\$@"
SCRIPT
chmod +x look
run srun --gres=gpu:2 ./look sh -c 'cat gpus..'
is "a plain step: two GPUs" "$code $out" "0 0 1 "
run srun "${crystal[@]}" -J cgroup "$rank" sh -c './look true; setsid sleep 300 >/dev/null 2>&1 & exit 0'
is "exit code" "$code" 0
for stage in capture.0 capture.7 plan.1 emulate.0 emulate.1; do
    is "GPUs of $stage" "$(cat gpus.$stage)" "0 1 "
done
is "the job's" "$(state_field "$(last_job)" TresPerNode)" "gres:gpu:2"
has "report" "$err" "crystal: report: "
nothing_left "nothing is left, nor what a rank has put into a session of its own"
rmdir $devices/slurm_n1 /sys/fs/cgroup/freezer/slurm_n1 2>/dev/null # Slurm leaves them
done_testing
