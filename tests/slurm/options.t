#!/bin/bash
# Options: help, one sentence for each bad value, Slurm's own options beside ours.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
cluster_begin 1

# --- help
for command in srun sbatch salloc; do
    run "$command" --help
    count=$(grep -c '^ *--crystal-[a-z-]*=[A-Z]' <<<"$out")
    is "$command --help: twelve options" "$count" 12
    hasnt "$command --help: the internal one is not shown" "$out" crystal-stage=
done

# --- bad values: one sentence, exit code 2, nothing allocated
bad() { # SENTENCE OPTION...
    local sentence=$1
    shift
    run srun "$@" echo NEVER
    is "$*: exit code" "$code" 2
    is "$*: sentence" "$err" "crystal: $sentence"
    is "$*: program not started" "$out" ""
}
n=--crystal-logical-ranks
for value in x 0 -8 8x 8.5 99999999999999999999 1048577; do
    bad "layout: $n: '$value' is no whole number from 1 to 1048576" "$n=$value"
done
bad "layout: $n is missing; it says how many ranks the job has" --crystal-sandbox=0-7
for value in x 0 -1 65 99999999999999999999; do
    bad "layout: --crystal-ranks-per-node: '$value' is no whole number from 1 to 64" \
        $n=64 --crystal-ranks-per-node="$value"
done
bad "layout: $n: 64 is no multiple of 7 ranks per node; give --crystal-ranks-per-node" \
    $n=64 --crystal-ranks-per-node=7
for value in 60-70 64 0-99999999999999999999; do
    bad "layout: --crystal-sandbox: rank list '$value' names ranks beyond 63" \
        $n=64 --crystal-sandbox="$value"
done
for value in a 8-3 0-,3 -1; do
    bad "layout: --crystal-sandbox: '$value' is no rank list such as 0-7,16" \
        $n=64 --crystal-sandbox="$value"
done
bad "layout: --crystal-sandbox: spans 2 target nodes; ranks that run one by one (--crystal-live) need one" \
    $n=64 --crystal-sandbox=0-15 --crystal-live=0-63 --crystal-stages=capture
run sbatch $n=64 --crystal-sandbox=0-15 --crystal-live=0-63 --wrap 'echo NEVER'
is "sbatch: several sandbox nodes: exit code" "$code" 2
bad "layout: --crystal-parallel: the product of 'tp=2,dp=8' is 16, not the 64 logical ranks" \
    $n=64 --crystal-parallel=tp=2,dp=8
for value in tp tp=0,dp=64 tp=x tp=-2,dp=32 tp=99999999999999999999; do
    bad "layout: --crystal-parallel: '$value' is no parallel grid such as tp=2,pp=4,dp=8 (fastest first)" \
        $n=64 --crystal-parallel="$value"
done
bad "layout: --crystal-parallel: grid 'tp=2,tp=32' gives a dimension twice" \
    $n=64 --crystal-parallel=tp=2,tp=32
bad "layout: --crystal-live: 'some' is neither replica nor all nor a list of ranks" $n=64 --crystal-live=some
bad "layout: --crystal-live=replica needs the parallel grid; give --crystal-parallel or --crystal-live=all" \
    $n=64 --crystal-live=replica
for value in x 0 -1 1000001; do
    bad "layout: --crystal-iterations: '$value' is no whole number from 1 to 1000000" \
        $n=64 --crystal-live=all --crystal-iterations="$value"
done
bad "layout: --crystal-payload: 'most' is neither control nor all" \
    $n=64 --crystal-live=all --crystal-payload=most
bad "layout: --crystal-stages: 'guess' is none of capture, plan, emulate" \
    $n=64 --crystal-live=all --crystal-stages=capture,guess
bad "layout: $n: is empty; give a value or leave it out" $n=
for option in ranks-per-node sandbox parallel live iterations payload stages wire; do
    bad "layout: --crystal-$option: is empty; give a value or leave it out" \
        $n=64 --crystal-live=all "--crystal-$option="
done
bad "layout: --crystal-wire=real: all ranks are in the sandbox, so no virtual rank has messages; leave it out" \
    $n=8 --crystal-live=all --crystal-wire=real
bad "layout: --crystal-assistants: '0' is no whole number from 1 to 512" \
    $n=64 --crystal-live=all --crystal-wire=real --crystal-assistants=0
bad "layout: --crystal-wire: 'pigeon' is neither modelled nor real" \
    $n=64 --crystal-live=all --crystal-wire=pigeon
bad "layout: --crystal-assistants: the modelled wire needs none; add --crystal-wire=real" \
    $n=64 --crystal-live=all --crystal-assistants=2
bad "layout: --crystal-slurm-env: 'both' is none of logical, physical, node" \
    $n=64 --crystal-live=all --crystal-slurm-env=both
grid=--crystal-parallel=tp=2,pp=4,dp=8
bad "--gpus does not go with $n: the allocation is whole sandbox nodes; leave it out, --gres or --gpus-per-node say what a node has" \
    $n=64 $grid -G 8
bad "--relative does not go with $n: the tasks of an emulated step are the sandbox ranks; leave it out" \
    $n=64 $grid -r1
run sbatch $n=x --wrap 'echo NEVER'
is "sbatch: exit code" "$code" 2
has "sbatch: sentence" "$err" "--crystal-logical-ranks"
run salloc $n=64 $grid --crystal-ranks-per-node=7 true
is "salloc: exit code" "$code" 2
has "salloc: sentence" "$err" "--crystal-ranks-per-node"
run srun $n=64 $grid true : true
is "heterogeneous: exit code" "$code" 2
has "heterogeneous: sentence" "$err" "heterogeneous jobs"
is "nothing was allocated" "$(scontrol --oneliner show job)" "No jobs in the system"

# --- the option table follows the installed Slurm: every option of srun that salloc
# lacks is known as such, and takes a value as we think.
cat >"$work/dump.c" <<'C'
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
int getopt_long(int argc, char *const *argv, const char *letters,
                const struct option *option, int *index)
{
    (void)argc, (void)argv, (void)letters, (void)index;
    for (; option->name; option++)
        printf("%s %d\n", option->name, option->has_arg);
    exit(0);
}
C
if ${CC:-cc} -shared -fPIC -o "$work/dump.so" "$work/dump.c" 2>"$work/err"; then
    for command in srun salloc; do
        LD_PRELOAD=$work/dump.so "$command" x | grep -v '^crystal-' | sort -u >"$work/$command"
    done
    "$CRYSTAL_BUILDDIR/tests/slurm/srun_table" >"$work/table"
    drift=$(awk 'FILENAME ~ /table$/ { value[$1] = $2; step[$1] = $3; next }
        FILENAME ~ /salloc$/ { salloc[$1] = 1; next }
        !($1 in value) { print $1, "is unknown"; next }
        value[$1] != $2 && !(value[$1] == 2 && $2 == 0) { print $1, "takes", $2 }
        !step[$1] && !($1 in salloc) { print $1, "is no option of salloc" }' \
        "$work/table" "$work/salloc" "$work/srun")
    is "the option table follows srun and salloc" "$drift" ""
else
    fail "the option table follows srun and salloc" "$(cat "$work/err")"
fi
done_testing
