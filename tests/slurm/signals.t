#!/bin/bash
# Ctrl-C, SIGTERM, SIGKILL and the time limit, in a stage and in the program.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
cluster_begin 2 --cpus 16
crystal=(--crystal-logical-ranks=64 --crystal-parallel=tp=2,pp=4,dp=8)
rank=$CRYSTAL_BUILDDIR/tests/slurm/rank
mark=$work/mark

# Capture runs the program; one that sleeps keeps the stage.
in_stage=(sh -c "touch $mark; exec sleep 300")
in_program=("$rank" sh -c "test \$RANK != 0 || touch $mark; exec sleep 300")

begin() { # NAME COMMAND...: in the background, until the mark is there
    name=$1
    shift
    rm -f "$mark"
    "$@" >"$work/out" 2>"$work/err" &
    pid=$!
    wait_until 30 bash -c "test -e $mark || ! kill -0 $pid"
    test -e "$mark" || fail "$name: start" "$(cat "$work/err")"
    sleep 0.3 # all of the other tasks have started too
}
end() { # the exit code, within 20 s
    wait_until 20 bash -c "! kill -0 $pid" || { kill -9 "$pid"; fail "$name: end" "$(cat "$work/err")"; }
    wait "$pid" 2>/dev/null
    code=$?
}

for where in stage program; do
    declare -n words=in_$where
    begin "SIGTERM in the $where" srun "${crystal[@]}" -J "term-$where" "${words[@]}"
    kill -TERM "$pid"
    end
    is "$name: exit code" "$code" 143
    nothing_left "$name: nothing is left"

    begin "SIGKILL in the $where" srun "${crystal[@]}" -J "kill-$where" "${words[@]}"
    kill -KILL "$pid"
    end
    is "$name: exit code" "$code" 137
    nothing_left "$name: nothing is left"

    begin "scancel in the $where" srun "${crystal[@]}" -J "cancel-$where" "${words[@]}"
    scancel "$(last_job)"
    end
    matches "$name: exit code" "$code" '^(137|143)$'
    nothing_left "$name: nothing is left"

    rm -f "$mark"
    run_on_terminal srun "${crystal[@]}" -J "tty-$where" "${words[@]}" < <(
        wait_until 30 test -e "$mark"
        sleep 0.2
        printf '\003'
        sleep 0.3
        printf '\003'
        sleep 5)
    # srun's own: 130, or 137 where its SIGKILL was faster
    matches "Ctrl-C twice in the $where: exit code" "$code" '^(130|137)$'
    has "Ctrl-C twice in the $where: as srun says it" "$out" "interrupt (one more within 1 sec to abort)"
    is "Ctrl-C twice in the $where: said once" \
        "$(grep -c 'one more within 1 sec' <<<"$out")" 1
    nothing_left "Ctrl-C twice in the $where: nothing is left"
done

# --- SIGKILL of the coordinator and of a rank
kill_coordinator() { # JOBNAME
    local pid
    pid=$(pgrep -f -- "^[^ ]*scrystal coord --job=$PWD/crystal.$1( |\$)")
    kill -KILL "$pid"
}
begin "SIGKILL of the coordinator in the stage" srun "${crystal[@]}" -J coord-stage "${in_stage[@]}"
kill_coordinator coord-stage
end
is "$name: exit code" "$code" 70
has "$name: sentence" "$(cat "$work/err")" "crystal: the capture stage failed (exit code 70)"
nothing_left "$name: nothing is left"
begin "SIGKILL of the coordinator in the program" srun "${crystal[@]}" -J coord-program \
    "$rank" sh -c "test \$RANK != 0 || touch $mark; sleep 4"
kill_coordinator coord-program
end
has "$name: sentence" "$(cat "$work/err")" ended before the program
nothing_left "$name: nothing is left"
begin "SIGKILL of a rank" srun "${crystal[@]}" -J rank \
    "$rank" sh -c "test \$RANK != 3 || { touch $mark; sleep 0.5; kill -KILL \$\$; }"
end
is "$name: exit code" "$code" 137
nothing_left "$name: nothing is left"

# --- two jobs at once
begin "two jobs" srun "${crystal[@]}" -J twice "${in_program[@]}"
run srun "${crystal[@]}" -J twice "$rank" echo NEVER
is "two jobs in one job directory: exit code" "$code" 2
matches "two jobs in one job directory: sentence" "$err" '^crystal: .*crystal.twice.*(use|lock)'
is "two jobs in one job directory: program" "$out" ""
run srun "${crystal[@]}" -J other -w "$(squeue -h -o %N)" --oversubscribe "$rank" sh -c 'test $RANK != 7 || echo rank 7'
is "two jobs on one node" "$code $out" "0 rank 7"
kill -TERM "$pid"
end
nothing_left "two jobs: nothing is left"

# --- SIGKILL of srun in an allocation that goes on: the helper steps end with it
cat >script <<SCRIPT
#!/bin/bash
srun ${crystal[*]} -J inner ${in_stage[*]@Q} &
while [ ! -e $mark ]; do sleep 0.1; done
kill -KILL \$!
wait
for i in \$(seq 100); do [ -z "\$(squeue -h -s -j \$SLURM_JOB_ID | grep crystal-)" ] && break; sleep 0.1; done
squeue -h -s -j \$SLURM_JOB_ID | grep -c crystal-
SCRIPT
chmod +x script
rm -f "$mark"
run salloc --quiet "${crystal[@]}" ./script
is "SIGKILL of srun inside an allocation: no helper step is left" "$out" 0

# --- time limit: slurmctld looks every 30 s, so both jobs wait at once
expect() { # JOBID NAME PID
    local code
    wait_until 60 bash -c "! kill -0 $3" || kill -9 "$3"
    wait "$3" 2>/dev/null
    code=$?
    matches "time limit in the $2: exit code" "$code" '^(137|143)$'
    wait_until 15 bash -c "scontrol show job $1 | grep -q TIMEOUT"
    is "time limit in the $2: JobState" "$(scontrol -o show job "$1" | tr ' ' '\n' | sed -n 's/^JobState=//p')" TIMEOUT
}
begin "time limit in the stage" srun "${crystal[@]}" -J time-stage -t 5 "${in_stage[@]}"
stage_pid=$pid stage_job=$(last_job)
begin "time limit in the program" srun "${crystal[@]}" -J time-program -t 5 "${in_program[@]}"
for job in "$stage_job" "$(last_job)"; do
    scontrol update "JobId=$job" "EndTime=$(date -d '+1 second' +%Y-%m-%dT%H:%M:%S)" ||
        fail "time limit: scontrol"
done
program_job=$(last_job)
expect "$stage_job" stage "$stage_pid"
expect "$program_job" program "$pid"
nothing_left "time limit: nothing is left"
done_testing
