#!/bin/bash
# Two sandbox nodes as two hosts, with clocks that are 1000 s apart. Every result of every
# rank is compared with its closed form (tests/programs/exactprog.c). Then the wire is cut.
# shellcheck source=tests/t/hosts.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/t/hosts.sh"

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

prepare "" --logical-ranks=16 --ranks-per-node=4 --sandbox=0-3,12-15
emulate :
ok "both agents end well" [ "$codes" = "0 0" ]
ok "the first host's ranks are exact" exact_lines "$work/out.0" 0 1 2 3
ok "the other host's ranks are exact" exact_lines "$work/out.1" 12 13 14 15
ok "records are in one clock" one_clock
ok "no failure" [ "$(grep -h '^failure' "$job"/runs/001/run*.yaml | sort -u)" = 'failure: ""' ]
ok "nothing is left" nothing_left

cut_wire() {
    has_begun 0 1 2 3 12 13 14 15
    cut=$SECONDS
    in_ns "$b" ip link set wire down
}
emulate cut_wire --fail hang --fail-rank 1
took=$((ended - cut))
echo "# both agents have ended $took s after the wire was cut"
ok "a cut wire ends the first host's agent" [ "${codes% *}" = 70 ]
ok "a cut wire ends the other host's agent" [ "${codes#* }" = 70 ]
ok "within a minute" [ "$took" -lt 60 ]
ok "the first host says it once" \
    [ "$(grep -c '^crystal: emulate: the connection to the agent of node 1 is cut; see log/ in the job directory$' "$work/out.0")" = 1 ]
ok "nothing is left behind" nothing_left
done_hosts
