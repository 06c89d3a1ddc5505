#!/bin/bash
# doc/tested.md: each row has one of the results, tests that exist, or a reason; each key of
# crystal.yaml has a row.
set -u
: "${CRYSTAL_SRCDIR:=$(cd "$(dirname "$0")/../.." && pwd)}"
: "${CRYSTAL_BUILDDIR:=$CRYSTAL_SRCDIR/build}"
page=$CRYSTAL_SRCDIR/doc/tested.md
. "$CRYSTAL_SRCDIR/tests/t/tap.sh"

# rows: what, result and tests of a row with tabs between; \| is no end of a cell
rows() { sed -n 's/^| \(.*\) |$/\1/p' "$1" | sed 's/\\|/\x01/g; s/ *| */\t/g; s/\x01/|/g' | grep -vE '^(-|style|option|configuration|key)'; }
wrong_results() { rows "$1" | awk -F'\t' 'NF < 2 || $2 !~ /^(pass|refused|overridden|differs: .|untested: .|untested under Slurm: .|as without us: .|kept for srun|told by scrystal doctor|same only)/ { print $1 }'; }
# Each `FILE` "NAME" whose file lacks the name, and each row but the untested ones without any.
wrong_tests() {
    local what result tests pair file name
    rows "$1" | while IFS=$'\t' read -r what result tests; do
        [ -n "$tests" ] || case $result in untested:*) continue ;; *) echo "$what: no test" ;; esac
        grep -oE '`[^`]+` "[^"]+"' <<<"$tests" | while IFS= read -r pair; do
            file=${pair#\`} file=${file%%\`*} name=${pair#*\"} name=${name%\"}
            case $file in */*) ;; *) file=tests/slurm/$file ;; esac
            grep -qF -- "$name" "$CRYSTAL_SRCDIR/$file" || echo "$what: $file: $name"
        done
        [ -z "$tests" ] || grep -q '` "' <<<"$tests" || echo "$what: no test"
    done
}
is "each row has a result" "$(wrong_results "$page")" ""
is "each row has tests that exist" "$(wrong_tests "$page")" ""
is "each key of crystal.yaml has a row" "$("$CRYSTAL_BUILDDIR/scrystal" doctor --keys |
    sed -n 's/^\([a-z][^ ]*\) (.*/\1/p' | sed 's/^stage\.{[^}]*}/stage.*/; s/\.NAME$//' | sort -u |
    while IFS= read -r key; do
        rows "$page" | cut -f1 | tr -d ' ' | tr , '\n' | grep -qxF -- "$key" || echo "$key"
    done)" ""

# --- the checks find what they are for
other=$(mktemp)
trap 'rm -f "$other"' EXIT
printf '| a | good | `launch.t` "tcp://" |\n| b | pass | `launch.t` "nothing of that name" |\n| c | pass | |\n| d | untested: so | |\n' >"$other"
is "a result that is none" "$(wrong_results "$other")" a
is "a test that is gone, and none" "$(wrong_tests "$other")" "b: tests/slurm/launch.t: nothing of that name
c: no test"
echo "1..$number"
