#!/bin/bash
# A node that users share: another user's process gets at nothing of a job that runs, and
# is told of in one line.
# shellcheck source=tests/slurm/lib.sh
. "${CRYSTAL_SRCDIR:-$(dirname "$0")/../..}/tests/slurm/lib.sh"
command -v python3 >/dev/null || skip_all "no python3"
cluster_begin 1
crystal=(--crystal-logical-ranks=8 --crystal-ranks-per-node=2 --crystal-live=all
    --crystal-iterations=2)
rank=$CRYSTAL_BUILDDIR/tests/slurm/rank
shm() { find /dev/shm -maxdepth 1 -name "crystal-$(id -u)-*" -newer "$work/start" -printf '%m\n' | sort -u; }
{
    wait_until 300 test -e waits
    python3 "$CRYSTAL_SRCDIR/tests/slurm/stranger.py" crystal.shared/token crystal.shared/layout.yaml \
        crystal.shared/coord crystal.shared/ranks/0.trace >answers 2>&1
    shm >modes
    : >seen
} &
# The ranks wait where all of the job is up.
run srun "${crystal[@]}" -J shared "$rank" sh -c ': >waits; until [ -e seen ]; do sleep 0.05; done'
wait $!
is "the job goes on" "$code" 0
is "files" "$(grep '^file' answers)" "file: refused: 4"
is "shared memory" "$(grep '^shared memory' answers | cut -d: -f1,2)" "shared memory: refused"
is "sockets: no answer" "$(grep '^tcp' answers | cut -d: -f1,2)" "tcp: closed"
is "the node's directory in shared memory" "$(cat modes)" 700
is "the job directory" "$(stat -c %a crystal.shared)" 700
is "files that others may read or write" "$(find crystal.shared -perm /077 ! -type l)" ""
matches "one line" "$(grep -c 'refused a connection by a process of user 65534 on this machine; only the job' <<<"$err")" '^[1-4]$'
sed 's/^/# /' answers
nothing_left "nothing is left"
done_testing
