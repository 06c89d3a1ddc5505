#!/bin/bash
# Bad input that only a real step meets: one clear sentence with the way out, an exit
# code, nothing left. (Bad values of options: options.t; signals: signals.t.)
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
cluster_begin 2
crystal=(--crystal-logical-ranks=64 --crystal-parallel=tp=2,pp=4,dp=8)
rank=$CRYSTAL_BUILDDIR/tests/slurm/rank
config=$work/cluster/crystal.yaml

# said NAME CODE SENTENCE COMMAND...: what our own lines say, and nothing left. Progress
# lines and srun's own are left out.
said() {
    local name=$1 want_code=$2 sentence=$3
    shift 3
    run "$@"
    is "$name: exit code" "$code" "$want_code"
    is "$name: sentence" "$(grep '^crystal: ' <<<"$err" | grep -vE \
        '^crystal: (capture|plan|graph|emulate|report): ([0-9]|/)|current, skipped$|^crystal: net:|^crystal: plan: the last two of|^crystal: values of virtual|; Ctrl-C gives up$|keeps others waiting' |
        grep -v 'stage failed (exit code .*the program was not started$')" "crystal: $sentence"
    is_nothing_left || nothing_left "$name: nothing is left"
}
no_program() { is "$1: program not started" "$out" ""; }

# --- configuration: file, line and column
printf 'wire:\n  bandwidth: 10Gb/s\n  speed: 3\n' >"$config"
said "unknown key" 2 "layout: $config:3:10: unknown key 'wire.speed'; scrystal doctor --keys lists them" \
    srun "${crystal[@]}" "$rank" echo NEVER
printf 'wire:\n  bandwidth: fast\n' >"$config"
said "bad value" 2 "layout: $config:2:14: wire.bandwidth: 'fast' is no bandwidth" \
    srun "${crystal[@]}" "$rank" echo NEVER
printf 'wire: [1\nlimits: 3\n' >"$config"
run srun "${crystal[@]}" "$rank" echo NEVER
is "malformed YAML: exit code" "$code" 2
matches "malformed YAML: sentence" "$err" "^crystal: layout: $config:[12]:[0-9]+: "
is "malformed YAML: one line" "$(wc -l <<<"$err")" 1
printf 'enabled: no\n' >"$config"
said "switched off" 2 "layout: crystal is switched off on this cluster (enabled: no)" \
    srun "${crystal[@]}" "$rank" echo NEVER
printf 'limits:\n  logical_ranks: 32\n' >"$config"
said "limit" 2 "layout: --crystal-logical-ranks: '64' is no whole number from 1 to 32" \
    srun "${crystal[@]}" "$rank" echo NEVER
: >"$config"

# --- the program
said "no such program" 70 "capture: launch: cannot run './nothere': No such file or directory" \
    srun "${crystal[@]}" -J nothere ./nothere
echo x >noexec
said "a program that is none" 70 "capture: launch: cannot run './noexec': Permission denied" \
    srun "${crystal[@]}" -J noexec ./noexec

run srun "${crystal[@]}" -J nowhere --chdir=/nowhere "$rank"
is "--chdir of no folder: Slurm's sentence" "$code $err" "1 salloc: error: chdir(/nowhere): No such file or directory"

# --- the job directory
said "job directory that cannot be made" 2 "layout: job directory /proc/nope: No such file or directory" \
    srun "${crystal[@]}" --crystal-job-dir=/proc/nope "$rank" echo NEVER
: >plain
said "job directory that is a file" 2 "layout: job directory $PWD/plain: not a directory" \
    srun "${crystal[@]}" --crystal-job-dir=plain "$rank" echo NEVER
mkdir 'two
lines' && cd 'two
lines' || exit 1
said "a line break in the working directory" 2 \
    "layout: --crystal-job-dir: the path has a line break behind '$work/cwd/two'; give a directory without one" \
    srun "${crystal[@]}" "$rank" echo NEVER
no_program "a line break in the working directory"
cd "$work/cwd" || exit 1
said "an argument that is not UTF-8" 2 \
    "layout: argument 2 of the program is not UTF-8, the only text that layout.yaml holds; pass it in a file or in the environment" \
    srun "${crystal[@]}" "$rank" echo $'caf\xe9'
mkdir -m 777 open
said "job directory of mode 777" 2 \
    "layout: job directory $PWD/open: others can write to it; chmod 700 it" \
    srun "${crystal[@]}" --crystal-job-dir=open "$rank" echo NEVER
mkdir -m 700 theirs && chown 12345 theirs
said "job directory of another user" 2 \
    "layout: job directory $PWD/theirs: belongs to another user; give one of your own" \
    srun "${crystal[@]}" --crystal-job-dir=theirs "$rank" echo NEVER

