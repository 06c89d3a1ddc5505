#!/bin/bash
# Accounting: slurmdbd on a MariaDB of its own, limits and QOS enforced. What sacct, squeue
# and sreport show of an emulated job, and who is refused by Slurm itself.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
need_accounting
cluster_begin 2 --accounting "add account ml
add qos emulate
modify qos emulate set MaxTRESPerUser=node=1 Flags=DenyOnLimit
add user root account=ml qos=normal,emulate defaultqos=normal
modify user root set defaultaccount=ml" --conf "Licenses=emulator:1"
crystal=(--crystal-logical-ranks=8 --crystal-ranks-per-node=2 --crystal-live=all --crystal-iterations=2)
rank=$CRYSTAL_BUILDDIR/tests/slurm/rank
states() { sacct -n -P -j "$1" -o JobID,JobName,State,ExitCode,NNodes,NTasks | sed "s/^$1//"; }
want=$'.0|crystal-coord|COMPLETED|0:0|1|1\n.1|crystal-capture|COMPLETED|0:0|1|1\n.2|crystal-plan|COMPLETED|0:0|1|1\n.3|crystal-agent|COMPLETED|0:0|1|1\n.4|acc|FAILED|3:0|1|2'

{
    wait_until 300 sh -c 'squeue -h -s -o %j | grep -qx acc'
    squeue -h -s -o %j | sort | tr '\n' ' ' >steps
    : >seen
} &
run srun "${crystal[@]}" -J acc --comment=mine "$rank" sh -c 'until [ -e seen ]; do sleep 0.05; done; exit 3'
wait $!
is "exit code" "$code" 3
is "squeue -s shows what runs" "$(cat steps)" "acc crystal-agent crystal-coord "
id=$(last_job)
as_wanted() { [ "$(states "$id" | sed 1d)" = "$want" ]; }
wait_until 300 as_wanted
is "sacct: the steps and their states" "$(states "$id" | sed 1d)" "$want"
is "sacct: the job" "$(sacct -n -P -X -j "$id" -o State,ExitCode,AllocNodes,Account)" "FAILED|3:0|1|ml"
is "sacct: the comment says what it was" "$(sacct -n -P -X -j "$id" -o Comment)" \
    "mine; crystal n=8 sandbox=0-1 dir=$PWD/crystal.acc"
matches "sacct: physical CPUs only" "$(sacct -n -P -X -j "$id" -o AllocTRES)" '^billing=2,cpu=2,(mem=[^,]*,)?node=1$'

run srun "${crystal[@]}" -J emulate --qos=emulate --crystal-stages=capture "$rank"
is "a QOS: within its limit" "$code" 0
run srun "${crystal[@]}" --qos=emulate --crystal-sandbox=0-3 "$rank"
is "a QOS: over its limit" "$code" 1
has "a QOS: Slurm's sentence" "$err" "Job violates accounting/QOS policy"
run srun "${crystal[@]}" --qos=nobody "$rank"
has "a QOS that there is not" "$code $err" "1 salloc: error: Job submit/allocate failed: Invalid qos specification"
printf 'allow: {accounts: [other]}\n' >"$work/cluster/crystal.yaml"
run srun "${crystal[@]}" -A ml "$rank"
has "allow.accounts, where the account is named" "$code $err" "2 crystal: layout: account 'ml' is none that may emulate"
run srun "${crystal[@]}" "$rank"
has "allow.accounts, on the node, where it is the default one" "$code $err" "account 'ml' is none that may emulate"
scontrol update NodeName=n2 AvailableFeatures=big ActiveFeatures=big
printf 'request: {qos: emulate, licenses: "emulator:1", constraint: big}\n' >"$work/cluster/crystal.yaml"
run srun "${crystal[@]}" -J asked --crystal-stages=capture "$rank"
asked() { for f in QOS Licenses Features NodeList; do state_field "$1" "$f"; done | tr '\n' ' '; }
is "request: qos, licenses, constraint" "$code $(asked "$(last_job)")" "0 emulate emulator:1 big n2 "
run srun "${crystal[@]}" -J own --qos=normal -L emulator:1 -C big -w n2 --crystal-stages=capture "$rank"
is "request: the command line wins" "$code $(asked "$(last_job)")" "0 normal emulator:1 big n2 "
run srun "${crystal[@]}" -L emulator:2 "$rank"
has "more licenses than there are: Slurm refuses" "$code $err" "1 salloc: error: Job submit/allocate failed: Invalid license specification"
: >"$work/cluster/crystal.yaml"
run srun -M elsewhere "${crystal[@]}" "$rank"
is "-M of a cluster that there is not: exit code" "$code" 1
has "-M of a cluster that there is not: Slurm's sentence" "$err" "No cluster 'elsewhere' known by database"
run srun -M crystal "${crystal[@]}" -J far --crystal-stages=capture "$rank"
is "-M" "$code" 0
# CPU seconds of this hour's jobs with less than four CPUs, and with more, as eight ranks
# would have: of more than an hour sreport shows what slurmdbd has summed up, at its end.
# Of a job without CPUs on record sreport counts none, sacct's CPUTime those asked for.
report() { # HOUR; newer releases add the sum behind the groups
    sreport -n -P -t Seconds job sizesbyaccount FlatView Grouping=4 start="$1" end="$(date -d "$1 1 hour" +%FT%T)" | cut -d '|' -f 1-4
}
recorded() { # HOUR; sacct's, in sreport's words; false while a job runs
    sacct -n -P -X -a -T -S "$1" -o ElapsedRaw,Account,State,AllocTRES | awk -F'|' '
        $2 == "ml" { split($4, cpu, "cpu="); sum += $1 * cpu[2] }
        $3 ~ /RUNNING|PENDING/ { runs = 1 }
        END { printf "crystal|ml|%d|0\n", sum; exit runs || !sum }'
}
is_reported() { want=$(recorded "$hour") && got=$(report "$hour") && [ "$got" = "$want" ]; }
this_hour() { date +%FT%H:00:00; }
for attempt in 1 2; do # the hour may end meanwhile, but not twice
    hour=$(this_hour) got=''
    run srun "${crystal[@]}" -J summed --crystal-stages=capture "$rank" sleep 2
    wait_until 300 is_reported
    [ "$hour" != "$(this_hour)" ] || break
done
is "sreport: physical CPUs only" "$got" "$want"
nothing_left "nothing is left"
done_testing
