#!/bin/bash
# A test that is cut off, here unit/plan_nodes by SIGKILL, leaves no process: its shells end
# the stages that they have started, and those their ranks.
set -u
. "$CRYSTAL_SRCDIR/tests/t/tap.sh"
mark=CRYSTAL_CUT_OFF=$$

marked() { # TEXT: processes of the test whose command line has TEXT
    local environ
    for environ in $(grep -lszxF "$mark" /proc/[0-9]*/environ); do
        tr '\0' ' ' <"${environ%environ}cmdline" | grep -F -- "$1"
    done 2>/dev/null
}
until_is() { # SECONDS COMMAND...: as soon as the command is true
    local i tries=$(($1 * 10))
    shift
    for ((i = 0; i < tries; i++)); do
        "$@" && return 0
        sleep 0.1
    done
    return 1
}
is_on() { [ -n "$(marked 'job.faults --stage plan')" ]; }
is_gone() { [ -z "$(marked '')" ]; }

env "$mark" "$CRYSTAL_BUILDDIR/tests/unit/plan_nodes" >/dev/null 2>&1 &
test=$!
until_is 120 is_on
result "it has begun stages" $(($? == 0)) "$(marked '')"
jobs=$(marked '--stage plan' | grep -oE '/tmp/crystal-plan-nodes\.[A-Za-z0-9]+' | head -n 1)
kill -9 "$test"
wait "$test" 2>/dev/null
until_is 60 is_gone
result "nothing is left of it" $(($? == 0)) "$(marked '')"
# the last that its cases do is to plan without it
result "they have not gone on" "$([ -e "$jobs/job.faults/job.graph" ] && echo 1 || echo 0)" \
    "$(ls "$jobs"/job.faults)"
[ -z "$jobs" ] || rm -rf "$jobs"
echo "1..$number"
