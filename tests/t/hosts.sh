# For tests of two hosts: network namespaces "$a" and "$b" with names (alpha, beta) and
# addresses of their own and a link between them ("wire" in each), and the coordinator on
# the first. Sourced. The test sets what it wants in "$work" and ends with done_hosts.
# shellcheck shell=bash
set -u
: "${CRYSTAL_BUILDDIR:=.}"
scrystal=$CRYSTAL_BUILDDIR/scrystal
exact=$CRYSTAL_BUILDDIR/tests/programs/exactprog
a=crystal-$$-a b=crystal-$$-b
number=0 failed=0
work=$(mktemp -d /tmp/crystal-hosts.XXXXXX) || exit 1
job=$work/job

cleanup() {
    ip netns del "$a" 2>/dev/null
    ip netns del "$b" 2>/dev/null
    rm -rf "$work" "/etc/netns/$a" "/etc/netns/$b"
    rmdir /etc/netns 2>/dev/null # where nobody else has anything there
}
skip() {
    echo "ok 1 - hosts # SKIP $1"
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

# Capture, graph and plan by one pass, of 3 iterations; layout's further options.
prepare() { # PROGRAM-OPTIONS LAYOUT-OPTION...
    local options=$1
    shift
    printf 'plan:\n  passes: 1\n' >"$work/one-pass.yaml"
    # shellcheck disable=SC2086 # words
    if {
        "$scrystal" layout --config="$work/one-pass.yaml" --live=all --iterations=3 \
            --job-dir="$job" --write "$@" >/dev/null &&
            "$scrystal" capture --job "$job" -- "$exact" --iterations 5 $options &&
            "$scrystal" graph --job "$job" &&
            "$scrystal" plan --job "$job" -- "$exact" --iterations 5 $options
    } >"$work/out.prepare" 2>&1; then
        echo "ok $((++number)) - capture, graph and plan"
    else
        sed 's/^/# /' "$work/out.prepare"
        echo "not ok 1 - capture, graph and plan"
        echo "1..1"
        exit 1
    fi
}
# Coordinator and two agents, each on its host; their exit codes are in $codes.
emulate() { # DURING PROGRAM-OPTION...
    local during=$1 i
    shift
    rm -rf "$job/coord" "$work/begun"
    mkdir "$work/begun"
    export EXACT_BEGUN=$work/begun
    in_ns "$a" "$scrystal" coord --job "$job" --host=alpha --allow=alpha,beta \
        >"$work/out.coord" 2>&1 &
    coord=$!
    for ((i = 0; i < 6000; i++)); do
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
rank_processes() {
    grep -lsz "^CRYSTAL_JOB_DIR=$job\$" /proc/[0-9]*/environ
}
nothing_left() {
    for _ in $(seq 600); do
        [ -z "$(rank_processes)" ] && return 0
        sleep 0.1
    done
    return 1
}
# Waits until these ranks are in iteration 1 of an emulate: then all connections are
# there, and with --fail hang who does not hang waits for who does.
has_begun() { # RANK...
    local rank
    for rank; do
        for _ in $(seq 6000); do
            [ -e "$work/begun/$rank" ] && break
            sleep 0.02
        done
    done
}
done_hosts() {
    echo "1..$number"
    exit "$failed"
}
