#!/bin/bash
# Bad input of the stages by hand: one sentence with the way out, an exit code, nothing
# left. (How ranks end: tests/unit/stages_ends.c; under Slurm: tests/slurm/bad_input.t.)
set -u
: "${CRYSTAL_BUILDDIR:?}"
scrystal=$CRYSTAL_BUILDDIR/scrystal program=$CRYSTAL_BUILDDIR/tests/programs/ncclprog
options=(--tp 2 --pp 2 --elements 64 --compute-us 500)
work=$(mktemp -d /tmp/crystal-by-hand.XXXXXX) || exit 1
count=0 failed=0
trap 'umount "$work/full" 2>/dev/null; rm -rf "$work"' EXIT

check() { # NAME GOT WANT
    count=$((count + 1))
    if [ "$2" = "$3" ]; then
        echo "ok $count - $1"
    else
        failed=$((failed + 1))
        echo "not ok $count - $1"
        printf '%s\n' "got:  $2" "want: $3" | sed 's/^/# /'
    fi
}
skip() { count=$((count + 1)); echo "ok $count - $1 # SKIP $2"; }

# run STAGE DIR OPTION...: $code, $said: our lines but for the progress.
run() {
    local stage=$1 dir=$2
    shift 2
    timeout 120 "$scrystal" "$stage" --job "$dir" -- "$program" "${options[@]}" "$@" \
        >"$work/out" 2>&1
    code=$?
    said=$(grep '^crystal: ' "$work/out" |
        grep -vE '^crystal: (capture|plan|emulate): (4 of 16|pass |recorded|measured|report|the last two)|^crystal: net:')
}
make_job() {
    mkdir -m 700 "$1" &&
        "$scrystal" layout --logical-ranks=16 --ranks-per-node=4 \
            --parallel=tp=2,pp=2,dp=4 --sandbox=0-3 --job-dir="$1" --write --iterations=3 \
            >/dev/null
}
iterations() { if [ "$1" = emulate ]; then echo 3; else echo 8; fi; }

job=$work/job
make_job "$job" || exit 1
run capture "$job" --iterations 8
check "capture" "$code $said" "0 "
"$scrystal" graph --job "$job" 2>/dev/null
run plan "$job" --iterations 8
check "plan" "$code $said" "0 "

# --- a capture that fails is none: whoever asks next captures again
make_job "$work/failed"
for fault in kill exit mismatch; do
    run capture "$work/failed" --iterations 8 --fail $fault --fail-rank 2 --fail-at 2
    check "capture fails ($fault): exit code" "$code" 70
    said=$("$scrystal" graph --job "$work/failed" 2>&1)
    check "capture fails ($fault): graph" "$? ${said/[0-3].trace/R.trace}" \
        "70 crystal: graph: $work/failed/ranks/R.trace: its capture has failed or was stopped; run 'scrystal capture' again"
    said=$("$scrystal" layout --logical-ranks=16 --ranks-per-node=4 --parallel=tp=2,pp=2,dp=4 \
        --sandbox=0-3 --job-dir="$work/failed" --iterations=3 --request | sed -n 's/^stages=//p')
    check "capture fails ($fault): it is not current" "$said" "capture,plan,emulate"
done

# --- another NCCL than the job is set up for (hostccl is one of 2.28.9): it would wait in
# its set-up for ever
echo 'nccl: {version: 2.28.3}' >"$work/yaml"
cp -r "$job" "$work/older"
"$scrystal" layout --logical-ranks=16 --ranks-per-node=4 --config="$work/yaml" \
    --parallel=tp=2,pp=2,dp=4 --sandbox=0-3 --job-dir="$work/older" --write --iterations=3 \
    >/dev/null
rm "$work/older/job.profile"
for stage in plan emulate; do
    run "$stage" "$work/older" --iterations "$(iterations "$stage")"
    check "$stage of another NCCL" "$code $(sed 's/: rank [0-3] /: rank R /' <<<"$said")" \
        "70 crystal: $stage: rank R runs NCCL 2.28.9, the job is set up for NCCL 2.28.3; set nccl.version in crystal.yaml to 2.28.9, or use that NCCL"
    cp "$job/job.profile" "$work/older"
done

# --- spill_dir: contents of messages lie there, as in the job directory else; and each of
# the four ranks may lock its part of limits.pinned_bytes
cat >"$work/yaml" <<YAML
spill_dir: $work/far/%u
limits: {pinned_bytes: 8MiB}
stage: {capture: {wrapper: [sh, -c, 'echo \$CRYSTAL_PINNED_BYTES >>$work/pinned; exec "\$0" "\$@"']}}
YAML
spilled() { # DIR
    mkdir -m 700 "$1" &&
        "$scrystal" layout --logical-ranks=16 --ranks-per-node=4 --config="$work/yaml" \
            --parallel=tp=2,pp=2,dp=4 --sandbox=0-3 --job-dir="$1" --write --iterations=3 \
            >/dev/null
}
spilled "$work/spilled"
run capture "$work/spilled" --iterations 8
check "spill_dir: capture" "$code $said" "0 "
check "limits.pinned_bytes: each rank's part" "$(sort "$work/pinned" | uniq -c | tr -s ' ')" " 4 2097152"
spill=$(echo "$work/far/$(id -un)"/spilled-*)
check "spill_dir: in the layout" "$(sed -n 's/^spill_dir: //p' "$work/spilled/layout.yaml")" "\"$spill\""
check "spill_dir: mode" "$(stat -c %a "$spill")" 700
check "spill_dir: what lies there" "$(cd "$spill" && echo *)" "$(cd "$job/ranks" && echo *.payload)"
check "spill_dir: what lies in the job directory" "$(cd "$work/spilled/ranks" && echo *)" "$(cd "$job/ranks" && echo *.trace* spill)"
for rank in 0 1 2 3; do
    cmp <(tail -c +65 "$job/ranks/$rank.payload") <(tail -c +65 "$spill/$rank.payload") || echo "rank $rank"
