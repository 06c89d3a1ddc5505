#!/bin/bash
# Ctrl-C, SIGTERM, SIGKILL and the time limit, in a stage and in the program.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
cluster_begin 2 --cpus 16
crystal=(--crystal-logical-ranks=64 --crystal-parallel=tp=2,pp=4,dp=8)
rank=$CRYSTAL_BUILDDIR/tests/slurm/rank
mark=$work/mark # a directory; every rank that runs leaves a file with its number

# Capture runs the program; one that sleeps keeps the stage.
in_stage=(sh -c "touch $mark/\$RANK; exec sleep 3000")
in_program=("$rank" sh -c "touch $mark/\$RANK; exec sleep 3000")

marks() { find "$mark" -type f 2>/dev/null | wc -l; }
has_marks() { [ "$(marks)" -ge "$1" ]; } # COUNT
forget_marks() { rm -rf "$mark"; mkdir "$mark"; }
is_gone() { ! kill -0 "$1" 2>/dev/null; } # PID
# Ctrl-C until srun is gone. It says so at each that does not come within a second of one
# before: on a busy machine, more than at the first.
press() {
    local presses=0
    while printf '\003' && echo $((++presses)) >"$work/presses" && is_said "$presses"; do :; done
}
is_said() { # TIMES; false when nobody is left to say it
    while [ "$(grep -c 'one more within 1 sec' "$work/out")" -lt "$1" ]; do
        [ ! -e "$work/gone" ] || return 1
        sleep 0.05
    done
}
started_or_gone() { has_marks "$1" || is_gone "$pid"; } # COUNT
begin() { # NAME COUNT COMMAND...: in the background, until COUNT ranks have left a mark
    local count=$2
    name=$1
    shift 2
    forget_marks
    "$@" >"$work/out" 2>"$work/err" &
    pid=$!
    wait_until 300 started_or_gone "$count"
    has_marks "$count" || fail "$name: start" "$(cat "$work/err")"
}
end() { # the exit code
    wait_until 300 is_gone "$pid" || { kill -9 "$pid"; fail "$name: end" "$(cat "$work/err")"; }
    wait "$pid" 2>/dev/null
    code=$?
}

for where in stage program; do
    declare -n words=in_$where
    begin "SIGTERM in the $where" 8 srun "${crystal[@]}" -J "term-$where" "${words[@]}"
    kill -TERM "$pid"
    end
    is "$name: exit code" "$code" 143
    hasnt "$name: no word of what has ended with it" "$(cat "$work/err")" "no coordinator serves"
    nothing_left "$name: nothing is left"

    begin "SIGKILL in the $where" 8 srun "${crystal[@]}" -J "kill-$where" "${words[@]}"
    kill -KILL "$pid"
    end
    is "$name: exit code" "$code" 137
    nothing_left "$name: nothing is left"

    begin "scancel in the $where" 8 srun "${crystal[@]}" -J "cancel-$where" "${words[@]}"
    scancel "$(last_job)"
    end
    matches "$name: exit code" "$code" '^(137|143)$'
    hasnt "$name: no word of what has ended with it" "$(cat "$work/err")" "no coordinator serves"
    nothing_left "$name: nothing is left"

    forget_marks
    : >"$work/out"
    rm -f "$work/gone"
    run_on_terminal srun "${crystal[@]}" -J "tty-$where" "${words[@]}" < <(
        wait_until 300 has_marks 8
        press)
    touch "$work/gone"
    # srun's own: 130, or 137 where its SIGKILL was faster
    matches "Ctrl-C twice in the $where: exit code" "$code" '^(130|137)$'
    has "Ctrl-C twice in the $where: as srun says it" "$out" "interrupt (one more within 1 sec to abort)"
    is "Ctrl-C twice in the $where: said at each but the last" \
        "$(($(grep -c 'one more within 1 sec' <<<"$out") + 1))" "$(cat "$work/presses")"
    nothing_left "Ctrl-C twice in the $where: nothing is left"
done

# --- SIGKILL of the coordinator and of a rank
has_no_step() { # NAME
    local steps
    steps=$(squeue -h -s -o %j) && ! grep -qx "$1" <<<"$steps"
}
kill_coordinator() { # JOBNAME
    local pid
    pid=$(pgrep -f -- "^[^ ]*scrystal coord --job=$PWD/crystal.$1( |\$)")
    kill -KILL "$pid"
}
begin "SIGKILL of the coordinator in the stage" 8 srun "${crystal[@]}" -J coord-stage "${in_stage[@]}"
kill_coordinator coord-stage
end
is "$name: exit code" "$code" 70
has "$name: cause" "$(cat "$work/err")" \
    "crystal: capture: the coordinator is gone (connection lost); see its log in the job directory"
has "$name: sentence" "$(cat "$work/err")" \
    "crystal: the capture stage failed (exit code 70); the program was not started"
nothing_left "$name: nothing is left"
rm -f "$work/go"
begin "SIGKILL of the coordinator in the program" 8 srun "${crystal[@]}" -J coord-program \
    "$rank" sh -c "touch $mark/\$RANK; while [ ! -e $work/go ]; do sleep 0.1; done"
