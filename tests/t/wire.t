#!/bin/bash
# The real wire between two hosts: the sandbox on one, an assistant on the other, whose
# clock is 1000 s ahead. Every result of every rank is compared with its closed form
# (tests/programs/exactprog.c), as many bytes as the messages have cross the link, and
# times follow it: with a link of 1 MB/s they take as long as the bytes take there. Then
# the link is cut, and the assistant dies.
# shellcheck source=tests/t/hosts.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/t/hosts.sh"

# 8 ranks, 2 a node: 133584 results, and 1000 more at each root, which rank 0 is 3 times.
exact_lines() {
    grep -qx "rank 0 exact 136584" "$work/out.0" &&
        grep -qx "rank 1 exact 133584" "$work/out.0"
}
crossed() { # INTERFACE-COUNTER: bytes since the link was made, at the sandbox's host
    in_ns "$a" cat "/sys/class/net/wire/statistics/$1"
}
kilobytes() { # sent|taken: what the assistant says
    sed -n "s/.* $1 \\([0-9]*\\)\\.\\([0-9]\\) MB.*/\\1\\200/p" "$work/out.1"
}
# Microseconds from the first call of rank 0 to the end of its last operation.
took_us() { # RUN
    "$scrystal" show "$job/runs/$1/0.run" |
        awk '$1 ~ /^[0-9]+$/ && $2 != "operations" {if (!first) first = $6; end = $6 + $8;
            if (end > last) last = end} END {print int(last - first)}'
}
says() { # FILE SENTENCE: once
    [ "$(grep -cE "^crystal: emulate: $2\$" "$work/$1")" = 1 ]
}
sentences() { # of both agents, but that of a rank that keeps others waiting
    cat "$work/out.0" "$work/out.1" | grep '^crystal: emulate: ' | grep -vc 'keeps others waiting'
}

prepare "--per-node 2" --logical-ranks=8 --ranks-per-node=2 --sandbox=0-1 --wire=real
before=$(crossed rx_bytes) before_tx=$(crossed tx_bytes)
emulate : --per-node 2
received=$(($(crossed rx_bytes) - before)) sent=$(($(crossed tx_bytes) - before_tx))
ok "both agents end well" [ "$codes" = "0 0" ]
ok "all ranks are exact" exact_lines
ok "the wire is said" grep -qx "  kind: real" "$job/runs/001/run.yaml"
ok "the transport is said" \
    grep -qx "  transport: host memory, TCP to 1 assistant node" "$job/runs/001/run.yaml"
ok "the report says it" \
    grep -q "^Wire: real, host memory, TCP to 1 assistant node; " "$job/report.txt"
echo "# the assistant has sent $(kilobytes sent) kB and taken $(kilobytes taken) kB, the" \
    "link has carried $((received / 1000)) kB and $((sent / 1000)) kB, in $(took_us 001) us"
ok "what the assistant sends crosses the link" \
    [ "$(kilobytes sent)" -ge 1000 -a $((received / 1000)) -ge "$(kilobytes sent)" ]
ok "what it takes crosses the link" \
    [ "$(kilobytes taken)" -ge 1000 -a $((sent / 1000)) -ge "$(kilobytes taken)" ]
ok "nothing is left" nothing_left

# 10 % for what a bucket lets through at once and for rounding
if in_ns "$b" tc qdisc add dev wire root tbf rate 8mbit burst 16kb latency 1s 2>/dev/null; then
    emulate : --per-node 2
    echo "# with 1 MB/s: $(took_us 002) us"
    ok "with a slow link: exact" exact_lines
    ok "with a slow link: both agents end well" [ "$codes" = "0 0" ]
    ok "it takes as long as the bytes take" \
        [ "$(took_us 002)" -ge $(($(kilobytes sent) * 900)) ]
    ok "the fast link took less" [ "$(took_us 001)" -lt "$(took_us 002)" ]
    in_ns "$b" tc qdisc del dev wire root
    in_ns "$a" tc qdisc add dev wire root tbf rate 8mbit burst 16kb latency 1s
    emulate : --per-node 2
    echo "# with 1 MB/s the other way: $(took_us 003) us"
    ok "slow the other way: exact" exact_lines
    ok "slow the other way: it takes as long" \
        [ "$(took_us 003)" -ge $(($(kilobytes taken) * 900)) ]
    in_ns "$a" tc qdisc del dev wire root
else
    echo "# no token bucket in this kernel"
    cp -r "$job/runs/001" "$job/runs/002" && cp -r "$job/runs/001" "$job/runs/003"
fi

cut_wire() {
    has_begun 0 1
    cut=$SECONDS
    in_ns "$b" ip link set wire down
}
emulate cut_wire --per-node 2 --fail hang --fail-rank 1
echo "# both agents have ended $((ended - cut)) s after the link was cut"
ok "a cut link ends both agents" [ "$codes" = "70 70" ]
ok "within a minute" [ $((ended - cut)) -lt 60 ]
ok "a cut link is told once by the sandbox's" \
    says out.0 "the connection to the agent of node 1 is cut; see log/ in the job directory"
ok "nothing is left behind" nothing_left
in_ns "$b" ip link set wire up

kill_assistant() {
    local unshare agent
    has_begun 0 1
    cut=$SECONDS
    unshare=$(ps -o pid= --ppid "$two")
    agent=$(ps -o pid= --ppid "$((unshare))")
    kill -9 "$((agent))"
}
emulate kill_assistant --per-node 2 --fail hang --fail-rank 1
echo "# the sandbox's agent has ended $((ended - cut)) s after the assistant has died"
ok "a dead assistant ends the sandbox's agent" [ "${codes% *}" = 70 ]
ok "soon" [ $((ended - cut)) -lt 60 ]
ok "a dead assistant: one sentence" [ "$(sentences)" = 1 ]
ok "a dead assistant: which" \
    says out.0 "the agent of node 1 \\(pid [0-9]+\\) died during emulate; see log/ in the job directory"
ok "nothing remains" nothing_left
done_hosts
