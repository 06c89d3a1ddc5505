#!/bin/bash
# What crystal.yaml changes for single stages, and which SLURM_* the program sees, with
# and without the user's environment.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
cluster_begin 1
crystal=(--crystal-logical-ranks=64 --crystal-parallel=tp=2,pp=4,dp=8)
rank=$CRYSTAL_BUILDDIR/tests/slurm/rank
cat >"$work/cluster/crystal.yaml" <<YAML
stage:
  capture:
    env: {RULE: of capture}
    args: in capture
    wrapper: [env, "WRAPPER=capture's own"]
    log: own/c.%r.txt
  plan:
    env: {RULE: of plan}
    args: [in plan]
  emulate:
    env: {RULE: of emulate}
    args: ["in emulate", x]
    wrapper: /usr/bin/env WRAPPER=emulate
YAML
mkdir -m 700 -p crystal.rules/own crystal.none/own
# Each rank writes what it is given, then runs.
cat >show <<SCRIPT
#!/bin/sh
echo "\$CRYSTAL_STAGE: \$RULE, \$WRAPPER,\$(printf ' <%s>' "\$@")" >$PWD/seen.\$CRYSTAL_STAGE.\$RANK
test \$CRYSTAL_STAGE != capture || echo printed
exec $rank true
SCRIPT
chmod +x show
check() { # NAME
    is "$1: exit code" "$code" 0
    is "$1: capture" "$(cat seen.capture.3)" "capture: of capture, capture's own, <a b> <in> <capture>"
    is "$1: plan" "$(cat seen.plan.3)" "plan: of plan, , <a b> <in plan>"
    is "$1: emulate" "$(cat seen.emulate.3)" "emulate: of emulate, emulate, <a b> <in emulate> <x>"
}
run srun "${crystal[@]}" -J rules ./show "a b"
check rules
is "rules: log of capture" "$(cat crystal.rules/own/c.7.txt)" printed
rm -f seen.*
run srun --export=NONE "${crystal[@]}" -J none "$PWD/show" "a b"
check "--export=NONE"
rm -f seen.*
run srun "${crystal[@]}" -J rules ./show "a b"
is "rules: capture and plan stay current" "$code $(echo seen.*.3)" "0 seen.emulate.3"
sed -i 's/of plan/of another plan/; s/in capture/in another capture/' "$work/cluster/crystal.yaml"
run srun "${crystal[@]}" -J rules ./show "a b"
has "rules: changed ones, too" "$err" "crystal: capture and plan are current, skipped"

# --- which SLURM_* the program sees
: >"$work/cluster/crystal.yaml"
cat >numbers <<SCRIPT
#!/bin/sh
echo "\$RANK/\$WORLD_SIZE \$SLURM_PROCID \$SLURM_LOCALID \$SLURM_NODEID \$SLURM_NTASKS \$SLURM_NNODES" >$PWD/numbers.\$CRYSTAL_STAGE.\$RANK
exec $rank true
SCRIPT
chmod +x numbers
run srun "${crystal[@]}" -J numbers --crystal-sandbox=8-15 ./numbers
is "logical: exit code" "$code" 0
for stage in capture.3 plan.11 emulate.11; do
    lrank=${stage#*.}
    is "logical: $stage" "$(cat "numbers.$stage")" "$lrank/64 $lrank 3 $((lrank / 8)) 64 8"
done
rm -f numbers.*
run env SLURM_CRYSTAL_SLURM_ENV=physical srun "${crystal[@]}" -J numbers --crystal-sandbox=8-15 ./numbers
is "physical: exit code" "$code" 0
for stage in capture.3 plan.11 emulate.11; do
    is "physical: $stage" "$(cat "numbers.$stage")" "${stage#*.}/64 3 3 0 8 1"
done
nothing_left "nothing is left"
done_testing
