#!/bin/bash
# Every operation of torch.distributed over hostccl, on 2 and 4 real ranks, beside
# PyTorch's own gloo; and a training run that has gloo's losses.
. "$CRYSTAL_SRCDIR/tests/pytorch/tap.sh"
for lib in hostccl.so; do
    [ -e "$libs/libcrystal-$lib" ] || { echo "1..0 # SKIP no $libs/libcrystal-$lib"; exit 0; }
done

# ops WHERE RANKS COMMAND...: shows ops.py's tests as tests of this script.
ops() {
    where=$1 ranks=$2
    shift 2
    "$@" torchrun "$ranks" "$CRYSTAL_SRCDIR/tests/pytorch/ops.py" >"$tmp/ops" 2>"$tmp/err"
    code=$?
    count=$(sed -n 's/^1\.\.//p' "$tmp/ops")
    while IFS= read -r line; do
        case $line in
        "ok "* | "not ok "*)
            number=$((number + 1))
            echo "${line%%ok *}ok $number - ${line#*- } on $ranks ranks, $where" ;;
        "#"*) echo "$line" ;;
        esac
    done <"$tmp/ops"
    [ -n "$count" ] && [ "$code" -eq 0 ] || sed 's/^/# /' "$tmp/err" | tail -40
    ok "all cases ran on $ranks ranks, $where" [ "${count:-0}" -gt 20 ]
}

ops "PyTorch's gloo" 4
ops hostccl 2 on_hostccl
ops hostccl 4 on_hostccl
ok "gpt.py over gloo" trains gloo 4 --tp 2 --pp 2
ok "gpt.py over hostccl" on_hostccl trains hostccl 4 --tp 2 --pp 2
ok "has the same losses" same gloo hostccl
echo "1..$number"
