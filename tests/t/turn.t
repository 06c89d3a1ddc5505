#!/bin/bash
# Which tests run beside each other (tests/turn).
set -u
work=$(mktemp -d /tmp/crystal-turn.XXXXXX) || exit 1
trap 'rm -rf "$work"' EXIT
. "$CRYSTAL_SRCDIR/tests/t/tap.sh"
export CRYSTAL_TEST_LOCK=$work/lock CRYSTAL_TIMED_TESTS="tests/unit/one t/clock"
turn=$CRYSTAL_SRCDIR/tests/turn
cd "$work" || exit 1
mkdir -p tests/unit t

# A test that leaves a file MINE and looks for FILE as long as `tries` lets it.
cat >t/looks <<'SH'
#!/bin/sh
: >"$2"
for i in $(seq "$tries"); do
    [ -e "$1" ] && { echo "$0 has met $1"; exit 3; }
    sleep 0.05
done
echo "$0 was alone"
SH
chmod +x t/looks
cp t/looks t/clock
cp t/looks tests/unit/one
cp t/looks t/one

both() { # TRIES FIRST SECOND: run them at once; what they say, sorted
    rm -f a b
    export tries=$1
    "$turn" env "$2" b a >out.1 &
    "$turn" "$3" a b >out.2
    echo "codes $?" >codes
    wait $!
    echo "and $?" >>codes
    cat out.1 out.2 | sort
}

# t/one is not tests/unit/one, which measures
is "tests run together" "$(both 600 ./t/looks ./t/one)" "./t/looks has met b
./t/one has met a"
is "their codes" "$(paste -sd ' ' codes)" "codes 3 and 3"
for timed in ./t/clock "$work/tests/unit/one"; do
    # whoever comes second finds what the first has left
    is "one that measures runs alone: ${timed##*/}" \
        "$(both 20 ./t/looks "$timed" | grep -c 'was alone')" 1
done

# shellcheck disable=SC2016 # the test's own
"$turn" sh -c 'sleep 300 & echo $! >left'
is "what a test leaves running holds nobody" \
    "$(tries=1 timeout 30 "$turn" ./t/clock /nowhere mine >/dev/null && echo ran)" ran
kill "$(cat left)"
echo "1..$number"
