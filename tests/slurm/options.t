#!/bin/bash
# Options: help, one sentence for each bad value, Slurm's own options beside ours.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
cluster_begin 1

# --- help
for command in srun sbatch salloc; do
    run "$command" --help
    count=$(grep -c '^ *--crystal-[a-z-]*=[A-Z]' <<<"$out")
    is "$command --help: eleven options" "$count" 11
    hasnt "$command --help: the internal one is not shown" "$out" crystal-stage=
done

# --- bad values: one sentence, exit code 2, nothing allocated
bad() { # PART OPTION...
    local part=$1
    shift
    run srun "$@" echo NEVER
    is "$*: exit code" "$code" 2
    has "$*: sentence" "$err" "$part"
    is "$*: one line" "$(wc -l <<<"$err")" 1
    is "$*: program not started" "$out" ""
}
n=--crystal-logical-ranks
bad "--crystal-logical-ranks" $n=x
bad "--crystal-logical-ranks" $n=
bad "--crystal-logical-ranks" $n=0
bad "--crystal-logical-ranks" $n=-8
bad "--crystal-logical-ranks" $n=8x
bad "--crystal-logical-ranks" $n=99999999999999999999
bad "--crystal-logical-ranks" --crystal-sandbox=0-7
bad "--crystal-ranks-per-node" $n=64 --crystal-ranks-per-node=0
bad "--crystal-ranks-per-node" $n=64 --crystal-ranks-per-node=7
bad "--crystal-sandbox" $n=64 --crystal-sandbox=60-70
bad "--crystal-sandbox" $n=64 --crystal-sandbox=a
bad "--crystal-parallel" $n=64 --crystal-parallel=tp=2,dp=8
bad "--crystal-parallel" $n=64 --crystal-parallel=tp
bad "--crystal-live" $n=64 --crystal-live=some
bad "--crystal-parallel" $n=64 --crystal-live=replica
bad "--crystal-iterations" $n=64 --crystal-live=all --crystal-iterations=0
bad "--crystal-payload" $n=64 --crystal-live=all --crystal-payload=most
bad "--crystal-stages" $n=64 --crystal-live=all --crystal-stages=guess
bad "not yet" $n=64 --crystal-live=all --crystal-wire=real
bad "not yet" $n=64 --crystal-live=all --crystal-assistants=2
grid=--crystal-parallel=tp=2,pp=4,dp=8
bad "--gpus does not go with" $n=64 $grid -G 8
bad "--relative does not go with" $n=64 $grid -r1
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