mkdir full
if mount -t tmpfs -o size=4m,mode=700 tmpfs full; then
    trap 'umount -l "$work/cwd/full"; cluster_end' EXIT
    space="no space left in $PWD/full; free some or use another directory"
    fill="head -c 8M /dev/zero >$PWD/full/fill 2>/dev/null"
    empty() { find full -mindepth 1 -delete; }
    sh -c "$fill"
    said "full from the start" 2 "layout: $space" \
        srun "${crystal[@]}" --crystal-job-dir=full "$rank" echo NEVER
    no_program "full from the start"
    for stage in capture plan; do
        empty
        run srun "${crystal[@]}" -J "full-$stage" --crystal-job-dir=full \
            sh -c "test \$CRYSTAL_STAGE = $stage && $fill; exec $rank echo NEVER"
        is "full during $stage: exit code" "$code" 70
        matches "full during $stage: sentence" "$err" "^crystal: $stage: $space \\(.*\\)\$"
        is "full during $stage: one sentence" "$(grep -c "no space left" <<<"$err")" 1
        no_program "full during $stage"
    done
    empty
    run srun "${crystal[@]}" -J full-emulate --crystal-job-dir=full \
        "$rank" sh -c "$fill; exit 0"
    is "full during emulate: exit code" "$code" 70
    matches "full during emulate: sentence" "$err" "^crystal: emulate: $space \\(.*\\)\$"
    nothing_left "full: nothing is left"
    empty
else
    fail "full: a tmpfs of its own" "mount failed"
fi

# --- stages and their parents; files that end early
said "emulate without a plan" 2 \
    "layout: $PWD/crystal.early has no current capture; add capture to --crystal-stages" \
    srun "${crystal[@]}" -J early --crystal-stages=emulate "$rank" echo NEVER
said "capture and emulate without a plan" 2 \
    "layout: $PWD/crystal.early has no current plan; add plan to --crystal-stages" \
    srun "${crystal[@]}" -J early --crystal-stages=capture,emulate "$rank" echo NEVER
run srun "${crystal[@]}" -J cut --crystal-stages=capture,plan "$rank" sh -c 'echo $RANK'
is "capture and plan: exit code" "$code $out" "0 "
for file in job.profile job.graph; do
    cp crystal.cut/$file whole
    truncate -s -1 crystal.cut/$file
    said "$file without its last byte" 2 \
        "layout: $PWD/crystal.cut has no current plan; add plan to --crystal-stages" \
        srun "${crystal[@]}" -J cut --crystal-stages=emulate "$rank" sh -c 'echo $RANK'
    cp whole crystal.cut/$file
done
touch crystal.cut/runs # an agent that fails before any task is started
run srun "${crystal[@]}" -J cut --crystal-stages=emulate "$rank" sh -c 'echo $RANK'
is "runs is a file: exit code, output" "$code $out" "70 "
matches "runs is a file: sentence" "$err" '^crystal: emulate: .*/runs'
is "runs is a file: no wait for the agent" "$(grep -c 'not ready after' <<<"$err")" 0
nothing_left "runs is a file: nothing is left"
rm crystal.cut/runs
truncate -s 100 crystal.cut/ranks/3.trace
said "a trace of 100 bytes" 2 \
    "layout: $PWD/crystal.cut has no current capture; add capture to --crystal-stages" \
    srun "${crystal[@]}" -J cut --crystal-stages=plan,emulate "$rank" sh -c 'echo $RANK'
run srun "${crystal[@]}" -J cut "$rank" sh -c 'echo $RANK'
is "a trace of 100 bytes: captured again" "$code $(sort -n <<<"$out" | tr '\n' ' ')" \
    "0 0 1 2 3 4 5 6 7 "
matches "a trace of 100 bytes: captured again aloud" "$err" '^crystal: capture: 8 of 64 ranks'
rm crystal.cut/ranks/3.trace
run srun "${crystal[@]}" -J cut --crystal-stages=capture "$rank" sh -c 'echo $RANK'
is "another capture: exit code" "$code" 0
said "a capture newer than its graph" 2 \
    "layout: $PWD/crystal.cut has no current plan; add plan to --crystal-stages" \
    srun "${crystal[@]}" -J cut --crystal-stages=emulate "$rank" sh -c 'echo $RANK'

# Jobs that begin in one directory at the same time: one has it, whoever that is.
for k in 1 2 3 4; do
    (
        srun "${crystal[@]}" -J atonce "$rank" sh -c 'test $RANK != 7 || echo $RANK' \
            >"$work/atonce.out.$k" 2>"$work/atonce.err.$k"
        echo $? >"$work/atonce.code.$k"
    ) &
    pids[k]=$!
