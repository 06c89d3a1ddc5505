#!/bin/bash
# What our shared libraries export, and the glibc they need.
set -u
check=$CRYSTAL_SRCDIR/tests/tool/check-exports
libs=$CRYSTAL_BUILDDIR/.libs
. "$CRYSTAL_SRCDIR/tests/t/tap.sh"

library() { # library FILE REGEX SYMBOL: passes, and does export SYMBOL
    local out code
    out=$("$check" "$libs/$1" "$2" 2>&1)
    code=$?
    if [ $code -eq 0 ] && ! ${NM:-nm} -D --defined-only "$libs/$1" | grep -qw "$3"; then
        out="$1 does not export $3" code=1
    fi
    result "$1" $((code == 0)) "$out"
}

fails() { # fails NAME TEXT ARGUMENT...: the checker ends with 1 and prints TEXT
    local name=$1 text=$2 out code
    shift 2
    out=$("$check" "$@" 2>&1)
    code=$?
    result "$name" $((code == 1 && $(grep -cxF -e "$text" <<<"$out") == 1)) \
        "code $code, want 1 and '$text': $out"
}

nccl='^p?nccl[A-Z][A-Za-z0-9]*$'
cuda='^(__)?cuda[A-Z][A-Za-z0-9]*$'
stream='^crystal_((stream|event|iteration)_[a-z_]*|call_site)$'
net='^(ncclNetPlugin_v(8|10|11)|ncclProfiler_v5|ncclTunerPlugin_v5|crystal_net_wait|crystal_net_wake|crystal_net_more)$'
bypass='^ncclNetPlugin_v(8|10|11)$|^nvshmem(x|id)_hostlib_init_attr$'
library libcrystal-nccl.so "$nccl|$stream|$cuda|$bypass|^InitializeInjectionNvtx2$" ncclAllReduce
library libcrystal-hostccl.so "$nccl|$stream" ncclAllReduce
library libnccl-net-crystal.so "$net" ncclNetPlugin_v11
library libcrystal-graph.so \
    '^crystal_(graph_[a-z_]*|profile_(open|close|head|hash|rep|ops|iteration)|origin_name|error_text)$' \
    crystal_graph_open
if [ -e "$libs/crystal.so" ]; then
    library crystal.so '^(slurm_spank_[a-z_]*|plugin_(name|type|version))$' \
        slurm_spank_init
else
    number=$((number + 1))
    echo "ok $number - crystal.so # SKIP built without Slurm"
fi

# The checker tells bad input from good.
net=$libs/libnccl-net-crystal.so
fails "another export is named" "libnccl-net-crystal.so exports ncclProfiler_v5" \
    "$net" '^(ncclNetPlugin_v(8|10|11)|ncclTunerPlugin_v5|crystal_net_wait|crystal_net_wake)$'
fails "a newer glibc is named" "libnccl-net-crystal.so needs __errno_location of glibc 2.2.5" \
    -g 2.2 "$net" .
out=$("$check" "$CRYSTAL_SRCDIR/README.md" . 2>&1)
result "what is no library is an error" $(($? == 2)) "$out"
out=$("$check" "$net" 2>&1)
result "no regex is an error" $(($? == 2)) "$out"
echo "1..$number"
