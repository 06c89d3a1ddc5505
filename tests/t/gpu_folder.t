#!/bin/bash
# The folder that is carried to a GPU machine is whole, and the plugins in it load as
# NCCL loads them, in the environment of tests/gpu/check and with a node's board.
set -u
folder=$(mktemp -d)/gpu-folder
trap 'rm -rf "$(dirname "$folder")"' EXIT
. "$CRYSTAL_SRCDIR/tests/t/tap.sh"

out=$("$CRYSTAL_SRCDIR/tests/gpu/folder" "$CRYSTAL_SRCDIR" "$CRYSTAL_BUILDDIR" "$folder" \
    2>&1)
result "the folder is made" $(($? == 0)) "$out"
out=$(cd "$folder" && find . -name '.?*')
result "no name begins with a dot" $((${#out} == 0)) "$out"
top=$(git -C "$CRYSTAL_SRCDIR" rev-parse --show-toplevel 2>/dev/null)
if [ "$top" -ef "$CRYSTAL_SRCDIR" ]; then # not so in a tarball unpacked inside a checkout
    out=$(cd "$folder" && find . -type f | sed 's,^\./,gpu-folder/,' |
        git -C "$CRYSTAL_SRCDIR" check-ignore --stdin --no-index)
    result "git ignores none of it" $((${#out} == 0)) "$out"
else
    result "git ignores none of it: this is no checkout" 1 ""
fi
# Libraries other than glibc's must be in it: the GPU machine may have none of them.
out=$(for file in "$folder"/lib/*.so "$folder/tests/programs/nodeserver" \
    "$folder"/tests/gpu/*; do
    ldd "$file" 2>/dev/null | awk '$2 == "=>" { print $1 }'
done | sort -u | grep -vE '^lib(c|m|dl|rt|pthread|gcc_s|asan|ubsan|tsan|stdc\+\+)\.so' |
    while read -r name; do [ -e "$folder/lib/$name" ] || echo "$name"; done)
result "no library is missing" $((${#out} == 0)) "$out"
out=$("$folder/tests/gpu/check" "$folder" plugin 2>&1)
code=$?
result "the plugins load" \
    $((code == 0 && $(grep -c '^ok .*NET getProperties' <<<"$out") == 2 && \
    $(grep -c '^ok .*PROFILER init' <<<"$out") == 1)) "code $code: $out"
out=$(NCCL_NET_PLUGIN=$folder/lib/libnccl-net-crystal.so \
    NCCL_PROFILER_PLUGIN=$folder/lib/libnccl-net-crystal.so \
    NCCL_NET_PLUGIN_REF_COUNT=0 "$folder/tests/gpu/load" 2 0 2>&1)
code=$?
result "without NCCL_NET_PLUGIN_REF_COUNT there is one communicator only" \
    $((code == 1 && $(grep -c '^not ok .*second communicator' <<<"$out") == 1)) \
    "code $code: $out"
# One chunk a rank: 2 steps of 1 us and 5 us. Two slices of 1 MiB a chunk: the NIC sends
# 6 times 2 slices of 1000 us, and the last one arrives 5 us later; on two channels the
# same 12 MiB are in slices of 512 KiB, of which the NIC sends one at a time.
out=$(echo 2000 13 | "$folder/tests/gpu/ring_time" 2 1 1e9 5000 2>&1
    echo 8388608 12005 | "$folder/tests/gpu/ring_time" 4 1 1048576000 5000 2>&1
    echo 8388608 12005 | "$folder/tests/gpu/ring_time" 4 2 1048576000 5000 2>&1)
result "the arithmetic of a paced ring" \
    $((1 - $(cmp -s - <(echo "$out") <<<"2000 8.33 1.0 12.0
8388608 0.00 0.0 12005.0
8388608 0.00 0.0 12005.0"; echo $?))) "$out"
rm "$folder/lib/libnccl-net-crystal.so"
out=$("$folder/tests/gpu/check" "$folder" plugin 2>&1)
code=$?
result "a folder without the plugin is told" \
    $((code == 1 && $(grep -c "^Bail out! no libnccl-net-crystal.so in" <<<"$out") == 1)) \
    "code $code: $out"
echo "1..$number"
