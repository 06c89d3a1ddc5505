# Shared by the Slurm tests: a private cluster per test script, TAP output, checks.
#
#   . "$CRYSTAL_SRCDIR/tests/slurm/lib.sh"
#   cluster_begin 4
#   run srun hostname; is "exit code" "$code" 0; has "output" "$out" "$(uname -n)"
#   done_testing
#
# run: runs a command with at most 600 s; $code, $out (standard output), $err (standard
# error). CRYSTAL_CLUSTER_OPTIONS is passed to `cluster start`; CRYSTAL_SLURM_PREFIX names
# another Slurm than the installed one (see `cluster`), for a build against it. Every wait is for a
# condition and has a generous limit: the machine may be slow and busy.
set -u
: "${CRYSTAL_SRCDIR:=$(cd "$(dirname "$0")/../.." && pwd)}"
: "${CRYSTAL_BUILDDIR:=$CRYSTAL_SRCDIR/build}"
export CRYSTAL_SRCDIR CRYSTAL_BUILDDIR
cluster=$CRYSTAL_SRCDIR/contrib/cluster/cluster
test_count=0 test_failed=0 work='' own_pts=''

pass() { test_count=$((test_count + 1)); echo "ok $test_count - $1"; }
fail() { # NAME DETAIL...
    test_count=$((test_count + 1)) test_failed=$((test_failed + 1))
    echo "not ok $test_count - $1"
    shift
    printf '%s\n' "$@" | sed 's/^/#   /'
    # why is often there: what the last command said
    tail -n 8 "$work/err" 2>/dev/null | sed 's/^/#   said: /'
}
is() { # NAME GOT WANT
    if [ "$2" = "$3" ]; then pass "$1"; else fail "$1" "got:  $2" "want: $3"; fi
}
has() { # NAME TEXT PART
    case $2 in *"$3"*) pass "$1" ;; *) fail "$1" "got:  $2" "want: ...$3..." ;; esac
}
hasnt() { # NAME TEXT PART
    case $2 in *"$3"*) fail "$1" "got:  $2" "want: not ...$3..." ;; *) pass "$1" ;; esac
}
matches() { # NAME TEXT REGEX
    if grep -qE -- "$3" <<<"$2"; then pass "$1"; else fail "$1" "got:  $2" "want: /$3/"; fi
}
done_testing() {
    echo "1..$test_count"
    [ "$test_failed" -eq 0 ]
    exit
}

run() {
    timeout --kill-after=5 "${limit:-600}" "$@" >"$work/out" 2>"$work/err"
    code=$?
    out=$(cat "$work/out") err=$(cat "$work/err")
}

# sbatch and wait for the job (sbatch --wait asks too seldom): $code is the script's exit
# code, or sbatch's where it refused.
submit() {
    run sbatch --parsable "$@"
    [ "$code" -eq 0 ] || return 0
    wait_until "${limit:-600}" job_is_over "$out" || fail "job $out did not end" "$(squeue)"
    code=$(job_field ExitCode)
    code=${code%:*}
}

# wait_until SECONDS COMMAND...: true as soon as the command is.
wait_until() {
    local i tries=$(($1 * 20))
    shift
    for ((i = 0; i < tries; i++)); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.05
    done
    return 1
}

