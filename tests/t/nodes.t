#!/bin/bash
# Two sandbox nodes as two hosts: network namespaces with names and addresses of their own
# and a wire between them, and clocks that are 1000 s apart. Every result of every rank is
# compared with its closed form (tests/programs/exactprog.c). Then the wire is cut.
set -u
: "${CRYSTAL_BUILDDIR:=.}"
scrystal=$CRYSTAL_BUILDDIR/scrystal
exact=$CRYSTAL_BUILDDIR/tests/programs/exactprog
a=crystal-$$-a b=crystal-$$-b
number=0 failed=0
work=$(mktemp -d /tmp/crystal-nodes.XXXXXX) || exit 1
job=$work/job

cleanup() {
    ip netns del "$a" 2>/dev/null
    ip netns del "$b" 2>/dev/null
    rm -rf "$work" "/etc/netns/$a" "/etc/netns/$b"
    rmdir /etc/netns 2>/dev/null # where nobody else has anything there
}
skip() {
    echo "ok 1 - nodes # SKIP $1"
    echo "1..1"
    exit 0
}
ok() { # NAME COMMAND...
    local name=$1
    shift
    number=$((number + 1))
    if "$@"; then
        echo "ok $number - $name"
    else
        echo "not ok $number - $name"
        failed=1
        sed 's/^/# /' "$work"/out.* 2>/dev/null
    fi
}
in_ns() { ip netns exec "$@"; }

trap cleanup EXIT
[ "$(id -u)" = 0 ] || skip "needs root"
ip netns add "$a" 2>/dev/null && ip netns add "$b" 2>/dev/null || skip "no network namespaces"
unshare -T --fork --monotonic 1000 true 2>/dev/null || skip "no time namespaces"
in_ns "$a" true || skip "no way into a network namespace"
ip link add "cr$$a" type veth peer name "cr$$b" || skip "no veth"
ip link set "cr$$a" netns "$a" name wire && ip link set "cr$$b" netns "$b" name wire
for host in "$a 1" "$b 2"; do
    # shellcheck disable=SC2086 # two words
    set -- $host
    in_ns "$1" ip link set lo up
    in_ns "$1" ip addr add "10.77.0.$2/24" dev wire
    in_ns "$1" ip link set wire up
    mkdir -p "/etc/netns/$1"
    printf '127.0.0.1 localhost\n10.77.0.1 alpha\n10.77.0.2 beta\n' >"/etc/netns/$1/hosts"
done

prepare() {
    printf 'plan:\n  passes: 1\n' >"$work/one-pass.yaml"
    "$scrystal" layout --config="$work/one-pass.yaml" --logical-ranks=16 \
        --ranks-per-node=4 --live=all --sandbox=0-3,12-15 --iterations=3 \
        --job-dir="$job" --write >/dev/null &&
        "$scrystal" capture --job "$job" -- "$exact" --iterations 5 &&
        "$scrystal" graph --job "$job" &&
        "$scrystal" plan --job "$job" -- "$exact" --iterations 5
}
# Coordinator and agents, each on its host; their exit codes are in $codes.
emulate() { # DURING PROGRAM-OPTION...
    local during=$1 coord one two i
    shift
    rm -f "$job/coord"
    in_ns "$a" "$scrystal" coord --job "$job" --host=alpha --allow=alpha,beta \
        >"$work/out.coord" 2>&1 &
    coord=$!
    for ((i = 0; i < 500; i++)); do
        [ -e "$job/coord" ] && break
        sleep 0.02
    done
    in_ns "$a" "$scrystal" agent --job "$job" --stage emulate --node 0 --nodes 2 -- \
        "$exact" "$@" >"$work/out.0" 2>&1 &
    one=$!
    in_ns "$b" unshare -T --fork --kill-child --monotonic 1000 "$scrystal" agent \
        --job "$job" --stage emulate --node 1 --nodes 2 -- \
        "$exact" "$@" >"$work/out.1" 2>&1 &
    two=$!
    $during
    wait $one; codes=$?
    wait $two; codes="$codes $?"
    ended=$SECONDS
    in_ns "$a" "$scrystal" coord --finish --job "$job" >/dev/null 2>&1
    wait $coord
}
exact_lines() { # FILE RANK...
    local file=$1 rank
    shift
    for rank; do
        grep -qx "rank $rank exact $((rank % 5 ? 196602 : 199602))" "$file" || return 1
    done
}
called() { # RANK: when it called its first operation, in ms
    "$scrystal" show "$job/runs/001/$1.run" | awk '$2 == "allreduce" {print int($6 / 1000); exit}'
}
one_clock() { # of both hosts' ranks, within 5 s
    local first last
    first=$(called 0) last=$(called 12)
    [ -n "$first" ] && [ -n "$last" ] && [ $((last - first)) -lt 5000 ] &&
        [ $((first - last)) -lt 5000 ]
}
rank_processes() {
    grep -lsz "^CRYSTAL_JOB_DIR=$job\$" /proc/[0-9]*/environ
}
nothing_left() {
    for _ in $(seq 100); do
        [ -z "$(rank_processes)" ] && return 0
        sleep 0.1
    done
    return 1
}

ok "capture, graph and plan" prepare >"$work/out.prepare" 2>&1
[ "$failed" = 0 ] || { sed 's/^/# /' "$work/out.prepare"; echo "not ok 1 - prepare"; echo "1..1"; exit 1; }
echo "ok 1 - capture, graph and plan"
emulate :
ok "both agents end well" [ "$codes" = "0 0" ]
ok "the first host's ranks are exact" exact_lines "$work/out.0" 0 1 2 3
ok "the other host's ranks are exact" exact_lines "$work/out.1" 12 13 14 15
ok "records are in one clock" one_clock
ok "no failure" [ "$(grep -h '^failure' "$job"/runs/001/run*.yaml | sort -u)" = 'failure: ""' ]
ok "nothing is left" nothing_left

cut_wire() {
    for _ in $(seq 500); do
        [ -e "$job/runs/002/12.run" ] && break
        sleep 0.02
    done
    sleep 1
    cut=$SECONDS
    in_ns "$b" ip link set wire down
}
emulate cut_wire --fail hang --fail-rank 1
took=$((ended - cut))
echo "# both agents have ended $took s after the wire was cut"
ok "a cut wire ends the first host's agent" [ "${codes% *}" = 70 ]
ok "a cut wire ends the other host's agent" [ "${codes#* }" = 70 ]
ok "within seconds" [ "$took" -lt 20 ]
ok "the first host says it once" \
    [ "$(grep -c '^crystal: emulate: the connection to the agent of node 1 is cut; see log/ in the job directory$' "$work/out.0")" = 1 ]
ok "nothing is left behind" nothing_left
echo "1..$number"
exit "$failed"
