#!/bin/bash
# Parts of tests/gpu/check where there is no GPU: hostccl in NCCL's place. What NCCL makes
# of other communicators, and two real ranks that are not neighbours.
set -u
hostccl=$CRYSTAL_BUILDDIR/.libs/libcrystal-hostccl.so
cudart=$CRYSTAL_BUILDDIR/tests/fake/.libs/cudart.so
[ -e "$hostccl" ] && [ -e "$cudart" ] || { echo "1..0 # SKIP no shared libraries"; exit 0; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
number=0

part() { # NAME CHECKS
    local out code
    out=$(OUT='' LOGS=$tmp NCCL=$hostccl CUDART=$cudart \
        "$CRYSTAL_SRCDIR/tests/gpu/check" "$CRYSTAL_BUILDDIR" "$1" 2>&1)
    code=$?
    number=$((number + 1))
    [ $code -eq 0 ] && [ "$(grep -c '^ok' <<<"$out")" -eq "$2" ] &&
        echo "ok $number - $1: $2 checks" && return
    echo "not ok $number - $1"
    grep -v '^ok' <<<"$out" | head -30 | sed 's/^/# /'
}

part split 39
part apart 352
echo "1..$number"
