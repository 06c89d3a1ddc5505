#!/bin/bash
# What tests/gpu/check runs under PyTorch on a GPU, here over hostccl: one real rank or a
# node of them among virtual ones, rank 0 real and virtual, several groups, DDP; gpt.py
# unchanged.
. "$CRYSTAL_SRCDIR/tests/pytorch/tap.sh"
[ -e "$libs/libcrystal-hostccl.so" ] || { echo "1..0 # SKIP no libcrystal-hostccl.so"; exit 0; }

# alone WANT N RANKS [PROGRAM OPTION...]: so many checks, all right
alone() {
    want=$1
    shift
    TORCH_DEVICE=cpu NCCL_PROFILER_PLUGIN=$libs/libnccl-net-crystal.so on_hostccl \
        timeout -k 5 600 "$python" "$CRYSTAL_SRCDIR/tests/gpu/torch_rank.py" \
        "$CRYSTAL_BUILDDIR" "$@" >"$tmp/alone" 2>&1 &&
        [ "$(grep -c '^ok' "$tmp/alone")" -eq "$want" ] || { cat "$tmp/alone"; return 1; }
}

ok "rank 0 of 16" alone 51 16 0
ok "rank 5 of 16" alone 51 16 5
ok "ranks 0 and 1 of 16" alone 103 16 0-1
ok "ranks 4 to 7 of 16" alone 207 16 4-7
ok "gpt.py with TP in the node, PP and DP" alone 7 16 0-1 "$gpt" --steps 3 --tp 2 --pp 2
ok "gpt.py with TP and DP" alone 3 16 0 "$gpt" --steps 3 --tp 4
ok "gpt.py with PP and EP" alone 3 16 0 "$gpt" --steps 3 --pp 2 --ep 4
ok "timing the set-up" alone 3 16 0 "$CRYSTAL_SRCDIR/tests/gpu/setup.py" world
ok "timing Megatron's set-up" alone 3 8192 4097 "$CRYSTAL_SRCDIR/tests/gpu/setup.py" megatron
echo "1..$number"