done
wait "${pids[@]}"
is "at once: exit codes" "$(cat "$work"/atonce.code.* | sort | tr '\n' ' ')" "0 2 2 2 "
is "at once: output" "$(cat "$work"/atonce.out.*)" 7
is "at once: each says so" "$(grep -lE \
    "crystal: (coordinator|layout): job directory $PWD/crystal.atonce(: another job has begun in it just now| is in use by )" \
    "$work"/atonce.err.* | wc -l)" 3
is "at once: one report" "$(grep -l '^crystal: report: ' "$work"/atonce.err.* | wc -l)" 1
nothing_left "at once: nothing is left"

# --- ports
port=$(sed -n 's/^SlurmctldPort=//p' "$SLURM_CONF")
said "MASTER_PORT is taken" 2 \
    "coordinator: port $port is in use by another program; choose a free one with --store-port (MASTER_PORT)" \
    env MASTER_PORT="$port" srun "${crystal[@]}" -J port "$rank" echo NEVER
no_program "MASTER_PORT is taken"

# --- the program
said "another world size" 70 \
    "capture: the program runs with world size 4, the job has 64 logical ranks; it has to take its world size from WORLD_SIZE or SLURM_NTASKS" \
    srun "${crystal[@]}" -J world env WORLD_SIZE=4 "$rank" echo NEVER
no_program "another world size"
for stage in capture plan; do
    log=$PWD/crystal.exits-$stage/log/$stage.3.log
    said "a rank exits early in $stage" 70 "$stage: rank 3 ended with code 5; see $log" \
        srun "${crystal[@]}" -J "exits-$stage" \
        sh -c "test \$CRYSTAL_STAGE.\$RANK = $stage.3 && exit 5; exec $rank echo NEVER"
    log=$PWD/crystal.segv-$stage/log/$stage.3.log
    said "a rank segfaults in $stage" 70 \
        "$stage: rank 3 was ended by signal 11 (Segmentation fault); see $log" \
        srun "${crystal[@]}" -J "segv-$stage" \
        sh -c "test \$CRYSTAL_STAGE.\$RANK = $stage.3 && kill -SEGV \$\$; exec $rank echo NEVER"
    no_program "a rank segfaults in $stage"
done
said "another program in emulate" 5 \
    "emulate: rank 0 made no NCCL call; this is not the captured job, run 'scrystal capture', 'graph' and 'plan' again for it" \
    srun "${crystal[@]}" -J other sh -c "test \$CRYSTAL_STAGE = emulate || exec $rank"
# In emulate the ranks are Slurm's tasks: those that would wait for ever are told.
early="while others run on, ending their communication"
run srun "${crystal[@]}" -J exits sh -c "test \$CRYSTAL_STAGE.\$RANK = emulate.3 && exit 5; exec $rank true"
has "a rank exits early in emulate: sentence" "$err" \
    "crystal: emulate: rank 3 ended with code 5 $early"
is "a rank exits early in emulate: exit code" "$code" 5
hasnt "a rank exits early in emulate: the step is not cancelled" "$err" CANCELLED
nothing_left "a rank exits early in emulate: nothing is left"
run srun "${crystal[@]}" -J segv sh -c "test \$CRYSTAL_STAGE.\$RANK = emulate.3 && kill -SEGV \$\$; exec $rank true"
has "a rank segfaults in emulate: sentence" "$err" \
    "crystal: emulate: rank 3 was ended by signal 11 (Segmentation fault) $early"
is "a rank segfaults in emulate: exit code" "$code" 139
nothing_left "a rank segfaults in emulate: nothing is left"
run srun "${crystal[@]}" -J higher sh -c \
    "test \$CRYSTAL_STAGE.\$RANK = emulate.3 && exit 5; $rank; code=\$?; test \$code = 0 || exit 77"
has "others end with a higher code: sentence" "$err" "crystal: emulate: rank 3 ended with code 5"
is "others end with a higher code: exit code" "$code" 5
run srun "${crystal[@]}" --crystal-sandbox=0-15 -J far sh -c \
    "test \$CRYSTAL_STAGE.\$RANK = emulate.11 && exit 5; $rank; code=\$?; test \$code = 0 || exit 77"
is "a rank exits early on the second node: sentence" \
    "$(grep '^crystal: emulate: rank' <<<"$err")" "crystal: emulate: rank 11 ended with code 5 $early"
is "a rank exits early on the second node: exit code" "$code" 5
nothing_left "a rank exits early on the second node: nothing is left"
run srun "${crystal[@]}" -J last "$rank" sh -c 'test $RANK != 3 || kill -SEGV $$'
is "a rank segfaults at the end: exit code" "$code" 139
hasnt "a rank segfaults at the end: nobody waits" "$err" "$early"
nothing_left "all: nothing is left"
done_testing
