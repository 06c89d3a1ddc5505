#!/bin/bash
# -M: the job is on another cluster than the one that is configured where srun, salloc and
# sbatch are called. Two clusters with one database; jobs of both have the same numbers, so
# that a question put to the wrong one would be answered.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
need_accounting
users="add account ml
add user root account=ml qos=normal defaultqos=normal"
cluster_begin 1 --accounting "$users"
trap '"$cluster" stop "$work/other" >&2; cluster_end' EXIT
# shellcheck disable=SC2086 # a list of words
if ! "$cluster" start "$work/other" 2 --build "$CRYSTAL_BUILDDIR" --join "$work/cluster" --name other \
    --accounting "$users" ${CRYSTAL_CLUSTER_OPTIONS:-} >"$work/start" 2>&1; then
    fail "a second cluster starts" "$(cat "$work/start")"
    done_testing
fi
printf 'plan: {passes: 1}\n' >"$work/other/crystal.yaml"
crystal=(--crystal-logical-ranks=8 --crystal-ranks-per-node=2 --crystal-live=all --crystal-iterations=2)
rank=$CRYSTAL_BUILDDIR/tests/slurm/rank
there() { SLURM_CONF=$work/other/slurm.conf "$@"; }
for i in 1 2 3 4 5; do # the numbers that theirs will have
    sbatch -o /dev/null --wrap 'sleep 36000' >/dev/null
done

# who NAME JOBID: it ran there, and that job's comment says what it was, not our own one's
who() {
    is "$1: exit code, cluster" "$code $(grep '^rank ' <<<"$out" | sort | tr '\n' ' ')" "0 rank 0 other rank 1 other "
    [ "$code" = 0 ] || sed 's/^/# /' <<<"$err"
    matches "$1: the job's comment" "$(there scontrol --oneliner show job "$2")" \
        "Comment=crystal n=8 sandbox=0-1 dir=$PWD/crystal.$1( |\$)"
    hasnt "$1: no job of another cluster is asked" "$err" "Invalid job id"
}
# shellcheck disable=SC2016 # the rank's shell expands it
words=(sh -c 'echo rank $RANK $SLURM_CLUSTER_NAME')
run srun -M other "${crystal[@]}" -J srun "$rank" "${words[@]}"
who srun 1
run salloc --quiet -M other "${crystal[@]}" srun "${crystal[@]}" -J salloc "$rank" "${words[@]}"
who salloc 2
run env SLURM_CLUSTERS=other srun "${crystal[@]}" -J variable "$rank" "${words[@]}"
who variable 3
run sbatch -M other "${crystal[@]}" -o batch.out --wrap "srun ${crystal[*]} -J batch $rank ${words[*]@Q}"
is_over_there() { there job_is_over 4; }
wait_until 300 is_over_there
out=$(cat batch.out) err=$out
who batch 4
is "no job of this cluster has a comment of theirs" "$(scontrol --oneliner show job | grep -c Comment=crystal)" 0

# --- whose salloc is killed ends its job there, not the job of that number here
srun -M other "${crystal[@]}" -J killed "$rank" sh -c 'touch started; exec sleep 3000' 2>killed.err &
pid=$!
wait_until 300 test -e started || fail "killed: start" "$(cat killed.err)"
kill -KILL $pid
wait $pid 2>/dev/null
is_cancelled() { there job_is_over 5; }
wait_until 300 is_cancelled
is "killed: the job there" "$(there state_field 5 JobState)" CANCELLED
matches "killed: the job of that number here" "$(state_field 5 JobState)" '^(PENDING|RUNNING)$'
scancel -u root

# --- inside a job of this cluster: Slurm, too, takes the number of that job for one there
cat >inside.sh <<'END'
#!/bin/bash
srun -M other "$@"
echo "code $?"
SLURM_CLUSTERS=other srun "$@"
echo "code $?"
unset SLURM_JOB_ID SLURM_JOBID
srun -M other "$@"
echo "code $?"
END
run sbatch --parsable -o inside.out inside.sh "${crystal[@]}" -J inside "$rank" "${words[@]}"
job=${out%%;*}
is_over_here() { job_is_over "$job"; }
wait_until 300 is_over_here
refused() { # refused NAME
    echo "crystal: job $job is on cluster '$here', and $1 names 'other'; unset SLURM_JOB_ID and SLURM_JOBID to start a job there"
}
here=$(scontrol show config | sed -n 's/^ClusterName *= //p')
is "inside: -M and SLURM_CLUSTERS" "$(sed -n '1,4p' inside.out)" "$(refused -M)
code 2
$(refused SLURM_CLUSTERS)
code 2"
out=$(sed '1,4d' inside.out) err=$out code=$(sed -n '$s/^code //p' inside.out)
who inside 6
is "inside: no job of this cluster has a comment" "$(scontrol --oneliner show job | grep -c Comment=crystal)" 0
nothing_left "nothing is left"
there nothing_left "nothing is left there"
done_testing