done >"$work/differ" 2>&1
check "spill_dir: the same bytes" "$(cat "$work/differ")" ""
"$scrystal" graph --job "$work/spilled" 2>/dev/null
check "spill_dir: graph" "$?" 0
mv "$spill" "$work/gone"
said=$("$scrystal" graph --job "$work/spilled" 2>&1)
check "spill_dir: it has gone" "$? ${said#*: record *: }" \
    "70 its payload file is missing; with spill_dir that must be a directory of all nodes of the job; capture again"
said=$("$scrystal" layout --logical-ranks=16 --ranks-per-node=4 --config="$work/yaml" --parallel=tp=2,pp=2,dp=4 --sandbox=0-3 \
    --job-dir="$work/spilled" --iterations=3 --request -- "$program" "${options[@]}" --iterations 8 | sed -n 's/^stages=//p')
check "spill_dir: it has gone: capture is not current" "$said" "capture,plan,emulate"
mkdir -m 777 "$spill"
chmod 777 "$spill"
run capture "$work/spilled" --iterations 8
check "spill_dir: others may write there" "$code $said" \
    "70 crystal: capture: spill_dir $spill: others can write to it; chmod 700 it"
rmdir "$spill"
touch "$spill"
run capture "$work/spilled" --iterations 8
check "spill_dir: it is a file" "$code $said" "70 crystal: capture: spill_dir $spill: not a directory"
rm "$spill"

# --- a library is missing
mkdir "$work/bin"
cp "$(readlink -f "$CRYSTAL_BUILDDIR/scrystal")" "$work/bin/scrystal"
for stage in capture plan emulate; do
    said=$("$work/bin/scrystal" "$stage" --job "$job" -- true 2>&1)
    check "a library is missing in $stage" "$? $(sed 's/ in [^ ]* / in DIR /' <<<"$said")" \
        "2 crystal: $stage: libcrystal-nccl.so is neither in DIR nor beside scrystal; make install"
done

# --- too few files
for stage in capture plan emulate; do
    cp -a "$job" "$work/few"
    (
        ulimit -n 60
        run "$stage" "$work/few" --iterations "$(iterations "$stage")"
        echo "$code $said"
    ) >"$work/few.said"
    check "60 files in $stage" "$(cat "$work/few.said")" \
        "2 crystal: $stage: only 60 files can be open (ulimit -n), a stage needs 128 and a large job some thousands; allow more"
    rm -rf "$work/few"
done
(
    ulimit -S -n 40
    run emulate "$job" --iterations 3
    echo "$code $said"
) >"$work/soft.said"
check "40 files, which may be raised" "$(cat "$work/soft.said")" \
    "0 crystal: emulate: values of virtual ranks are stand-ins, so times hold and losses do not; --live=all --payload=all for real ones"

# --- what whoever starts us may leave: closed outputs, children whose ends are ignored
for left in 'exec "$@" <&- >&- 2>&-' 'trap "" CHLD; exec "$@"'; do
    timeout 120 bash -c "$left" - "$scrystal" emulate --job "$job" -- \
        "$program" "${options[@]}" --iterations 3 >/dev/null 2>&1
    check "emulate below $left" "$?" 0
done

# --- one job directory, two stages
"$scrystal" emulate --job "$job" -- "$program" "${options[@]}" --iterations 3 \
    --fail sleep --fail-rank 1 >"$work/first" 2>&1 &
first=$!
for ((i = 0; i < 1200; i++)); do
    [ -e "$job/coord" ] && break
    sleep 0.05
done
for stage in capture plan emulate; do
    run "$stage" "$job" --iterations 3
    check "$stage beside another" "$code ${said//process [0-9]* on */PROCESS}" \
        "70 crystal: $stage: coordinator: job directory $job is in use by PROCESS"
done
wait $first
check "the first goes on" "$?" 0

# --- a full disk
mkdir "$work/full"
if mount -t tmpfs -o size=6m,mode=700 tmpfs "$work/full" 2>/dev/null; then
    full=$work/full/job
    space="no space left in $full; free some or use another directory"
    cp -a "$job" "$full"
    for stage in capture plan emulate; do
        head -c 8M /dev/zero >"$work/full/fill" 2>/dev/null
        run "$stage" "$full" --iterations "$(iterations "$stage")"
        check "$stage in a full directory" "$code $said" "70 crystal: $stage: $space"
        rm "$work/full/fill"
    done
    # it fills while the ranks run
    for stage in plan emulate; do
        timeout 120 "$scrystal" "$stage" --job "$full" -- sh -c \
            "[ \$RANK != 0 ] || head -c 8M /dev/zero >$work/full/fill 2>/dev/null; exec \"\$@\"" \
            - "$program" "${options[@]}" --iterations "$(iterations "$stage")" >"$work/out" 2>&1
        # in emulate the code of the rank that could not make its record
        check "$stage: a directory that fills, exit code" "$?" \
            "$([ "$stage" = plan ] && echo 70 || echo 1)"
        check "$stage: a directory that fills, sentence" \
            "$(grep -c "^crystal: $stage: $space (.*)\$" "$work/out")" 1
        rm "$work/full/fill"
    done
else
    skip "a full directory" "needs root and tmpfs"
fi
echo "1..$count"
[ "$failed" = 0 ]