kill_coordinator coord-program
wait_until 300 has_no_step crystal-coord
touch "$work/go"
end
is "$name: exit code" "$code" 70 # there is no report
has "$name: sentence" "$(cat "$work/err")" \
    "crystal: emulate: the coordinator is gone (connection lost); see its log in the job directory"
nothing_left "$name: nothing is left"
# Ranks that set up their communicator wait for rank 3, and for ever without a store.
rm -f "$work/go"
begin "SIGKILL of the coordinator under waiting ranks" 1 srun "${crystal[@]}" -J coord-wait \
    sh -c "test \$CRYSTAL_STAGE.\$RANK != emulate.3 || { touch $mark/3; while [ ! -e $work/go ]; do sleep 0.1; done; }; exec $rank true"
kill_coordinator coord-wait
wait_until 300 has_no_step crystal-coord
touch "$work/go"
end
matches "$name: exit code" "$code" '^(1|137|143)$'
has "$name: sentence" "$(cat "$work/err")" \
    "crystal: emulate: the coordinator is gone (connection lost); see its log in the job directory"
nothing_left "$name: nothing is left"
begin "SIGKILL of a rank" 1 srun "${crystal[@]}" -J rank \
    "$rank" sh -c "test \$RANK != 3 || { touch $mark/3; kill -KILL \$\$; }"
end
is "$name: exit code" "$code" 137
nothing_left "$name: nothing is left"

# The agents' srun, while a rank waits for what never comes: Slurm kills the agents.
mkfifo "$work/never"
boards() { find /dev/shm -maxdepth 1 -path "$board"; }
begin "SIGKILL of the agents' srun" 1 srun "${crystal[@]}" -J agents \
    sh -c "test \$CRYSTAL_STAGE.\$RANK != emulate.3 || { touch $mark/3; read never <$work/never; }; exec $rank true"
board=$(sed -n 's|^CRYSTAL_BOARD=\(/dev/shm/.*\)/board$|\1|p' crystal.agents/agent.0.env)
is "$name: the board is there" "$(boards)" "$board"
kill -KILL "$(pgrep -o -f -- "^[^ ]*srun --crystal-stage=agent --crystal-job-dir=$PWD/crystal.agents( |\$)")"
end
matches "$name: exit code" "$code" '^(1|137|143)$'
is "$name: one sentence" "$(grep '^crystal: ' "$work/err" | grep -c 'ended by signal 9')" 1
has "$name: which" "$(cat "$work/err")" \
    "crystal: the agents' srun was ended by signal 9 (Killed) and the program goes on without, ending it"
nothing_left "$name: nothing is left"
is "$name: the board is gone" "$(boards)" ""

# --- two jobs at once
begin "two jobs" 8 srun "${crystal[@]}" -J twice "${in_program[@]}"
first_job=$(last_job)
run srun "${crystal[@]}" -J twice "$rank" echo NEVER
is "two jobs in one job directory: exit code" "$code" 2
matches "two jobs in one job directory: sentence" "$err" '^crystal: .*crystal.twice.*(use|lock)'
is "two jobs in one job directory: program" "$out" ""
run srun "${crystal[@]}" -J other -w "$(state_field "$first_job" NodeList)" --oversubscribe "$rank" sh -c 'test $RANK != 7 || echo rank 7'
is "two jobs on one node" "$code $out" "0 rank 7"
kill -TERM "$pid"
end
nothing_left "two jobs: nothing is left"

# --- SIGKILL of srun in an allocation that goes on: the helper steps end with it
cat >script <<SCRIPT
#!/bin/bash
srun ${crystal[*]} -J inner ${in_stage[*]@Q} &
while [ "\$(ls $mark | wc -l)" -lt 8 ]; do sleep 0.1; done
kill -KILL \$!
wait
for i in \$(seq 3000); do [ -z "\$(squeue -h -s -j \$SLURM_JOB_ID | grep crystal-)" ] && break; sleep 0.1; done
squeue -h -s -j \$SLURM_JOB_ID | grep -c crystal-
SCRIPT
chmod +x script
forget_marks
run salloc --quiet "${crystal[@]}" ./script
is "SIGKILL of srun inside an allocation: no helper step is left" "$out" 0

# --- time limit: slurmctld looks every 30 s, so both jobs wait at once
expect() { # JOBID NAME PID
    local code
    wait_until 300 is_gone "$3" || kill -9 "$3"
    wait "$3" 2>/dev/null
    code=$?
    matches "time limit in the $2: exit code" "$code" '^(137|143)$'
    wait_until 300 job_is_over "$1"
    is "time limit in the $2: JobState" "$(state_field "$1" JobState)" TIMEOUT
}
begin "time limit in the stage" 8 srun "${crystal[@]}" -J time-stage -t 5 "${in_stage[@]}"
stage_pid=$pid stage_job=$(last_job)
begin "time limit in the program" 8 srun "${crystal[@]}" -J time-program -t 5 "${in_program[@]}"
for job in "$stage_job" "$(last_job)"; do
    scontrol update "JobId=$job" "EndTime=$(date -d '+1 second' +%Y-%m-%dT%H:%M:%S)" ||
        fail "time limit: scontrol"
done
program_job=$(last_job)
expect "$stage_job" stage "$stage_pid"
expect "$program_job" program "$pid"
nothing_left "time limit: nothing is left"
done_testing