cluster_end() {
    local rest=$?
    # A failed test shows what Slurm has to say.
    if [ "$test_failed" -gt 0 ] && [ -d "$work/cluster/log" ]; then
        grep -hE 'error' "$work"/cluster/log/*.log | grep -v pmix | tail -n 20 | sed 's/^/# /'
    fi
    "$cluster" stop "$work/cluster" >&2
    [ -z "$own_pts" ] || umount /dev/pts
    rm -rf "$work"
    exit "$rest"
}

skip_all() { # REASON
    echo "ok 1 - $(basename "$0" .t) # SKIP $1"
    echo "1..1"
    exit 0
}

# Sets venv, the virtual environment that has PyTorch.
need_pytorch() {
    venv=${CRYSTAL_PYTHON:-${XDG_CACHE_HOME:-$HOME/.cache}/crystal/venv/bin/python}
    venv=${venv%/bin/python}
    [ -x "$venv/bin/python" ] || skip_all "no $venv; run contrib/pytorch/install"
}

# What a cluster with --accounting runs.
need_accounting() {
    local program
    PATH=$PATH:/usr/sbin
    for program in mariadbd mariadb-install-db slurmdbd; do
        command -v $program >/dev/null ||
            skip_all "no $program; install mariadb-server slurmdbd slurm-wlm-mysql-plugin"
    done
}

cluster_begin() { # NODES [OPTION...]
    [ "$(id -u)" = 0 ] || skip_all "needs root"
    [ -e "$CRYSTAL_BUILDDIR/.libs/crystal.so" ] ||
        skip_all "crystal.so was not built; install libslurm-dev"
    work=$(mktemp -d /tmp/crystal-slurm.XXXXXX)
    chmod 755 "$work"
    trap cluster_end EXIT
    trap 'exit 1' INT TERM
    # A job of our caller must not look like one of the cluster's.
    local name
    for name in $(compgen -e | grep -E '^(SLURM|SRUN|SALLOC|SBATCH|CRYSTAL_(SALLOC|STEPS|REEXEC))' || true); do
        unset "$name"
    done
    if [ -n "${CRYSTAL_SLURM_PREFIX:-}" ]; then
        PATH=$CRYSTAL_SLURM_PREFIX/bin:$PATH
        set -- "$@" --prefix "$CRYSTAL_SLURM_PREFIX"
    fi
    # shellcheck disable=SC2086 # a list of words
    "$cluster" start "$work/cluster" "$@" --build "$CRYSTAL_BUILDDIR" \
        ${CRYSTAL_CLUSTER_OPTIONS:-} >"$work/start" 2>&1 || {
        sed 's/^/# /' "$work/start"
        echo "Bail out! the private cluster did not start"
        exit 1
    }
    # One pass of plan will do: nobody here looks at what it measures (stages.t has the
    # default).
    printf 'plan: {passes: 1}\n' >"$work/cluster/crystal.yaml"
    export SLURM_CONF=$work/cluster/slurm.conf
    log=$work/cluster/log/slurmctld.log
    mkdir -p "$work/cwd"
    cd "$work/cwd" || exit 1
}

# One job's field as it stands, for example state_field 12 JobState.
state_field() { # JOBID FIELD
    scontrol --oneliner show job "$1" | tr ' ' '\n' | sed -n "s|^$2=||p" | head -n 1
}
# The number of the youngest job.
last_job() {
    scontrol --oneliner show job | sed -n 's/^JobId=\([0-9]*\).*/\1/p' | sort -n | tail -n 1
}
# A job that completes still counts: some of its fields change until it is over.
job_is_over() { # JOBID
    local state
    state=$(state_field "$1" JobState)
    case $state in '' | PENDING | CONFIGURING | RUNNING | SUSPENDED | COMPLETING) return 1 ;; esac
}
# The last job's final field, for example job_field ExitCode.
job_field() {
    local id
    id=$(last_job)
    wait_until 300 job_is_over "$id" || echo "job $id is not over:"
    state_field "$id" "$1"
}
# Jobs, steps and processes of this cluster's Slurm that are neither daemons nor ours.
what_is_left() {
    local environ
    squeue -h || echo "squeue failed"
    squeue -h -s || echo "squeue -s failed"
    for environ in $(grep -lszxF "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ 2>/dev/null); do
        tr '\0' ' ' 2>/dev/null <"${environ%environ}cmdline" |
            grep -E '(srun|salloc|scrystal|sleep) |slurmstepd: ' |
            grep -v '^sleep 0\.05 ' # wait_until's own
    done
    return 0
}
is_nothing_left() { [ -z "$(what_is_left 2>/dev/null)" ]; }
# Whatever the job has started ends with it.
nothing_left() { # NAME
    wait_until 300 is_nothing_left
    is "$1" "$(what_is_left 2>&1)" ""
}
# A port of this machine that nobody listens on, outside of what the kernel and
# contrib/cluster hand out.
free_port() {
    local port
    for ((port = 31200 + RANDOM % 1500; ; port = 31200 + RANDOM % 1500)); do
        grep -qi ":$(printf %04x "$port") " /proc/net/tcp /proc/net/tcp6 2>/dev/null || break
    done
    echo "$port"
}
# Names of the steps that slurmctld's log has seen created, in order.
step_names() { sed -n 's/.* srun_pid=[0-9]* name=\([^ ]*\) .*/\1/p' "$log"; }

# A bare chroot has no pseudo-terminals; they are mounted until the test ends.
has_terminals() {
    script -qec true /dev/null >/dev/null 2>&1 </dev/null && return 0
    mkdir -p /dev/pts && mount -t devpts -o ptmxmode=0666 devpts /dev/pts && own_pts=1
}
# On a terminal of its own: keys are read from standard input. $code, $out.
run_on_terminal() {
    local line
    printf -v line '%q ' "$@"
    has_terminals
    : >"$work/err"
    timeout --kill-after=5 "${limit:-600}" script -qec "$line" /dev/null >"$work/out" 2>&1
    code=$?
    out=$(cat "$work/out")
}
